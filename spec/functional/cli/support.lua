-- support.lua - what the specs of the commands share: the binary, a folder to work in, a project whose handler
-- fails on demand.
local json = require "moonwire.json"
local process = require "spec.support.process"

local M = {}

M.binary = os.getenv "MOONWIRE_BIN"
M.root = os.getenv "MOONWIRE_ROOT"

-- Variables of the one who runs the specs must not reach the commands.
local CLEAN = { BROKER_URL = false, NO_COLOR = false }

local function environment(more)
  local env = {}
  for name, value in pairs(CLEAN) do env[name] = value end
  for name, value in pairs(more or {}) do env[name] = value end
  return env
end

---@class moonwire.Workdir a folder in which commands run
local Workdir = {}
Workdir.__index = Workdir

function M.workdir() return setmetatable({ path = process.tmpdir() }, Workdir) end

-- Runs `moonwire …` in the folder; stdin and env may stand behind the words.
function Workdir:run(words, options)
  options = options or {}
  return process.run {
    { M.binary, unpack(words) }, cwd = self.path, stdin = options.stdin, env = environment(options.env),
    timeout = options.timeout or 60, stdout = options.stdout,
  }
end

function Workdir:spawn(words)
  return process.spawn { { M.binary, unpack(words) }, cwd = self.path, env = environment() }
end

function Workdir:write(name, text)
  local path = self.path .. "/" .. name
  local dir = path:match "^(.*)/"
  if dir ~= self.path then process.run { "mkdir", "-p", dir } end
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
end

function Workdir:read(name)
  local file = io.open(self.path .. "/" .. name, "rb")
  if not file then return nil end
  local text = file:read "*a"
  file:close()
  return text
end

-- One table for each line of JSON.
function M.objects(text)
  local list = {}
  for line in text:gmatch "[^\n]+" do list[#list + 1] = assert(json.decode(line)) end
  return list
end

-- What stands on a channel.
function Workdir:messages(channel)
  local result = self:run { "tail", "-b", "embedded:data", channel, "--no-follow", "--json" }
  assert(result.code == 0, result.stderr)
  return M.objects(result.stdout)
end

function Workdir:letters(...)
  local result = self:run { "dlq", "ls", "-b", "embedded:data", "orders.dead", "--json", ... }
  assert(result.code == 0, result.stderr)
  return M.objects(result.stdout)
end

local MAIN = [[
local mw = require "moonwire"
local broker = mw.connect(mw.env("BROKER_URL", "embedded:data"))
mw.pipeline "orders" { from = broker:channel "orders", handler = "handlers.orders",
  retry = { attempts = 2, backoff = "fixed", base = 0.01 }, on_dead = "ON_DEAD" }
]]

-- Bodies say what happens: those with "reject" or "fail" in them die, unless MENDED is set.
local HANDLER = [[
local mw = require "moonwire"
local M = {}
function M.handle(msg)
  if mw.env("MENDED", "no") == "no" then
    if msg.body:find "reject" then return mw.reject("no " .. msg.body:sub(1, 40), "business") end
    if msg.body:find "fail" then error("handler says no") end
  end
  mw.metrics.count("taken")
end
return M
]]

-- A project in this folder.
function Workdir:project(on_dead)
  self:write("moonwire.lua", (MAIN:gsub("ON_DEAD", on_dead or "continue")))
  self:write("handlers/orders.lua", HANDLER)
end

function Workdir:publish(channel, body, ...)
  local result = self:run { "publish", "-b", "embedded:data", channel, body, ... }
  assert(result.code == 0, result.stderr)
  return (result.stdout:gsub("\n", ""))
end

-- Runs the project until everything is settled.
function Workdir:settle(env)
  local result = self:run({ "run", "--once" }, { env = env })
  assert(result.code == 0, result.stderr)
  return result
end

return M
