-- process.lua - child processes, temporary folders, ports and /proc numbers for specs.
--
-- Nothing here may outlive the spec process or wait for ever: every wait has a limit, children get SIGKILL when
-- their parent dies (setpriv --pdeathsig; it takes hold about a millisecond after the start), and kill_all() and
-- cleanup() also run when the Lua state closes.
-- posix_spawn, not fork: fork through FFI would run the JIT's code in a half-copied process.
-- A child's output goes to a memfd instead of a pipe: it can never fill up and block the child, and a grandchild
-- that keeps it open cannot make a reader wait for the end of file. Works under plain luajit too.
local ffi = require "ffi"
local bit = require "bit"
local wait = require "spec.support.wait"

-- The asm names keep these declarations from replacing, or clashing with, anyone else's of the same function.
ffi.cdef [[
int mwt_spawn(int *pid, const char *path, const void *actions, const void *attr, const char *const *argv,
              const char *const *envp) __asm__("posix_spawn");
int mwt_fa_init(void *a) __asm__("posix_spawn_file_actions_init");
int mwt_fa_destroy(void *a) __asm__("posix_spawn_file_actions_destroy");
int mwt_fa_dup2(void *a, int from, int to) __asm__("posix_spawn_file_actions_adddup2");
int mwt_fa_chdir(void *a, const char *path) __asm__("posix_spawn_file_actions_addchdir_np");
int mwt_attr_init(void *a) __asm__("posix_spawnattr_init");
int mwt_attr_destroy(void *a) __asm__("posix_spawnattr_destroy");
int mwt_attr_setflags(void *a, short flags) __asm__("posix_spawnattr_setflags");
int mwt_attr_setmask(void *a, const void *set) __asm__("posix_spawnattr_setsigmask");
int mwt_attr_setdefault(void *a, const void *set) __asm__("posix_spawnattr_setsigdefault");
int mwt_sigemptyset(void *set) __asm__("sigemptyset");
int mwt_sigfillset(void *set) __asm__("sigfillset");
int mwt_waitpid(int pid, int *status, int options) __asm__("waitpid");
int mwt_kill(int pid, int sig) __asm__("kill");
int mwt_getpid(void) __asm__("getpid");
int mwt_open(const char *path, int flags, ...) __asm__("open");
int mwt_close(int fd) __asm__("close");
int mwt_memfd_create(const char *name, unsigned flags) __asm__("memfd_create");
int mwt_fcntl(int fd, int command, ...) __asm__("fcntl");
long mwt_write(int fd, const void *buf, size_t n) __asm__("write");
long mwt_pread(int fd, void *buf, size_t n, int64_t at) __asm__("pread64");
int64_t mwt_lseek(int fd, int64_t at, int whence) __asm__("lseek64");
int mwt_access(const char *path, int mode) __asm__("access");
char *mwt_mkdtemp(char *template_) __asm__("mkdtemp");
char *mwt_realpath(const char *path, char *out) __asm__("realpath");
int mwt_socket(int domain, int type, int protocol) __asm__("socket");
int mwt_bind(int fd, const void *addr, unsigned len) __asm__("bind");
long mwt_sysconf(int name) __asm__("sysconf");
char *mwt_strerror(int e) __asm__("strerror");
extern char **mwt_environ __asm__("environ");
]]

local C = ffi.C
local WNOHANG, ECHILD, SIGKILL = 1, 10, 9
local O_RDONLY, O_WRONLY_APPEND, O_CLOEXEC = 0, 0x441, 0x80000 -- 0x441: write only, create, append
local MFD_CLOEXEC = 1
local F_SETFL, O_RDWR_APPEND = 4, 0x402
local SETSIGDEF, SETSIGMASK = 0x04, 0x08
local X_OK, SEEK_SET, SEEK_END = 1, 0, 2
local SC_CLK_TCK = 2
local DEFAULT_LIMIT = 30
local PORTS_FROM, PORTS_TO = 20000, 32000 -- below the ephemeral range: no outgoing connection takes one

local M = {}

-- busted reloads modules between spec files; what must be killed, removed or not handed out twice has to outlive
-- that, so it stands in the registry of the Lua state.
local function shared_state()
  local registry = debug.getregistry()
  local state = registry["moonwire.spec.process"]
  if not state then
    state = { children = {}, dirs = {}, ports = {} }
    registry["moonwire.spec.process"] = state
    math.randomseed(C.mwt_getpid() * 7919 + math.floor(wait.now() * 1e6) % 2 ^ 31)
  end
  return state
