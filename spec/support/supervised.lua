-- supervised.lua - a project run by `moonwire run --workers N`, for specs: its workers' pids as the log tells them.
local clock = require "spec.support.wait"
local process = require "spec.support.process"
local json = require "moonwire.json"
local project = require "spec.support.project"

local M = {}
local Scene = {}
Scene.__index = Scene

M.binary = os.getenv "MOONWIRE_BIN"
M.late = M.binary:find "asan" and 4 or 1

-- given: as project.make takes it, and `flags` (a list of words), `env`, `url` (of the broker; else an embedded one),
-- `group` (see cgroup.lua)
function M.scene(given)
  local dir = process.tmpdir()
  local self = setmetatable({ dir = dir .. "/p", url = given.url or "embedded:" .. dir .. "/store?size=1GB",
                              given = given, trace = project.trace(dir .. "/trace") }, Scene)
  project.make(self.dir, given, self.trace.path)
  return self
end

function Scene:start()
  local env = { BROKER_URL = self.url }
  for name, value in pairs(self.given.env or {}) do env[name] = value end
  local command = { M.binary, "run", self.dir, unpack(self.given.flags or {}) }
  if self.given.group then command = self.given.group:wrap(command) end
  self.child = process.spawn { command, env = env }
  return self.child
end

function Scene:see(pattern, seconds)
  return clock.until_(function() return self.child:stderr():match(pattern) end, (seconds or 15) * M.late, pattern)
end

function Scene:count(pattern)
  local _, n = self.child:stderr():gsub(pattern, "")
  return n
end

-- The pid of worker K as it is now. The supervisor writes it down, perhaps a moment after the worker's own first line.
function Scene:pid(worker)
  self:see('msg="worker begins" worker=' .. worker .. " pid=%d+")
  local pid
  for found in self.child:stderr():gmatch('msg="worker begins" worker=' .. worker .. " pid=(%d+)") do pid = found end
  return tonumber(pid)
end

function Scene:kill_worker(worker, signal)
  process.run { "kill", "-" .. (signal or "KILL"), tostring(self:pid(worker)) }
end

function Scene:ask(...) return process.run { { M.binary, ... }, cwd = self.dir } end

-- `status --json`, and of it one pipeline.
function Scene:status()
  local result = self:ask("status", "--json")
  assert(result.code == 0, result.stderr)
  local status = json.decode(result.stdout)
  return status, status.pipelines[1]
end

-- By the commands, not by a link of this process: that would keep its loop busy for the specs that come after.
-- list: { { id =, key = }, … }
function Scene:publish(list)
  local lines = {}
  for i, m in ipairs(list) do lines[i] = ('{"id":"%s","k":"%s"}\n'):format(m.id, m.key or m.id) end
  local sent = process.run {
    { M.binary, "publish", "--broker", self.url, "in", "--lines", "--id-path", "id", "--key-path", "k" },
    stdin = table.concat(lines),
  }
  assert(sent.code == 0, sent.stderr)
end

-- How many messages stand in the channel.
function Scene:left(channel)
  local found = process.run { M.binary, "tail", "--broker", self.url, channel, "--no-follow", "--json" }
  assert(found.code == 0, found.stderr)
  return select(2, found.stdout:gsub("\n", ""))
end

function M.alive(pid) return process.run({ "kill", "-0", tostring(pid) }).code == 0 end

return M
