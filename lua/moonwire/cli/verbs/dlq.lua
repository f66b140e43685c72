--- moonwire dlq: the verbs that work on dead letters.
local broker = require "moonwire.cli.broker.link"
local fail = require "moonwire.cli.fail"
local here = require "moonwire.cli.broker.here"
local json = require "moonwire.json"
local letters = require "moonwire.cli.dlq.letters"
local out = require "moonwire.cli.out"
local task = require "moonwire.cli.task"

local CHANNEL = { "CHANNEL", "the channel of the dead letters, such as orders.dead" }
local JSON_FLAG = { "json", nil, "one object a line" }

-- ---- ls ----

local function row(letter, dead)
  return {
    out.plain(dead), out.plain(letter.id), out.time(letter.time), out.plain(letter.class), out.plain(letter.attempts),
    letter.key and out.plain(letter.key) or "-", out.plain(letter.reason),
  }
end

--- The channels of dead letters: the one that was named, or those of all pipelines of the project here.
local function channels_of(link, values)
  if values.CHANNEL then return { values.CHANNEL } end
  local names = here.channels(values.broker, "dead", function(of) return broker.is(link, of) end)
  if #names == 0 then fail.usage "CHANNEL is missing; it may be left out in the folder of a project only" end
  return names
end

local function tell_none(values, names)
  local text = letters.chooses(values) and "no dead letter on %s is as the flags say" or "no dead letters on %s"
  local hint = values.CHANNEL and here.hint(values.broker, values.CHANNEL, "dead") or ""
  for i, name in ipairs(names) do names[i] = out.plain(name) end
  out.note(text .. "%s", table.concat(names, ", "), hint)
end

local function list(link, values)
  local names = channels_of(link, values)
  local heads, first = { "CHANNEL", "ID", "TIME", "CLASS", "ATTEMPTS", "KEY", "REASON" }, values.CHANNEL and 2 or 1
  local print_rows, rows, total = out.table { unpack(heads, first) }, {}, 0
  for _, name in ipairs(names) do
    local limit = values.limit and values.limit - total
    if limit == 0 then break end
    local count, missing = letters.each(link, setmetatable({ CHANNEL = name, limit = limit }, { __index = values }),
      { body = values.json }, function(letter)
        if values.json then
          local object = letters.object(letter)
          object.dead = name
          out.json(object)
        else
          rows[#rows + 1] = { unpack(row(letter, name), first) }
        end
      end, function()
        if #rows > 0 then print_rows(rows) end
        rows = {}
        out.flush()
      end)
    letters.must_be_found(missing, values)
    total = total + count
  end
  if total == 0 and not values.json then tell_none(values, names) end
  return 0
end

local ls = {
  name = "dlq ls",
  summary = "Lists dead letters, the oldest first.",
  details = "Without CHANNEL: those of all pipelines of the project in the current folder.",
  arguments = { { CHANNEL[1], CHANNEL[2], optional = true }, { "ID", "only these", optional = true, many = true } },
  flags = letters.flags(broker.FLAG, JSON_FLAG),
  examples = {
    "moonwire dlq ls",
    "moonwire dlq ls --broker embedded:data orders.dead",
    "moonwire dlq ls --broker embedded:data orders.dead --class invalid --newer 1h --json",
  },
  run = function(values)
    if values.CHANNEL then broker.channel(values.CHANNEL) end
    return task.run(function() return list(broker.open(values, { need = { "browse" } }), values) end)
  end,
}

-- ---- show ----

local DEAD = {
  { "reason", "mw-dead-reason" }, { "class", "mw-dead-class" }, { "attempts", "mw-dead-attempts" },
  { "died", "mw-dead-time" }, { "published", "mw-dead-published" }, { "channel", "mw-dead-channel" },
  { "broker", "mw-dead-broker" }, { "pipeline", "mw-dead-pipeline" }, { "group", "mw-dead-group" },
  { "generation", "mw-dead-generation" }, { "held lane", "mw-dead-lane" }, { "replayed", "mw-replay" },
  { "first error", "mw-dead-first-error" }, { "last error", "mw-dead-last-error" },
}

local function field(name, value)
  if value ~= nil and value ~= "" then
    out.line(("%s %s"):format(out.colour("bold", ("%-12s"):format(name)), out.plain(value)))
  end
end

-- Errors have several lines: a traceback on one line would be unreadable.
local function text_block(text)
  for line in (text .. "\n"):gmatch "(.-)\n" do out.line("  " .. out.plain(line)) end
end

local function show_body(letter)
  out.line(out.colour("bold", ("body (%s)"):format(out.count(letter.size, "byte"))))
  local data, err = json.decode(letter.body)
  local pretty = not err and json.encode(data, { pretty = true, sort = true })
  if pretty then
    text_block(pretty)
  elseif out.is_utf8(letter.body) and not letter.body:find "%z" then
    text_block(letter.body)
  else
    out.line "  (not text: --body prints it as it is, --json as base64)"
  end
end

local function show_headers(letter)
  local names = {}
  for name in pairs(letter.headers) do
    if not name:find "^mw%-dead%-" and name ~= "mw-replay" then names[#names + 1] = name end
  end
  table.sort(names)
  if #names == 0 then return end
  out.line(out.colour("bold", "headers"))
  for _, name in ipairs(names) do out.line(("  %s: %s"):format(out.plain(name), out.plain(letter.headers[name]))) end
end

local function show_letter(letter)
  field("id", letter.id)
  field("key", letter.key)
  field("type", letter.type)
  field("priority", tostring(letter.priority))
  for _, pair in ipairs(DEAD) do
    local value = letter.headers[pair[2]]
    if value and value:find "\n" then
      out.line(out.colour("bold", pair[1]))
      text_block(value)
    else
      field(pair[1], value)
    end
  end
  show_headers(letter)
  show_body(letter)
end

local function show_all(link, values)
  local shown = 0
  local _, missing = letters.each(link, values, { body = true }, function(letter)
    if values.json then
      out.json(letters.object(letter))
    elseif values.body then
      out.write(letter.body)
    else
      if shown > 0 then out.line "" end
      show_letter(letter)
    end
    shown = shown + 1
  end)
  letters.must_be_found(missing, values)
  return 0
end

local show = {
  name = "dlq show",
  summary = "Prints dead letters whole: why they died, headers, body.",
  arguments = { CHANNEL, { "ID", "which", many = true } },
  flags = { broker.FLAG, JSON_FLAG, { "body", nil, "only the body, byte for byte" } },
  examples = { "moonwire dlq show --broker embedded:data orders.dead 0191c0de-7d53-7cc4-9c1b-0f3a1d2b4c5e" },
  run = function(values)
    broker.channel(values.CHANNEL)
    return task.run(function() return show_all(broker.open(values, { need = { "browse" } }), values) end)
  end,
}

return {
  name = "dlq",
  summary = "Looks at dead letters, sends them back, removes them, makes specs of them.",
  verbs = {
    ls, show, require "moonwire.cli.dlq.replay", require "moonwire.cli.dlq.purge", require "moonwire.cli.dlq.spec",
  },
  examples = { "moonwire dlq ls --broker embedded:data orders.dead" },
}
