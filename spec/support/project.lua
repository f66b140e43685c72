-- project.lua - writes project folders for specs: a pipeline "p" from channel "in", a handler that traces what it does.
local process = require "spec.support.process"

local M = {}

local MAIN = [[
local mw = require "moonwire"
local broker = mw.connect(mw.env "BROKER_URL")
mw.settings { drain = 10 }
mw.pipeline "p" {
  from = broker:channel "in",
  handler = "handlers.p",
  %s
}
%s
]]

-- One write per line to a file opened for appending: lines of several workers never mix.
local TRACE = [[
local mw = require "moonwire"
local file = assert(io.open(%q, "a"))
file:setvbuf "full"
return function(event, msg, more)
  file:write(event, " ", msg.id, " ", msg.attempt, " ", ("%%.3f"):format(mw.now()), " %s ", tostring(more or ""), "\n")
  file:flush()
end
]]

local HANDLER = [[
local mw = require "moonwire"
local trace = require "trace"
local M = {}
%s
return M
]]

function M.write(path, text)
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
end

-- given: { settings =, handler =, more = (text after the pipeline), files = { [path] = text } }
function M.make(dir, given, trace_path, worker)
  process.run { "mkdir", "-p", dir .. "/handlers", dir .. "/schemas" }
  M.write(dir .. "/moonwire.lua", MAIN:format(given.settings or "", given.more or ""))
  M.write(dir .. "/trace.lua", TRACE:format(trace_path, worker or "w"))
  M.write(dir .. "/handlers/p.lua", HANDLER:format(given.handler))
  for path, text in pairs(given.files or {}) do M.write(dir .. "/" .. path, text) end
end

M.handler = function(text) return HANDLER:format(text) end

-- A trace file that is read as it grows.
local Trace = {}
Trace.__index = Trace

function M.trace(path) return setmetatable({ path = path, at = 0, rest = "", lines = {}, counts = {} }, Trace) end

-- Everything so far: { { event, id, attempt, time, worker, more }, … }
function Trace:read()
  local file = io.open(self.path, "rb")
  if not file then return self.lines end
  file:seek("set", self.at)
  local text = file:read "*a"
  file:close()
  self.at = self.at + #text
  text = self.rest .. text
  local from = 1
  for event, id, attempt, time, worker, more, after in text:gmatch "(%S+) (%S+) (%d+) (%S+) (%S+) ([^\n]*)\n()" do
    self.lines[#self.lines + 1] = {
      event = event, id = id, attempt = tonumber(attempt), time = tonumber(time), worker = worker, more = more,
    }
    self.counts[event] = (self.counts[event] or 0) + 1
    from = after
  end
  self.rest = text:sub(from)
  return self.lines
end

function Trace:of(event)
  local list = {}
  for _, line in ipairs(self:read()) do
    if line.event == event then list[#list + 1] = line end
  end
  return list
end

function Trace:count(event)
  self:read()
  return self.counts[event] or 0
end

return M
