-- odd_peer.lua - a TCP server for specs that is no server: it takes connections, reads what comes and says one text,
-- at once or a byte at a time, for ever again. As a program (a process of its own):
--   moonwire lua spec/support/odd_peer.lua PORT FILE MS
-- As a module: start { says = "+O", every = ms }; without `says` it is silent.
local ffi = require "ffi"

ffi.cdef [[
int mwt_od_socket(int domain, int type, int protocol) __asm__("socket");
int mwt_od_bind(int fd, const void *addr, unsigned len) __asm__("bind");
int mwt_od_listen(int fd, int backlog) __asm__("listen");
int mwt_od_accept(int fd, void *addr, void *len, int flags) __asm__("accept4");
int mwt_od_connect(int fd, const void *addr, unsigned len) __asm__("connect");
int mwt_od_setsockopt(int fd, int level, int name, const void *value, unsigned len) __asm__("setsockopt");
long mwt_od_read(int fd, void *buf, size_t n) __asm__("read");
long mwt_od_send(int fd, const void *buf, size_t n, int flags) __asm__("send");
int mwt_od_close(int fd) __asm__("close");
typedef struct mwt_od_pollfd { int fd; short events, revents; } mwt_od_pollfd;
int mwt_od_poll(mwt_od_pollfd *fds, unsigned long n, int ms) __asm__("poll");
]]
local C = ffi.C
local POLLIN = 1

local function address(port)
  local a = ffi.new "uint8_t[16]"
  ffi.copy(a, string.char(2, 0, math.floor(port / 256), port % 256, 127, 0, 0, 1))
  return a
end

local function send(fd, text) return tonumber(C.mwt_od_send(fd, text, #text, 0x4000)) > 0 end -- MSG_NOSIGNAL

local function serve(port, text, every)
  local listener = C.mwt_od_socket(2, 0x80001, 0)
  C.mwt_od_setsockopt(listener, 1, 2, ffi.new("int[1]", 1), 4)
  assert(C.mwt_od_bind(listener, address(port), 16) == 0 and C.mwt_od_listen(listener, 64) == 0, "cannot listen")
  local open, buffer = {}, ffi.new "char[65536]" -- fd -> how much of the text it was told

  local function drop(fd)
    open[fd] = nil
    C.mwt_od_close(fd)
  end

  local function accept()
    local fd = C.mwt_od_accept(listener, nil, nil, 0x80000)
    if fd < 0 then return end
    open[fd] = 0
    if every == 0 and #text > 0 then send(fd, text) end
  end

  while true do
    local list = {}
    for fd in pairs(open) do list[#list + 1] = fd end
    local polls = ffi.new("mwt_od_pollfd[?]", #list + 1)
    polls[0].fd, polls[0].events = listener, POLLIN
    for i, fd in ipairs(list) do polls[i].fd, polls[i].events = fd, POLLIN end
    C.mwt_od_poll(polls, #list + 1, every > 0 and every or 1000)
    if polls[0].revents ~= 0 then accept() end
    for i, fd in ipairs(list) do
      if polls[i].revents ~= 0 and tonumber(C.mwt_od_read(fd, buffer, 65536)) <= 0 then
        drop(fd)
      elseif every > 0 then
        local at = open[fd] % #text + 1
        open[fd] = at
        if not send(fd, text:sub(at, at)) then drop(fd) end
      end
    end
  end
end

if arg and arg[0] and arg[0]:find "odd_peer%.lua$" then
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
  local program = os.getenv "MOONWIRE_ROOT" .. "/spec/support/odd_peer.lua"
  self.child = process.spawn { { os.getenv "MOONWIRE_BIN", "lua", program, tostring(self.port), path,
                                 tostring(options.every or 0) } }
  wait.until_(function()
    local fd = C.mwt_od_socket(2, 0x80001, 0)
    local ok = C.mwt_od_connect(fd, address(self.port), 16) == 0
    C.mwt_od_close(fd)
    return ok
  end, 10, "the peer")
  return self
end

return M
