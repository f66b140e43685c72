-- tcp_proxy.lua - a TCP proxy for specs that can be told to misbehave. As a program (a process of its own, so that it
-- works while the spec waits):  moonwire lua spec/support/tcp_proxy.lua LISTEN TARGET CONTROL
-- The file CONTROL holds a word: pass, stall (nothing moves), bytes (one at a time), refuse (connections are closed at
-- once), or "cut N": every N-th look cuts all connections. As a module: start { target = port } and proxy:say(word).
local program = arg and arg[0] and arg[0]:match "^(.*)/spec/support/tcp_proxy%.lua$"
if program then package.path = program .. "/?.lua;" .. package.path end
local sockets = require "spec.support.sockets"

local function word(path)
  local file = io.open(path)
  local text = file and file:read "*l" or "pass"
  if file then file:close() end
  return text or "pass"
end

local function serve(port, target, control)
  local listener = sockets.listen(port)
  local others, looks, mode = {}, 0, "pass" -- others: fd -> the fd of the other side

  local function drop(fd)
    local other = others[fd]
    others[fd], others[other] = nil, nil
    sockets.close(fd)
    sockets.close(other)
  end

  local function accept()
    local fd = sockets.accept(listener)
    if not fd then return end
    local other = mode ~= "refuse" and sockets.connect(target)
    if not other then return sockets.close(fd) end
    sockets.no_delay(fd)
    sockets.no_delay(other)
    others[fd], others[other] = other, fd
  end

  local function pump(fd)
    local text = sockets.read(fd, mode == "bytes" and 1 or nil)
    if not text or not sockets.send(others[fd], text) then drop(fd) end
  end

  while true do
    looks = looks + 1
    if looks % 20 == 0 or mode == "stall" then mode = word(control) end
    local every = tonumber(mode:match "^cut (%d+)")
    if mode == "refuse" or every and looks % every == 0 then
      for fd in pairs(others) do if others[fd] then drop(fd) end end
    end
    local list = { listener }
    if mode ~= "stall" then for fd in pairs(others) do list[#list + 1] = fd end end
    local ready = sockets.readable(list, 10)
    for i = 2, #list do
      if ready[list[i]] and others[list[i]] then pump(list[i]) end
    end
    if ready[listener] then accept() end
  end
end

if program then
  serve(tonumber(arg[1]), tonumber(arg[2]), arg[3])
  return 0
end

local process = require "spec.support.process"
local wait = require "spec.support.wait"

local M = {}
local Proxy = {}
Proxy.__index = Proxy

function Proxy:say(text)
  local file = assert(io.open(self.control .. ".new", "w"))
  file:write(text, "\n")
  file:close()
  os.rename(self.control .. ".new", self.control)
end

function Proxy:stop()
  self.child:kill "KILL"
  self.child:wait(5)
end

function M.start(target)
  local root, dir = os.getenv "MOONWIRE_ROOT", process.tmpdir()
  local self = setmetatable({ port = process.free_port(), control = dir .. "/control" }, Proxy)
  self:say "pass"
  self.child = process.spawn { { os.getenv "MOONWIRE_BIN", "lua", root .. "/spec/support/tcp_proxy.lua",
                                 tostring(self.port), tostring(target), self.control } }
  wait.until_(function() return sockets.listens(self.port) end, 10, "the proxy")
  return self
end

return M
