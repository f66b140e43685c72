--- The few calls of the operating system that the commands need and Lua does not have. Nothing here blocks.
local ffi = require "ffi"

-- The asm names keep these declarations from clashing with anybody else's of the same function. No struct has a body
-- here: it could not be declared a second time.
ffi.cdef [[
int mwc_sigemptyset(void *set) __asm__("sigemptyset");
int mwc_sigaddset(void *set, int signal) __asm__("sigaddset");
int mwc_sigmask(int how, const void *set, void *old) __asm__("pthread_sigmask");
int mwc_sigtimedwait(const void *set, void *info, const int64_t *sec_nsec) __asm__("sigtimedwait");
int mwc_poll(int32_t *fds, unsigned long count, int timeout_ms) __asm__("poll");
long mwc_read(int fd, void *buffer, size_t size) __asm__("read");
int mwc_mkdir(const char *path, unsigned mode) __asm__("mkdir");
int mwc_symlink(const char *target, const char *path) __asm__("symlink");
char *mwc_realpath(const char *path, char *out) __asm__("realpath");
void *mwc_opendir(const char *path) __asm__("opendir");
int mwc_closedir(void *dir) __asm__("closedir");
int mwc_access(const char *path, int mode) __asm__("access");
int mwc_tcgetpgrp(int fd) __asm__("tcgetpgrp");
int mwc_getpgrp(void) __asm__("getpgrp");
int mwc_tcgetattr(int fd, void *termios) __asm__("tcgetattr");
int mwc_tcsetattr(int fd, int when, const void *termios) __asm__("tcsetattr");
int mwc_ioctl(int fd, unsigned long request, ...) __asm__("ioctl");
char *mwc_strerror(int code) __asm__("strerror");
]]

local C = ffi.C
local M = {}

local SIG_BLOCK, SIG_UNBLOCK, SIGHUP, SIGINT, SIGTERM = 0, 1, 1, 2, 15
local POLLIN, EINTR, EAGAIN, EEXIST = 1, 4, 11, 17
local PATH_MAX = 4096

local function why() return ffi.string(C.mwc_strerror(ffi.errno())) end

-- ---- Ctrl-C ----

local signals = ffi.new "int64_t[32]" -- a sigset_t
C.mwc_sigemptyset(signals)
C.mwc_sigaddset(signals, SIGINT)
C.mwc_sigaddset(signals, SIGTERM)
local at_once = ffi.new "int64_t[2]"

--- From now on INT and TERM wait until they are asked for.
function M.hold_signals() C.mwc_sigmask(SIG_BLOCK, signals, nil) end

--- From now on INT, TERM and HUP wait until app:run takes them.
function M.hold_signals_for_run()
  local set = ffi.new "int64_t[32]"
  C.mwc_sigemptyset(set)
  for _, signal in ipairs { SIGHUP, SIGINT, SIGTERM } do C.mwc_sigaddset(set, signal) end
  C.mwc_sigmask(SIG_BLOCK, set, nil)
end

--- From now on they end the process, as they do by default.
function M.free_signals() C.mwc_sigmask(SIG_UNBLOCK, signals, nil) end

--- Did one come?
---@return boolean
function M.signalled() return C.mwc_sigtimedwait(signals, nil, at_once) > 0 end

-- ---- reading without blocking ----

local pollfd = ffi.new "int32_t[2]" -- the fd; what to wait for in the low half, what came in the high half

--- Can `fd` be read without waiting (its end counts)?
---@return boolean
function M.readable(fd)
  pollfd[0], pollfd[1] = fd, POLLIN
  return C.mwc_poll(pollfd, 1, 0) > 0
end

local CHUNK = 256 * 1024
local buffer

--- What is there now: "" at the end, nil with nothing when a signal came between.
---@return string|nil data, string|nil error
function M.read(fd)
  buffer = buffer or ffi.new("char[?]", CHUNK)
  local n = tonumber(C.mwc_read(fd, buffer, CHUNK))
  if n >= 0 then return ffi.string(buffer, n) end
  local code = ffi.errno()
  if code == EINTR or code == EAGAIN then return nil end
  return nil, why()
end

--- Waits; a signal ends it early.
---@param seconds number
function M.sleep(seconds) C.mwc_poll(nil, 0, math.floor(seconds * 1000)) end

-- ---- the terminal ----

local TIOCGWINSZ, ICANON, ECHO, LFLAG = 0x5413, 2, 8, 3 -- c_lflag is the fourth word of struct termios

--- Keys come one by one and are not shown, until the function that is returned is called; nil where there are none. In
--- the background (`timeout 9 moonwire top`) there are none either: who touches the terminal there is stopped.
---@return fun()|nil restore
function M.single_keys(fd)
  local before, now = ffi.new "uint32_t[64]", ffi.new "uint32_t[64]" -- glibc needs 60 bytes
  if C.mwc_tcgetpgrp(fd) ~= C.mwc_getpgrp() or C.mwc_tcgetattr(fd, before) ~= 0 then return nil end
  ffi.copy(now, before, 256)
  now[LFLAG] = bit.band(now[LFLAG], bit.bnot(ICANON + ECHO))
  C.mwc_tcsetattr(fd, 0, now)
  return function() C.mwc_tcsetattr(fd, 0, before) end
end

--- How many lines the terminal has; nil when it does not say.
---@return integer|nil
function M.lines(fd)
  local size = ffi.new "uint16_t[4]"
  if C.mwc_ioctl(fd, TIOCGWINSZ, size) ~= 0 or size[0] == 0 then return nil end
  return size[0]
end

-- ---- files ----

---@return string|nil path without links and dots; nil when there is nothing
function M.realpath(path)
  local out = ffi.new("char[?]", PATH_MAX + 1)
  if C.mwc_realpath(path, out) == nil then return nil end
  return ffi.string(out)
end

---@return boolean
function M.symlink(target, path) return C.mwc_symlink(target, path) == 0 end

---@return boolean
function M.is_dir(path)
  local dir = C.mwc_opendir(path)
  if dir == nil then return false end
  C.mwc_closedir(dir)
  return true
end

---@return boolean
function M.exists(path) return C.mwc_access(path, 0) == 0 end

--- Makes a folder and those above it; one that exists is fine.
---@return boolean|nil ok, string|nil error
function M.mkdir(path)
  local at = 1
  while at do
    at = path:find("/", at + 1, true)
    local part = at and path:sub(1, at - 1) or path
    if C.mwc_mkdir(part, 493) ~= 0 and ffi.errno() ~= EEXIST then -- 0755
      return nil, ("cannot make the folder %s: %s"):format(part, why())
    end
  end
  if not M.is_dir(path) then return nil, path .. " is not a folder" end
  return true
end

return M