end

local state = shared_state()

local function fail(what, errno) error(what .. ": " .. ffi.string(C.mwt_strerror(errno)), 0) end

local function must(what, result)
  if result < 0 then fail(what, ffi.errno()) end
  return result
end

--- Files ---------------------------------------------------------------------------------------------------------

-- pread leaves the offset alone: the child shares it.
local function read_from(fd, at)
  local parts, size = {}, 65536
  local buf = ffi.new("char[?]", size)
  while true do
    local n = tonumber(C.mwt_pread(fd, buf, size, at))
    if n <= 0 then return table.concat(parts) end
    parts[#parts + 1] = ffi.string(buf, n)
    at = at + n
  end
end

local function write_all(fd, text)
  local at = 0
  while at < #text do
    at = at + tonumber(must("write", C.mwt_write(fd, ffi.cast("const char *", text) + at, #text - at)))
  end
end

local function memfd(name) return must("memfd_create", C.mwt_memfd_create(name, MFD_CLOEXEC)) end

local function open_stdin(text)
  if not text then return must("/dev/null", C.mwt_open("/dev/null", O_RDONLY + O_CLOEXEC)) end
  local fd = memfd "stdin"
  write_all(fd, text)
  C.mwt_lseek(fd, 0, SEEK_SET)
  return fd
end

-- A file is appended to, so that a restarted server keeps one log; `start` is where this run's part begins.
local function open_output(target, name)
  if target == nil or target == "pipe" then
    local fd = memfd(name)
    -- A supervisor and its workers write to it at once; the offset of a memfd is not locked: lines would be lost.
    must("fcntl", C.mwt_fcntl(fd, F_SETFL, ffi.cast("int", O_RDWR_APPEND)))
    return { write_fd = fd, read_fd = fd, start = 0 }
  end
  local fd = must(target, C.mwt_open(target, O_WRONLY_APPEND + O_CLOEXEC, ffi.cast("int", 420))) -- 0644
  local start = tonumber(C.mwt_lseek(fd, 0, SEEK_END))
  return { write_fd = fd, read_fd = must(target, C.mwt_open(target, O_RDONLY + O_CLOEXEC)), start = start }
end

local function close_output(out)
  if not out.read_fd then return end
  out.text = read_from(out.read_fd, out.start)
  C.mwt_close(out.read_fd)
  out.read_fd = nil
end

--- Spawning ------------------------------------------------------------------------------------------------------

local function executable(path) return C.mwt_access(path, X_OK) == 0 end

local function absolute(path)
  local buf = ffi.new "char[4097]" -- PATH_MAX
  return C.mwt_realpath(path, buf) ~= nil and ffi.string(buf) or path
end

-- The program is looked up here, so that a missing one is an error at once, with setpriv in front or not.
function M.which(name)
  if name:find("/", 1, true) then return executable(name) and name or nil end
  for dir in (os.getenv "PATH" or "/usr/bin:/bin"):gmatch "[^:]+" do
    if executable(dir .. "/" .. name) then return dir .. "/" .. name end
  end
end

local function strings(list)
  local array = ffi.new("const char *[?]", #list + 1)
  for i, text in ipairs(list) do array[i - 1] = text end
  return array
end

-- The parent's environment with the caller's changes: a value replaces, false removes.
local function environment(changes)
  local list, taken = {}, {}
  for name, value in pairs(changes or {}) do
    taken[name] = true
    if value then list[#list + 1] = name .. "=" .. tostring(value) end
  end
  local environ, i = C.mwt_environ, 0
  while environ[i] ~= nil do
    local entry = ffi.string(environ[i])
    if not taken[entry:match "^[^=]*"] then list[#list + 1] = entry end
    i = i + 1
  end
  return list
end

local function command(opts)
  local given = opts.argv or (type(opts[1]) == "table" and opts[1]) or opts
  local argv = {}
  for i, arg in ipairs(given) do argv[i] = tostring(arg) end
  if not argv[1] then error("process: no command given", 3) end
  local path = M.which(argv[1])
  if not path then error("process: no such program: " .. argv[1], 3) end
  if opts.cwd then path = absolute(path) end -- or it would be looked up from the child's folder
  argv[1] = path
  local setpriv = M.which "setpriv"
  if not setpriv then return path, argv end
  return setpriv, { "setpriv", "--pdeathsig", "KILL", "--", unpack(argv) }
end

local function actions(opts, stdin, stdout, stderr)
  local a = ffi.new "int64_t[64]" -- glibc needs 80 bytes
  C.mwt_fa_init(a)
  C.mwt_fa_dup2(a, stdin, 0)
  C.mwt_fa_dup2(a, stdout, 1)
  C.mwt_fa_dup2(a, stderr, 2)
  if opts.cwd then C.mwt_fa_chdir(a, opts.cwd) end
  return a
end

-- The child starts with every signal at its default and none blocked, whatever the spec's own loop did to them.
local function attributes()
  local a, set = ffi.new "int64_t[128]", ffi.new "int64_t[32]" -- glibc needs 336 and 128 bytes
  C.mwt_attr_init(a)
  C.mwt_sigemptyset(set)
  C.mwt_attr_setmask(a, set)
  C.mwt_sigfillset(set)
  C.mwt_attr_setdefault(a, set)
  C.mwt_attr_setflags(a, SETSIGDEF + SETSIGMASK)
  return a
end

local Process = {}
Process.__index = Process

-- process.spawn{ {"prog", "arg"}, cwd=, env={NAME=value|false}, stdin=text, stdout=path|"pipe", stderr=path|"pipe" }
-- The command may also stand in `argv` or as plain items. stderr = "stdout" sends both to one place.
function M.spawn(opts)
  local path, argv = command(opts)
  local env = environment(opts.env)
  local stdin = open_stdin(opts.stdin)
  local out = open_output(opts.stdout, "stdout")
  local err = opts.stderr == "stdout" and out or open_output(opts.stderr, "stderr")
  local a, attr, pid = actions(opts, stdin, out.write_fd, err.write_fd), attributes(), ffi.new "int[1]"
  local code = C.mwt_spawn(pid, path, a, attr, strings(argv), strings(env))
  C.mwt_fa_destroy(a)
  C.mwt_attr_destroy(attr)
  C.mwt_close(stdin)
  if out.write_fd ~= out.read_fd then C.mwt_close(out.write_fd) end
  if err ~= out and err.write_fd ~= err.read_fd then C.mwt_close(err.write_fd) end
  if code ~= 0 then
    close_output(out)
    close_output(err)
    fail("process: " .. table.concat(argv, " ") .. (opts.cwd and " in " .. opts.cwd or ""), code)
  end
  local self = setmetatable({ pid = pid[0], command = table.concat(argv, " "), out = out, err = err }, Process)
  state.children[self.pid] = self
  return self
end

local function ended(self, fields)
  for name, value in pairs(fields) do self[name] = value end
  self.over = true
  state.children[self.pid] = nil
  close_output(self.out)
  close_output(self.err)
end

-- Looks without waiting. A child that libev's default loop reaped in this process has an unknown end: "lost".
local function poll(self)
  if self.over then return true end
  local status = ffi.new "int[1]"
  local got = C.mwt_waitpid(self.pid, status, WNOHANG)
  if got == 0 then return false end
  if got < 0 then
    if ffi.errno() ~= ECHILD then return false end
    ended(self, { lost = true })
  elseif bit.band(status[0], 0x7f) == 0 then
    ended(self, { code = bit.band(bit.rshift(status[0], 8), 0xff) })
  else
    ended(self, { signal = bit.band(status[0], 0x7f) })
  end
  return true
end

-- The exit code; or nil, "timeout"; or nil, "signal", number; or nil, "lost" (see poll).
function Process:wait(seconds)
  local deadline, pause = wait.now() + (seconds or DEFAULT_LIMIT), 0.0005
  while not poll(self) do
    if wait.now() >= deadline then return nil, "timeout" end
    wait.sleep(pause)
    pause = math.min(pause * 2, 0.005)
  end
  if self.code then return self.code end
  if self.signal then return nil, "signal", self.signal end
  return nil, "lost"
end

local SIGNALS = { HUP = 1, INT = 2, QUIT = 3, ABRT = 6, KILL = 9, USR1 = 10, SEGV = 11, USR2 = 12, PIPE = 13,
                  TERM = 15, CONT = 18, STOP = 19 }

-- Takes a number or a name ("TERM", the default). Never signals a pid that was already reaped: it may be reused.
function Process:kill(sig)
  if poll(self) then return false end
  local number = type(sig) == "number" and sig or SIGNALS[sig or "TERM"]
  if not number then error("unknown signal: " .. tostring(sig), 2) end
  return C.mwt_kill(self.pid, number) == 0
end

function Process:alive() return not poll(self) end

-- TERM, then KILL when the limit is over; returns what wait() returns.
function Process:stop(seconds)
  self:kill "TERM"
  local code, why, sig = self:wait(seconds or 5)
  if why ~= "timeout" then return code, why, sig end
  self:kill "KILL"
  return self:wait(5)
end

local function output(out)
  if out.read_fd then return read_from(out.read_fd, out.start) end
  return out.text
end

-- What the child wrote so far; for a file, only this run's part.
function Process:stdout() return output(self.out) end
function Process:stderr() return output(self.err) end

-- Runs to the end, at most `timeout` seconds (30), then kills it: { code, signal, timeout, stdout, stderr }.
function M.run(opts)
  local child = M.spawn(opts)
  local _, why = child:wait(opts.timeout)
  if why == "timeout" then
    child:kill(SIGKILL)
    child:wait(5)
  end
  return { code = child.code, signal = child.signal, timeout = why == "timeout", stdout = child:stdout(),
           stderr = child:stderr() }
end

-- Kills every child that is still there, by its pid, and waits for it.
function M.kill_all()
  for _, child in pairs(state.children) do child:kill(SIGKILL) end
  local left = {}
  for pid, child in pairs(state.children) do left[pid] = child end
  for _, child in pairs(left) do child:wait(5) end
end

--- Folders, ports, numbers ---------------------------------------------------------------------------------------

-- A new empty folder under $TMPDIR; cleanup() removes it.
function M.tmpdir()
  local template = (os.getenv "TMPDIR" or "/tmp") .. "/moonwire-spec-XXXXXX"
  local buf = ffi.new("char[?]", #template + 1, template)
  if C.mwt_mkdtemp(buf) == nil then fail("mkdtemp " .. template, ffi.errno()) end
  local dir = ffi.string(buf)
  state.dirs[#state.dirs + 1] = dir
  return dir
end

-- Ends the children first: one of them could still write into a folder.
function M.cleanup()
  M.kill_all()
  local dirs = state.dirs
  state.dirs = {}
  if #dirs > 0 then M.run { "rm", "-rf", "--", unpack(dirs) } end
end

local function port_is_free(port)
  local fd = must("socket", C.mwt_socket(2, 1, 0)) -- AF_INET, SOCK_STREAM
  local addr = ffi.new("uint8_t[16]", { 0, 0, bit.rshift(port, 8), bit.band(port, 255), 127, 0, 0, 1 })
  ffi.cast("uint16_t *", addr)[0] = 2 -- the family, in host order
  local free = C.mwt_bind(fd, addr, 16) == 0
  C.mwt_close(fd)
  return free
end

-- A loopback port that nobody holds and that was not handed out before.
function M.free_port()
  for _ = 1, 1000 do
    local port = math.random(PORTS_FROM, PORTS_TO)
    if not state.ports[port] and port_is_free(port) then
      state.ports[port] = true
      return port
    end
  end
  error(string.format("no free port between %d and %d", PORTS_FROM, PORTS_TO), 2)
end

local function slurp(path)
  local f = io.open(path)
  if not f then return nil end
  local text = f:read "*a"
  f:close()
  return text
end

local function status_bytes(pid, field)
  local text = slurp("/proc/" .. pid .. "/status")
  local kb = text and text:match(field .. ":%s*(%d+) kB")
  return kb and tonumber(kb) * 1024
end

-- Bytes now and at the highest; nil when the process is gone.
function M.rss(pid) return status_bytes(pid, "VmRSS") end
function M.hwm(pid) return status_bytes(pid, "VmHWM") end

-- User plus system seconds of all its threads, without its children; nil when the process is gone.
function M.cpu(pid)
  local text = slurp("/proc/" .. pid .. "/stat")
  local rest = text and text:match "^.*%) (.*)$" -- the name in front may hold spaces and brackets
  if not rest then return nil end
  local fields = {}
  for field in rest:gmatch "%S+" do fields[#fields + 1] = tonumber(field) or 0 end
  return (fields[12] + fields[13]) / tonumber(C.mwt_sysconf(SC_CLK_TCK))
end

-- The last net: runs when the Lua state closes, even if the spec run ended in an error.
if not state.guard then
  state.guard = newproxy(true)
  getmetatable(state.guard).__gc = function() pcall(M.cleanup) end
end

return M
