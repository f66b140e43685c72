-- sockets.lua - plain TCP on the loopback, for servers that specs run as programs of their own, and for asking whether
-- somebody listens.
local ffi = require "ffi"

ffi.cdef [[
int mwt_so_socket(int domain, int type, int protocol) __asm__("socket");
int mwt_so_bind(int fd, const void *addr, unsigned len) __asm__("bind");
int mwt_so_listen(int fd, int backlog) __asm__("listen");
int mwt_so_accept(int fd, void *addr, void *len, int flags) __asm__("accept4");
int mwt_so_connect(int fd, const void *addr, unsigned len) __asm__("connect");
int mwt_so_setsockopt(int fd, int level, int name, const void *value, unsigned len) __asm__("setsockopt");
long mwt_so_read(int fd, void *buf, size_t n) __asm__("read");
long mwt_so_send(int fd, const void *buf, size_t n, int flags) __asm__("send");
int mwt_so_close(int fd) __asm__("close");
typedef struct mwt_so_pollfd { int fd; short events, revents; } mwt_so_pollfd;
int mwt_so_poll(mwt_so_pollfd *fds, unsigned long n, int ms) __asm__("poll");
]]
local C = ffi.C
local AF_INET, STREAM_CLOEXEC, CLOEXEC = 2, 0x80001, 0x80000
local SOL_SOCKET, SO_REUSEADDR, IPPROTO_TCP, TCP_NODELAY = 1, 2, 6, 1
local MSG_NOSIGNAL, POLLIN = 0x4000, 1

local M = {}

local one = ffi.new("int[1]", 1)

local function address(port)
  local a = ffi.new "uint8_t[16]"
  ffi.copy(a, string.char(AF_INET, 0, math.floor(port / 256), port % 256, 127, 0, 0, 1))
  return a
end

function M.close(fd) C.mwt_so_close(fd) end

function M.listen(port)
  local fd = C.mwt_so_socket(AF_INET, STREAM_CLOEXEC, 0)
  C.mwt_so_setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, one, 4)
  assert(C.mwt_so_bind(fd, address(port), 16) == 0 and C.mwt_so_listen(fd, 64) == 0, "cannot listen")
  return fd
end

--- nil when nobody came after all
function M.accept(listener)
  local fd = C.mwt_so_accept(listener, nil, nil, CLOEXEC)
  return fd >= 0 and fd or nil
end

--- nil when nobody listens
function M.connect(port)
  local fd = C.mwt_so_socket(AF_INET, STREAM_CLOEXEC, 0)
  if C.mwt_so_connect(fd, address(port), 16) == 0 then return fd end
  M.close(fd)
end

function M.listens(port)
  local fd = M.connect(port)
  if fd then M.close(fd) end
  return fd ~= nil
end

function M.no_delay(fd) C.mwt_so_setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, one, 4) end

local buffer = ffi.new "char[65536]"

--- What has come, at most so much; nil when the other side is gone.
function M.read(fd, most)
  local n = tonumber(C.mwt_so_read(fd, buffer, most or 65536))
  return n > 0 and ffi.string(buffer, n) or nil
end

function M.send(fd, text) return tonumber(C.mwt_so_send(fd, text, #text, MSG_NOSIGNAL)) > 0 end

--- Waits until one of the list can be read, at most so long. A set of those that can.
function M.readable(list, ms)
  local polls, ready = ffi.new("mwt_so_pollfd[?]", #list), {}
  for i, fd in ipairs(list) do polls[i - 1].fd, polls[i - 1].events = fd, POLLIN end
  C.mwt_so_poll(polls, #list, ms)
  for i, fd in ipairs(list) do ready[fd] = polls[i - 1].revents ~= 0 or nil end
  return ready
end

return M
