--- moonwire tail: prints what stands on a channel, and what comes. Nothing is taken from anybody.
local broker = require "moonwire.cli.broker.link"
local channel = require "moonwire.cli.broker.channel"
local here = require "moonwire.cli.broker.here"
local out = require "moonwire.cli.out"
local task = require "moonwire.cli.task"
local view = require "moonwire.cli.dlq.view"

local POLL = 0.2
local SHOWN = 4096 -- bytes of a body on a terminal

local function plain_line(v)
  local body = v.body
  if out.terminal(1) and #body > SHOWN then
    body = out.plain(body:sub(1, SHOWN)) .. out.colour("dim", ("… (%d bytes)"):format(#v.body))
  else
    body = out.plain(body)
  end
  local key = v.key and out.plain(v.key) or "-"
  return ("%s  %s  %s  %s"):format(out.colour("dim", out.time(v.time)), out.plain(v.id), key, body)
end

local function follow(link, values)
  local name, left = values.CHANNEL, values.count or math.huge
  local from = values.from or (values["no-follow"] and "start" or "end")
  local after, printed = from == "end" and channel.newest(link, name) or 0, 0
  while left > 0 and not task.interrupted() do
    local last = channel.page(link, name, after, function(entries)
      for _, entry in ipairs(entries) do
        if left == 0 or task.interrupted() then return end
        local v = view.of(entry, true)
        if values.json then out.json(view.object(v)) else out.line(plain_line(v)) end
        left, printed = left - 1, printed + 1
      end
    end)
    out.flush()
    if last == after then
      if values["no-follow"] then break end
      task.sleep(POLL)
    end
    after = last
  end
  if printed == 0 and values["no-follow"] and not values.json then
    out.note("nothing on %s%s", out.plain(name), here.hint(values.broker, name, "from"))
  end
  return 0
end

local function run(values)
  broker.channel(values.CHANNEL)
  return task.run(function() return follow(broker.open(values, { need = { "browse" } }), values) end)
end

return {
  name = "tail",
  summary = "Prints the messages of a channel without taking them, and goes on with those that come, until Ctrl-C.",
  details = "It looks five times a second: a message that is published and settled in between is not seen, unless the\n"
    .. "channel keeps settled messages (retain).",
  arguments = { { "CHANNEL", "which" } },
  flags = {
    broker.FLAG,
    { "count", "N", "end after N messages", short = "n", kind = "positive" },
    { "from", "WHERE", "start: with what stands there; end: with what comes\n(default: end; start with --no-follow)",
      of = { "start", "end" } },
    { "no-follow", nil, "end when all was printed" },
    { "json", nil, "one object a line: position, id, key, time, headers, body (or body_base64)" },
  },
  examples = {
    "moonwire tail --broker embedded:data orders",
    "moonwire tail --broker embedded:data orders --no-follow --json",
  },
  run = run,
}
