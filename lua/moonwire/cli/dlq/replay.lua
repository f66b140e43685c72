--- moonwire dlq replay: sends dead letters back to where they died. Each one is published and removed in one step where
--- the broker can, so a replay that was interrupted is simply started again. The set is fixed at the start: what dies
--- meanwhile waits for the next replay.
local C = require "moonwire.internal.cdef"
local broker = require "moonwire.cli.broker.link"
local channel = require "moonwire.cli.broker.channel"
local fail = require "moonwire.cli.fail"
local ffi = require "ffi"
local input = require "moonwire.cli.broker.input"
local letters = require "moonwire.cli.dlq.letters"
local out = require "moonwire.cli.out"
local progress = require "moonwire.cli.dlq.progress"
local task = require "moonwire.cli.task"
local wait = require "moonwire.internal.wait"

local MOST_REPLAYS = 3 -- a letter that died this often after a replay needs a person, not another replay
local IN_FLIGHT, BYTES_IN_FLIGHT = 256, 32 * 1024 * 1024

-- ---- the message that goes back ----

local parts, failure = ffi.new "mw_parts", ffi.new "mw_failure"
local at, header = ffi.new "size_t[1]", ffi.new "mw_header_view"

local function is_ours(name) return name:find "^mw%-dead%-" or name == "mw-replay" end

