--- moonwire topology: compares what a project declares with `connection:topology { … }` with what there is at its
--- brokers, and makes it so. Nothing is deleted, and what would make a broker delete messages needs --force.
local C = require "moonwire.internal.cdef"
local broker = require "moonwire.cli.broker.link"
local core = require "moonwire.core"
local fail = require "moonwire.cli.fail"
local ffi = require "ffi"
local folder = require "moonwire.cli.project.folder"
local json = require "moonwire.json"
local out = require "moonwire.cli.out"
local task = require "moonwire.cli.task"
local token = require "moonwire.internal.token"
local wait = require "moonwire.internal.wait"

local function read(values)
  local ok, project = core.read(require("moonwire.internal.config.project").read, folder.dir(values.DIR))
  if not ok then error(project, 0) end
  if #project.problems > 0 then folder.complain(table.concat(project.problems, "\n")) end
  return project
end

--- The driver's answer to a request of this op.
local function ask(entry, op, force)
  local failure, link = ffi.new "mw_failure", entry.connection.link
  local url = ffi.string(C.mw_link_url(link))
  if C.mw_vm_link_open(link, failure) ~= 0 then
    fail.raise(fail.UNAVAILABLE, "%s: %s", url, ffi.string(failure.text))
  end
  broker.watch(link)
  if entry.connection.token then token.start(entry.connection) end
  local items = json.array()
  for i, item in ipairs(entry.items) do items[i] = item end
  local request, waiter = json.encode { op = op, force = force or false, items = items }, wait.begin()
  if not C.mw_vm_topology(wait.vm, link, request, #request, waiter) then
    fail.raise(fail.UNAVAILABLE, "%s: this broker has nothing to declare", url)
  end
  local _, object, err = wait.yield(waiter, function() end)
  if err then fail.raise(fail.UNAVAILABLE, "%s: %s", url, err) end
  local answer, len = ffi.cast("struct mw_answer *", object), ffi.new "size_t[1]"
  local text = ffi.string(C.mw_answer_text(answer, len), len[0])
  C.mw_answer_free(answer)
  return assert(json.decode(text)).items, url
end

local function text_of(item)
  local parts = {}
  for _, d in ipairs(item.differences or {}) do
    parts[#parts + 1] = ("%s: %s instead of %s"):format(d.field, tostring(d.found), tostring(d.wanted))
  end
  local names = {}
  for name in pairs(item.settings or {}) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do parts[#parts + 1] = ("%s: %s"):format(name, tostring(item.settings[name])) end
  if item.error then parts[#parts + 1] = item.error end
  if item.note then parts[#parts + 1] = item.note end
  return out.plain(table.concat(parts, "; "))
end

local GOOD = { same = true, created = true, changed = true, present = true, unchecked = true }

local function run(op, values)
  local project = read(values)
  if #project.topologies == 0 then
    out.note "the project declares no topology: write connection:topology { … } in moonwire.lua"
    return 0
  end
  return task.run(function()
    local rows, all_good = {}, true
    for _, entry in ipairs(project.topologies) do
      local items, url = ask(entry, op, values.force)
      for _, item in ipairs(items) do
        all_good = all_good and GOOD[item.state] ~= nil
        if values.json then
          item.broker = url
          out.json(item)
        else
          rows[#rows + 1] = { item.kind, out.plain(item.name), item.state, text_of(item) }
        end
      end
    end
    if #rows > 0 then out.table { "KIND", "NAME", "STATE", "DETAILS" }(rows) end
    return (op == "show" or all_good) and 0 or fail.FAILED
  end)
end

local DIR = { "DIR", "the project's folder (default: the current one)", optional = true }
local JSON_FLAG = { "json", nil, "one object a line: kind, name, state, differences, error, note, broker" }

local function verb(op, summary, flags)
  return {
    name = "topology " .. op, summary = summary, arguments = { DIR }, flags = flags,
    examples = { ("moonwire topology %s shop"):format(op) },
    run = function(values) return run(op, values) end,
  }
end

return {
  name = "topology",
  summary = "Compares the topics and queues that a project declares with those at its brokers, and makes them.",
  verbs = {
    verb("plan", "Tells what `apply` would do. Exit code 1 when there is something to do.", { JSON_FLAG }),
    verb("apply", "Makes what is missing and changes what differs. Deletes nothing.", {
      JSON_FLAG, { "force", nil, "also changes that make the broker delete messages, such as a shorter retention" },
    }),
    verb("show", "Shows what there is of what is declared.", { JSON_FLAG }),
  },
  examples = { "moonwire topology plan shop" },
}
