--- moonwire groups: which groups consume a channel, and removing one that will never come back. A group keeps its
--- messages until it has acked them, so one that nobody uses keeps them for ever.
local broker = require "moonwire.cli.broker.link"
local fail = require "moonwire.cli.fail"
local groups = require "moonwire.cli.broker.groups"
local input = require "moonwire.cli.broker.input"
local nearest = require "moonwire.internal.nearest"
local out = require "moonwire.cli.out"
local task = require "moonwire.cli.task"

local function waiting(group) return group.ready + group.delayed + group.parked end

-- ---- ls ----

local function row(group)
  return {
    out.plain(group.channel), out.plain(group.group), tostring(group.consumers), tostring(group.ready),
    tostring(group.delayed), tostring(group.parked),
  }
end

local function tell_unused(list)
  for _, group in ipairs(list) do
    if group.consumers == 0 and waiting(group) > 0 then
      out.note("nobody consumes group %s of %s now, and %s for it; `moonwire groups rm` removes one that is not used",
        out.plain(group.group), out.plain(group.channel), out.count(waiting(group), "message waits", "messages wait"))
    end
  end
end

local function list(values)
  local found = groups.list(broker.open(values, { need = { "groups" } }), values.CHANNEL)
  if values.json then
    for _, group in ipairs(found) do out.json(group) end
  elseif #found == 0 then
    out.note("no groups%s", values.CHANNEL and " on " .. out.plain(values.CHANNEL) or "")
  else
    local rows = {}
    for i, group in ipairs(found) do rows[i] = row(group) end
    out.table { "CHANNEL", "GROUP", "CONSUMERS", "READY", "DELAYED", "PARKED" }(rows)
    out.flush()
    tell_unused(found)
  end
  out.flush()
  return 0
end

local ls = {
  name = "groups ls",
  summary = "Lists the groups of a channel, or of all channels: who consumes, and what waits for them.",
  arguments = { { "CHANNEL", "only this one", optional = true } },
  flags = { broker.FLAG, { "json", nil, "one object a line: channel, group, consumers, ready, delayed, parked" } },
  examples = { "moonwire groups ls --broker embedded:data", "moonwire groups ls --broker embedded:data orders --json" },
  run = function(values)
    if values.CHANNEL then broker.channel(values.CHANNEL) end
    return task.run(function() return list(values) end)
  end,
}

-- ---- rm ----

local function find(link, values)
  local names = {}
  for _, group in ipairs(groups.list(link, values.CHANNEL)) do
    if group.group == values.GROUP then return group end
    names[#names + 1] = group.group
  end
  local near = nearest(values.GROUP, names)
  fail.raise(fail.FAILED, "%s has no group %s%s", out.plain(values.CHANNEL), out.plain(values.GROUP),
    near and ("; did you mean %s?"):format(out.plain(near)) or "")
end

local function ask(group, values)
  if values.yes then return end
  if not input.can_ask() then fail.usage "this lets messages go for good, and nobody is there to ask: say --yes" end
  local what = ("remove group %s of %s? %s for it, and what no other group wants is gone for good."):format(
    out.plain(group.group), out.plain(group.channel), out.count(waiting(group), "message waits", "messages wait"))
  if not input.confirm(what) then fail.raise(fail.FAILED, "nothing was removed") end
end

local function remove(values)
  local link = broker.open(values, { need = { "groups" } })
  local group = find(link, values)
  if group.consumers > 0 and not values.force then
    fail.raise(fail.FAILED, "group %s of %s has %s: stop %s first, or say --force", out.plain(group.group),
      out.plain(group.channel), out.count(group.consumers, "consumer"), group.consumers == 1 and "it" or "them")
  end
  ask(group, values)
  local count, why, retryable = groups.remove(link, values.CHANNEL, values.GROUP, values.force or false)
  if not count then fail.raise(retryable and fail.UNAVAILABLE or fail.FAILED, "%s", why) end
  if values.json then
    out.json { channel = values.CHANNEL, group = values.GROUP, messages = count, result = "removed" }
    out.flush()
  end
  out.note("removed group %s of %s; %s for it", out.plain(values.GROUP), out.plain(values.CHANNEL),
    out.count(count, "message waited", "messages waited"))
  return 0
end

local rm = {
  name = "groups rm",
  summary = "Removes a group. Messages no longer wait for it; what no other group wants is gone for good.",
  details = "A group is named after its pipeline, unless that sets `group`. It is refused while a consumer runs.\n"
    .. "With --force such a consumer loses what it has in hand, and begins again as a new group.",
  arguments = { { "CHANNEL", "which it consumes" }, { "GROUP", "its name" } },
  flags = {
    broker.FLAG,
    { "force", nil, "also while it is consumed" },
    { "yes", nil, "do not ask", short = "y" },
    { "json", nil, "print one object" },
  },
  examples = { "moonwire groups rm --broker embedded:data orders audit --yes" },
  run = function(values)
    broker.channel(values.CHANNEL)
    out.broken_pipe_code = fail.FAILED
    return task.run(function() return remove(values) end)
  end,
}

return {
  name = "groups",
  summary = "Lists the groups that consume a channel, and removes one that will not come back.",
  verbs = { ls, rm },
  examples = { "moonwire groups ls --broker embedded:data" },
}