local function add_header(block, name, value) C.mw_ffi_headers_add(block, name, #name, value, #value) end

-- `home`: it goes back to where it died, in the form that it had there.
local function copy_headers(block, replays, home)
  at[0] = 0
  while C.mw_ffi_headers_next(parts.headers, parts.headers_len, at, header) do
    local name = ffi.string(header.name, header.name_len)
    if not is_ours(name) then
      C.mw_ffi_headers_add(block, header.name, header.name_len, header.value, header.value_len)
    elseif name == "mw-dead-body-field" and home then
      add_header(block, "mw-body-field", ffi.string(header.value, header.value_len))
    end
  end
  add_header(block, "mw-replay", tostring(replays))
end

-- Everything as it was, but for the headers. It counts as published now: an age limit must not kill it at once.
local function message_of(entry, replays, home)
  C.mw_message_parts(entry.message, parts)
  local block = ffi.new "mw_headers_out"
  copy_headers(block, replays, home)
  parts.headers, parts.headers_len = block.data, block.len
  parts.time_ms = math.floor(C.mw_vm_now(wait.vm) * 1000)
  local message = C.mw_message_make(parts, failure)
  C.mw_ffi_headers_free(block)
  if message == nil then return nil, ffi.string(failure.text) end
  return message
end

-- ---- which ones, and where to ----

--- Why a letter stays where it is, or nil.
---@return string|nil kind, string|nil text
local function refusal(link, values, letter)
  if not values.to then
    if not letter.origin or letter.origin == "" then return "origin", "does not say where it died: use --to CHANNEL" end
    if letter.origin == values.CHANNEL then return "origin", "died on this very channel: use --to CHANNEL" end
    if not values.force and letter.broker and not broker.same(letter.broker, link.url) then
      return "broker", ("died on another broker, %s: use --to CHANNEL or --force"):format(letter.broker)
    end
  end
  if letter.replays >= MOST_REPLAYS and not values.force then
    return "loop", ("was replayed %d times already: use --force"):format(letter.replays)
  end
  return nil
end

local function tell(values, letter, result, target, why)
  if values.json then
    local object = letters.outcome(letter, result)
    object.to, object.why = target and out.plain(target), why and out.plain(why)
    out.json(object)
  elseif why then
    out.note("%s %s", out.plain(letter.id), out.plain(why))
  elseif values["dry-run"] then
    out.line(("%s -> %s"):format(out.plain(letter.id), out.plain(target)))
  end
end

local function replay_one(run, letter, entry, target)
  local values, tally = run.values, run.tally
  local message, err = message_of(entry, letter.replays + 1, target == letter.origin)
  if not message then fail.raise(fail.FAILED, "%s: %s", out.plain(letter.id), err) end
  run.window:start(function()
    local removed, why, retryable =
      channel.remove(run.link, values.CHANNEL, { letter.position }, { { channel = target, message = message } })
    C.mw_message_unref(message)
    if not removed then
      tally.failed, tally.retryable = tally.failed + 1, tally.retryable or retryable
      return tell(values, letter, "failed", target, "was not replayed: " .. why)
    end
    tally.replayed = tally.replayed + 1
    if removed == 0 then tally.gone = tally.gone + 1 end
    tell(values, letter, "replayed", target)
    run.bar:at(tally.replayed)
  end, letter.size)
end

-- At most `rate` a second, evenly.
local function pace(run)
  if not run.values.rate then return end
  local now = C.mw_vm_mono(wait.vm)
  run.due = math.max(run.due or now, now - 1) -- after a stall it does not make up for more than a second
  if run.due > now then task.sleep(run.due - now) end
  run.due = run.due + 1 / run.values.rate
end

local function take(run, letter, entry)
  local values, tally = run.values, run.tally
  local target = values.to or letter.origin
  local kind, why = refusal(run.link, values, letter)
  if kind then
    tally[kind] = tally[kind] + 1
    return tell(values, letter, "refused", target, why)
  end
  if values["dry-run"] then
    tally.replayed = tally.replayed + 1
    return tell(values, letter, "would replay", target)
  end
  if tally.failed > 0 then return end -- the broker refuses: more of the same would be refused as well
  pace(run)
  if not task.interrupted() then replay_one(run, letter, entry, target) end
end

-- ---- the end ----

local function summary(values, tally)
  local words = { ("%s %d"):format(values["dry-run"] and "would replay" or "replayed", tally.replayed) }
  local function add(n, text) if n > 0 then words[#words + 1] = text:format(n) end end
  add(tally.gone, "%d of them were gone from the dead letters already (another replay at the same time?)")
  add(tally.loop, "refused %d that were replayed " .. MOST_REPLAYS .. " times already (--force)")
  add(tally.broker, "refused %d of another broker (--to, --force)")
  add(tally.origin, "refused %d that do not say where they died (--to)")
  add(tally.failed, "failed %d")
  return table.concat(words, "; ")
end

local function finish(run, missing)
  local values, tally = run.values, run.tally
  run.bar:over()
  out.flush()
  if task.interrupted() then
    fail.raise(fail.FAILED, "interrupted: %s; run it again to go on", summary(values, tally))
  end
  out.note("%s", summary(values, tally))
  letters.must_be_found(missing, values)
  if tally.failed > 0 then return tally.retryable and fail.UNAVAILABLE or fail.FAILED end
  return tally.loop + tally.broker + tally.origin > 0 and fail.FAILED or 0
end

local function replay(values)
  local link = broker.open(values, { need = { "browse", "remove" } })
  local upto = channel.newest(link, values.CHANNEL)
  local asks = not values.yes and not values["dry-run"] and input.can_ask()
  local total = (asks or progress.visible()) and letters.count(link, values, upto) or nil
  if asks and total > 0 then
    local where = values.to and out.plain(values.to) or "where they died"
    local question = ("send %s of %s back to %s?"):format(out.count(total, "letter"), out.plain(values.CHANNEL), where)
    if not input.confirm(question) then fail.raise(fail.FAILED, "nothing was replayed") end
  end
  local run = {
    link = link, values = values, window = task.window(IN_FLIGHT, BYTES_IN_FLIGHT),
    bar = progress.new("replaying", not values["dry-run"] and total or nil),
    tally = { replayed = 0, gone = 0, failed = 0, loop = 0, broker = 0, origin = 0 },
  }
  local _, missing = letters.each(link, values, { upto = upto }, function(letter, entry) take(run, letter, entry) end)
  run.window:finish()
  return finish(run, missing)
end

return {
  name = "dlq replay",
  summary = "Sends dead letters back to the channel they died on, and removes them in the same step.",
  details = "The set is the one that stands there at the start. Interrupted, it can be run again: each letter is\n"
    .. "either sent and removed, or untouched. Letters that were replayed 3 times already stay, unless --force.",
  arguments = {
    { "CHANNEL", "the channel of the dead letters, such as orders.dead" },
    { "ID", "only these", optional = true, many = true },
  },
  flags = letters.flags(
    broker.FLAG,
    { "to", "CHANNEL", "send them there instead" },
    { "rate", "N/s", "at most so many: 100/s, 30/m", kind = "rate" },
    { "dry-run", nil, "only tell what would be done" },
    { "force", nil, "also those replayed 3 times already, and those of another broker" },
    { "yes", nil, "do not ask", short = "y" },
    { "json", nil, "one object a line for each letter, with result: replayed, refused, failed" }
  ),
  examples = {
    "moonwire dlq replay --broker embedded:data orders.dead --reason 'out of stock' --dry-run",
    "moonwire dlq replay --broker embedded:data orders.dead --class transient --rate 50/s --yes",
  },
  run = function(values)
    broker.channel(values.CHANNEL)
    if values.to then broker.channel(values.to) end
    if values.to == values.CHANNEL then
      fail.usage("--to %s: they stand there already, and would only lose why they died", out.plain(values.to))
    end
    out.broken_pipe_code = 1
    return task.run(function() return replay(values) end)
  end,
}
