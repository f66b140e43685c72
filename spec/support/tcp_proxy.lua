-- tcp_proxy.lua - a TCP proxy for specs that can be told to misbehave. As a program (a process of its own, so that it
-- works while the spec waits):  moonwire lua spec/support/tcp_proxy.lua LISTEN TARGET CONTROL
-- The file CONTROL holds a word: pass, stall (nothing moves), bytes (one at a time), refuse (connections are closed at
-- once), or "cut N": every N-th look cuts all connections. As a module: start { target = port } and proxy:say(word).
local ffi = require "ffi"

ffi.cdef [[
int mwt_px_socket(int domain, int type, int protocol) __asm__("socket");
int mwt_px_bind(int fd, const void *addr, unsigned len) __asm__("bind");
int mwt_px_listen(int fd, int backlog) __asm__("listen");
int mwt_px_accept(int fd, void *addr, void *len, int flags) __asm__("accept4");
int mwt_px_connect(int fd, const void *addr, unsigned len) __asm__("connect");
int mwt_px_setsockopt(int fd, int level, int name, const void *value, unsigned len) __asm__("setsockopt");
long mwt_px_read(int fd, void *buf, size_t n) __asm__("read");
long mwt_px_send(int fd, const void *buf, size_t n, int flags) __asm__("send");
int mwt_px_close(int fd) __asm__("close");
typedef struct mwt_px_pollfd { int fd; short events, revents; } mwt_px_pollfd;
int mwt_px_poll(mwt_px_pollfd *fds, unsigned long n, int ms) __asm__("poll");
]]
local C = ffi.C
local POLLIN = 1

local function address(port)
  local a = ffi.new "uint8_t[16]"
  ffi.copy(a, string.char(2, 0, math.floor(port / 256), port % 256, 127, 0, 0, 1))
  return a
end

local function word(path)
  local file = io.open(path)
  local text = file and file:read "*l" or "pass"
  if file then file:close() end
  return text or "pass"
end

local function serve(port, target, control)
  local listener = C.mwt_px_socket(2, 0x80001, 0)
  C.mwt_px_setsockopt(listener, 1, 2, ffi.new("int[1]", 1), 4)
  assert(C.mwt_px_bind(listener, address(port), 16) == 0 and C.mwt_px_listen(listener, 64) == 0, "cannot listen")
  local pairs_, looks = {}, 0 -- fd -> the other fd
  local buffer, mode = ffi.new "char[65536]", "pass"

  local function drop(fd)
    local other = pairs_[fd]
    pairs_[fd], pairs_[other] = nil, nil
    C.mwt_px_close(fd)
    C.mwt_px_close(other)
  end

  local function accept()
    local fd = C.mwt_px_accept(listener, nil, nil, 0x80000)
    if fd < 0 then return end
    local other = C.mwt_px_socket(2, 0x80001, 0)
    if mode == "refuse" or C.mwt_px_connect(other, address(target), 16) ~= 0 then
      C.mwt_px_close(fd)
      C.mwt_px_close(other)
      return
    end
    C.mwt_px_setsockopt(fd, 6, 1, ffi.new("int[1]", 1), 4) -- TCP_NODELAY
    C.mwt_px_setsockopt(other, 6, 1, ffi.new("int[1]", 1), 4)
    pairs_[fd], pairs_[other] = other, fd
  end

  local function pump(fd)
    local n = tonumber(C.mwt_px_read(fd, buffer, mode == "bytes" and 1 or 65536))
    if n <= 0 or tonumber(C.mwt_px_send(pairs_[fd], buffer, n, 0x4000)) <= 0 then drop(fd) end
  end

  while true do
    looks = looks + 1
    if looks % 20 == 0 or mode == "stall" then mode = word(control) end
    local every = tonumber(mode:match "^cut (%d+)")
    if mode == "refuse" or every and looks % every == 0 then
      for fd in pairs(pairs_) do if pairs_[fd] then drop(fd) end end
    end
    local list = {}
    if mode ~= "stall" then for fd in pairs(pairs_) do list[#list + 1] = fd end end
    local polls = ffi.new("mwt_px_pollfd[?]", #list + 1)
    polls[0].fd, polls[0].events = listener, POLLIN
    for i, fd in ipairs(list) do polls[i].fd, polls[i].events = fd, POLLIN end
    C.mwt_px_poll(polls, #list + 1, 10)
    if polls[0].revents ~= 0 then accept() end
    for i, fd in ipairs(list) do
      if polls[i].revents ~= 0 and pairs_[fd] then pump(fd) end
    end
  end
end

if arg and arg[0] and arg[0]:find "tcp_proxy%.lua$" then
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
  wait.until_(function()
    local fd = C.mwt_px_socket(2, 0x80001, 0)
    local ok = C.mwt_px_connect(fd, address(self.port), 16) == 0
    C.mwt_px_close(fd)
    return ok
  end, 10, "the proxy")
  return self
end

return M
