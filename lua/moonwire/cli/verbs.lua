--- The table of verbs. A verb's module is loaded when it is called: `moonwire publish` does not pay for the rest.
local M = {}

M.list = {
  { name = "new", summary = "make a project" },
  { name = "run", summary = "run a project's pipelines" },
  { name = "check", summary = "check a project without connecting to anything" },
  { name = "reload", summary = "give a running project its new code" },
  { name = "status", summary = "tell what a running project does" },
  { name = "top", summary = "show what a running project does, again and again" },
  { name = "explain", summary = "tell why a message or a key is not moving" },
  { name = "pause", summary = "make pipelines of a running project take nothing more" },
  { name = "resume", summary = "make paused pipelines go on" },
  { name = "drain", summary = "end a running project: finish what runs, give back the rest" },
  { name = "test", summary = "run a project's specs" },
  { name = "publish", summary = "publish messages to a channel" },
  { name = "tail", summary = "print the messages of a channel without taking them" },
  { name = "dlq", summary = "look at dead letters, send them back, remove them" },
  { name = "topology", summary = "compare and make the topics and queues that a project declares" },
  { name = "completion", summary = "print the completion script of a shell" },
  { name = "version", summary = "print the version" },
  { name = "help", summary = "explain a verb" },
  { name = "lua", summary = "run a Lua file with the library at hand", hidden = true },
}

local by_name = {}
for _, entry in ipairs(M.list) do by_name[entry.name] = entry end

---@return table|nil entry
function M.find(name) return by_name[name] end

--- The verb's description and code: a table as args.lua describes it, with `run(values) -> exit code`, and maybe
--- `verbs` of its own; or a function(argv, from) -> exit code, which reads its words itself.
---@return table|fun(argv: string[], from: integer): integer
function M.load(name) return require("moonwire.cli.verbs." .. name) end

---@return string[]
function M.names()
  local names = {}
  for _, entry in ipairs(M.list) do
    if not entry.hidden then names[#names + 1] = entry.name end
  end
  return names
end

return M
