--- moonwire dlq purge: removes dead letters for good. A key that was held for one of them is released, so that its
--- later messages flow.
local C = require "moonwire.internal.cdef"
local broker = require "moonwire.cli.broker.link"
local channel = require "moonwire.cli.broker.channel"
local fail = require "moonwire.cli.fail"
local input = require "moonwire.cli.broker.input"
local letters = require "moonwire.cli.dlq.letters"
local out = require "moonwire.cli.out"
local progress = require "moonwire.cli.dlq.progress"
local task = require "moonwire.cli.task"

-- Those that followed a dead one of their key: the key stays held until the first one goes.
local FOLLOWED = "key_dead"

local function lane_of(letter)
  if not letter.lane or letter.class == FOLLOWED or not letter.origin or not letter.group then return nil end
  local high, low = letter.lane:match "^(%x%x%x%x%x%x%x%x)(%x%x%x%x%x%x%x%x)$"
  if not high then return nil end
  return tonumber(high, 16) * 0x100000000ULL + tonumber(low, 16)
end

local function release(run, letter)
  local lane = lane_of(letter)
  if not lane then return end
  local name = ("%s\0%s\0%s"):format(letter.origin, letter.group, letter.lane)
  if run.lanes[name] then return end
  run.lanes[name] = true
  if letter.broker and not broker.same(letter.broker, run.link.url) then
    out.note("%s: its key is held on another broker, %s, and was not released there", out.plain(letter.id),
      out.plain(letter.broker))
  elseif C.mw_vm_release_key(run.link.link, letter.origin, letter.group, lane) then
    run.released = run.released + 1
  end
end

-- The keys go first, and the broker takes them in that order: when the removal is confirmed, both are durable, and a
-- crash in between leaves a letter that can be purged again instead of a key that nobody can release.
local function remove_page(run, page)
  if #page == 0 then return end
  local positions = {}
  for i, letter in ipairs(page) do
    positions[i] = letter.position
    release(run, letter)
  end
  local removed, why, retryable = channel.remove(run.link, run.values.CHANNEL, positions, {})
  if not removed then
    run.bar:over()
    fail.raise(retryable and fail.UNAVAILABLE or fail.FAILED, "%d removed, then: %s", run.removed, why)
  end
  run.removed = run.removed + removed
  run.bar:at(run.removed)
end

local function report(run, page)
  if not run.values.json then
    if run.values["dry-run"] then
      for _, letter in ipairs(page) do out.line(out.plain(letter.id)) end
    end
    return
  end
  for _, letter in ipairs(page) do
    out.json(letters.outcome(letter, run.values["dry-run"] and "would remove" or "removed"))
  end
end

local function ask(link, values, upto)
  if values.yes or values["dry-run"] then return nil end
  if not input.can_ask() then fail.usage "this removes letters for good, and nobody is there to ask: say --yes" end
  local total = letters.count(link, values, upto)
  if total == 0 then return total end
  local what = ("remove %s of %s for good?"):format(out.count(total, "letter"), out.plain(values.CHANNEL))
  if not input.confirm(what) then fail.raise(fail.FAILED, "nothing was removed") end
  return total
end

local function purge(values)
  local link = broker.open(values, { need = { "browse", "remove" } })
  local upto = channel.newest(link, values.CHANNEL)
  local total = ask(link, values, upto) or progress.visible() and letters.count(link, values, upto) or nil
  local bar = progress.new("removing", not values["dry-run"] and total or nil)
  local run = { link = link, values = values, removed = 0, released = 0, lanes = {}, bar = bar }
  local page = {}
  local function gather(letter) page[#page + 1] = letter end
  local count, missing = letters.each(link, values, { upto = upto }, gather, function()
    if not values["dry-run"] then remove_page(run, page) end
    report(run, page)
    page = {}
  end)
  run.bar:over()
  out.flush()
  local done = values["dry-run"] and ("would remove %d"):format(count) or ("removed %d"):format(run.removed)
  if run.released > 0 then done = done .. ("; released %s"):format(out.count(run.released, "held key")) end
  if task.interrupted() then fail.raise(fail.FAILED, "interrupted: %s", done) end
  out.note("%s", done)
  letters.must_be_found(missing, values)
  return 0
end

return {
  name = "dlq purge",
  summary = "Removes dead letters for good. A key that was held for one of them is released.",
  arguments = {
    { "CHANNEL", "the channel of the dead letters, such as orders.dead" },
    { "ID", "only these", optional = true, many = true },
  },
  flags = letters.flags(
    broker.FLAG,
    { "dry-run", nil, "only tell what would be done" },
    { "yes", nil, "do not ask", short = "y" },
    { "json", nil, "one object a line for each letter" }
  ),
  examples = { "moonwire dlq purge --broker embedded:data orders.dead --older 30d --yes" },
  run = function(values)
    broker.channel(values.CHANNEL)
    out.broken_pipe_code = 1
    return task.run(function() return purge(values) end)
  end,
}
