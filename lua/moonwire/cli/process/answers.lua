--- How a running project answers what comes through its control socket: a line in, one JSON object out. A line is a
--- word and its arguments, each escaped as in an address (%20), so that keys and ids may hold anything.
local core = require "moonwire.core"
local json = require "moonwire.json"
local log = require "moonwire.log"
local out = require "moonwire.cli.out"

local M = {}

local function escape(c) return ("%%%02X"):format(c:byte()) end
local function unescape(hex) return string.char(tonumber(hex, 16)) end

--- The line for a command.
---@param word string
---@param ... string
---@return string
function M.line(word, ...)
  local words = { word }
  for _, argument in ipairs { ... } do words[#words + 1] = "=" .. argument:gsub("[^%w_.-]", escape) end
  return table.concat(words, " ")
end

local function parse(line)
  local words = {}
  for argument in line:gmatch " =(%S*)" do words[#words + 1] = (argument:gsub("%%(%x%x)", unescape)) end
  return line:match "^%S*", words
end

-- What came from messages may be no UTF-8, or was cut inside a character.
local function printable(value)
  if type(value) == "string" then
    if out.is_utf8(value) then return value end
    local whole = value:gsub("[\192-\255][\128-\191]*$", "")
    return out.is_utf8(whole) and whole or out.plain(value)
  elseif type(value) == "table" then
    for name, item in pairs(value) do value[name] = printable(item) end
  end
  return value
end

local answer = {}

function answer.reload(app)
  local result, problems = app:reload()
  if not result then
    problems = problems:gsub("^!", "")
    log.error("reload refused", { error = problems })
    return { ok = false, problems = problems }
  end
  log.info("reloaded", result)
  return { ok = true, generation = result.generation, kept = result.kept, added = result.added,
    removed = result.removed }
end

function answer.status(app, _, worker)
  return { ok = true, generation = app:generation(), version = core.version, worker = worker,
    pipelines = json.array(app:status()), connections = json.array(app:connections()) }
end

function answer.drain(app)
  log.info("draining", { by = "command" })
  app:drain()
  return { ok = true }
end

function answer.explain(app, words)
  if not words[1] then return { ok = false, problems = "explain what?" } end
  local list = app:explain(words[1])
  for _, p in ipairs(list) do
    p.of_key = json.array(p.of_key)
    if p.lane then p.lane.behind = json.array(p.lane.behind) end
  end
  return { ok = true, generation = app:generation(), pipelines = json.array(printable(list)) }
end

local function names_of(app)
  local names = {}
  for _, p in ipairs(app:status()) do
    if not p.draining then names[#names + 1] = p.name end
  end
  return names
end

-- All or nothing: a misspelt name changes nothing.
local function set_paused(app, words, paused)
  local names, known = names_of(app), {}
  for _, name in ipairs(names) do known[name] = true end
  for _, name in ipairs(words) do
    if not known[name] then
      local all = table.concat(names, ", ")
      return { ok = false, problems = ("there is no pipeline %q; there is: %s"):format(name, all) }
    end
  end
  local chosen = #words > 0 and words or names
  for _, name in ipairs(chosen) do
    app:pause(name, paused)
    log.info(paused and "pipeline paused" or "pipeline resumed", { pipeline = name, by = "command" })
  end
  return { ok = true, pipelines = json.array(chosen) }
end

function answer.pause(app, words) return set_paused(app, words, true) end
function answer.resume(app, words) return set_paused(app, words, false) end

--- The function that answers, for app:run.
---@param worker integer|nil which one this is, where there are several
---@return fun(line: string): string
function M.of(app, worker)
  return function(line)
    local word, words = parse(line)
    local known = answer[word]
    local reply = known and known(app, words, worker) or { ok = false, problems = ("unknown command %q"):format(line) }
    return (json.encode(printable(reply), { sort = true }))
  end
end

return M
