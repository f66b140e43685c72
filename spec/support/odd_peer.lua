-- odd_peer.lua - a TCP server for specs that is no server: it takes connections, reads what comes and says one text,
-- at once or a byte at a time, for ever again. As a program (a process of its own):
--   moonwire lua spec/support/odd_peer.lua PORT FILE MS
-- As a module: start { says = "+O", every = ms }; without `says` it is silent.
local program = arg and arg[0] and arg[0]:match "^(.*)/spec/support/odd_peer%.lua$"
if program then package.path = program .. "/?.lua;" .. package.path end
local sockets = require "spec.support.sockets"

local function serve(port, text, every)
  local listener, told = sockets.listen(port), {} -- fd -> how much of the text it was told

  local function drop(fd)
    told[fd] = nil
    sockets.close(fd)
  end

  local function accept()
    local fd = sockets.accept(listener)
    if not fd then return end
    told[fd] = 0
    if every == 0 and #text > 0 then sockets.send(fd, text) end
  end

  while true do
    local list = { listener }
    for fd in pairs(told) do list[#list + 1] = fd end
    local ready = sockets.readable(list, every > 0 and every or 1000)
    for i = 2, #list do
      local fd = list[i]
      if ready[fd] and not sockets.read(fd) then
        drop(fd)
      elseif every > 0 then
        local at = told[fd] % #text + 1
        told[fd] = at
        if not sockets.send(fd, text:sub(at, at)) then drop(fd) end
      end
    end
    if ready[listener] then accept() end
  end
end

if program then
  serve(tonumber(arg[1]), assert(io.open(arg[2], "rb")):read "*a", tonumber(arg[3]))
  return 0
end

local process = require "spec.support.process"
local wait = require "spec.support.wait"

local M = {}
local Peer = {}
Peer.__index = Peer

function Peer:stop()
  self.child:kill "KILL"
  self.child:wait(5)
end

function M.start(options)
  options = options or {}
  local path = process.tmpdir() .. "/text"
  local file = assert(io.open(path, "wb"))
  file:write(options.says or "")
  file:close()
  local self = setmetatable({ port = process.free_port() }, Peer)
  local file_of_it = os.getenv "MOONWIRE_ROOT" .. "/spec/support/odd_peer.lua"
  self.child = process.spawn { { os.getenv "MOONWIRE_BIN", "lua", file_of_it, tostring(self.port), path,
                                 tostring(options.every or 0) } }
  wait.until_(function() return sockets.listens(self.port) end, 10, "the peer")
  return self
end

return M
