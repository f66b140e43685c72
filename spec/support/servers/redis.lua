-- redis.lua - real redis-server processes for specs, each on a free port with a folder of its own, stopped by its pid;
-- and a small blocking client to look at them from outside.
local ffi = require "ffi"
local process = require "spec.support.process"
local wait = require "spec.support.wait"

ffi.cdef [[
int mwt_connect(int fd, const void *addr, unsigned len) __asm__("connect");
long mwt_send(int fd, const void *buf, size_t n, int flags) __asm__("send");
long mwt_recv(int fd, void *buf, size_t n, int flags) __asm__("recv");
int mwt_setsockopt(int fd, int level, int name, const void *value, unsigned len) __asm__("setsockopt");
]]

local M = {}

--- The client --------------------------------------------------------------------------------------------------------

local Client = {}
Client.__index = Client
local SECONDS, EINTR = 20, 4

-- where: a port, or the path of a Unix socket
function M.connect(where)
  local port = tonumber(where)
  local fd = ffi.C.mwt_socket(port and 2 or 1, 0x80001, 0) -- AF_INET or AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC
  assert(fd >= 0, "no socket")
  local address = ffi.new "uint8_t[110]"
  if port then
    ffi.copy(address, string.char(2, 0, math.floor(port / 256), port % 256, 127, 0, 0, 1))
  else
    ffi.copy(address, "\1\0" .. where)
  end
  if ffi.C.mwt_connect(fd, address, port and 16 or 110) ~= 0 then
    ffi.C.mwt_close(fd)
    return nil, "no connection to " .. where
  end
  ffi.C.mwt_setsockopt(fd, 1, 20, ffi.new("int64_t[2]", SECONDS, 0), 16) -- SO_RCVTIMEO
  return setmetatable({ fd = fd, input = "" }, Client)
end

function Client:close()
  if self.fd then ffi.C.mwt_close(self.fd) end
  self.fd = nil
end

local buffer = ffi.new "char[65536]"

function Client:more()
  local n
  repeat n = tonumber(ffi.C.mwt_recv(self.fd, buffer, 65536, 0)) until n >= 0 or ffi.errno() ~= EINTR
  if n <= 0 then error("redis did not answer", 0) end
  self.input = self.input .. ffi.string(buffer, n)
end

function Client:line()
  while true do
    local line, after = self.input:match "^(.-)\r\n()"
    if line then
      self.input = self.input:sub(after)
      return line
    end
    self:more()
  end
end

local ERROR = {}

function Client:reply()
  local line = self:line()
  local kind, rest = line:sub(1, 1), line:sub(2)
  if kind == "+" then return rest end
  if kind == "-" then return setmetatable({ rest }, ERROR) end
  if kind == ":" then return tonumber(rest) end
  local n = tonumber(rest)
  if n < 0 then return nil end
  if kind == "$" then
    while #self.input < n + 2 do self:more() end
    local text = self.input:sub(1, n)
    self.input = self.input:sub(n + 3)
    return text
  end
  local list = { n = n }
  for i = 1, n do list[i] = self:reply() end
  return list
end

-- What the server answers; nil, text for an error.
function Client:call(...)
  local parts = { ("*%d\r\n"):format(select("#", ...)) }
  for i = 1, select("#", ...) do
    local text = tostring((select(i, ...)))
    parts[#parts + 1] = ("$%d\r\n%s\r\n"):format(#text, text)
  end
  local out = table.concat(parts)
  ffi.C.mwt_send(self.fd, out, #out, 0x4000) -- MSG_NOSIGNAL
  local reply = self:reply()
  if getmetatable(reply) == ERROR then return nil, reply[1] end
  return reply
end

-- A flat list of names and values as a table.
function M.fields(list)
  local map = {}
  for i = 1, list.n, 2 do map[list[i]] = list[i + 1] end
  return map
end

--- Servers -----------------------------------------------------------------------------------------------------------

local Server = {}
Server.__index = Server

local function certificates(dir)
  local script = [[
    set -e
    cd "$1"
    openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj "/CN=spec CA" -keyout ca.key -out ca.crt
    openssl req -newkey rsa:2048 -nodes -subj "/CN=localhost" -keyout server.key -out server.csr
    printf 'subjectAltName=DNS:localhost,IP:127.0.0.1\n' > server.ext
    openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile server.ext \
      -out server.crt
  ]]
  local made = process.run { { "sh", "-c", script, "sh", dir }, timeout = 60 }
  assert(made.code == 0, made.stderr)
end

function Server:arguments()
  local list = { "redis-server", "--bind", "127.0.0.1", "--dir", self.dir, "--save", "", "--databases", "1024",
                 "--appendonly", "yes", "--appendfsync", "always", "--daemonize", "no" }
  local function add(...) for _, x in ipairs { ... } do list[#list + 1] = x end end
  if self.tls then
    add("--port", "0", "--tls-port", tostring(self.port), "--tls-cert-file", self.dir .. "/server.crt",
      "--tls-key-file", self.dir .. "/server.key",
      "--tls-ca-cert-file", self.dir .. "/ca.crt", "--tls-auth-clients", "no")
  else
    add("--port", tostring(self.port))
  end
  add("--unixsocket", self.socket)
  add(unpack(self.extra))
  return list
end

local function answers(self)
  local client = M.connect(self.socket)
  if not client then return false end
  local pong = client:call "PING"
  client:close()
  return pong == "PONG"
end

function Server:start()
  self.child = process.spawn { self:arguments(), stdout = self.dir .. "/log", stderr = self.dir .. "/log" }
  wait.until_(function() return answers(self) or not self.child:alive() end, 20, "redis-server")
  assert(self.child:alive(), "redis-server did not start; see " .. self.dir .. "/log")
  return self
end

function Server:kill(signal)
  self.child:kill(signal or "KILL")
  self.child:wait(10)
  if self.client then self.client:close() end
  self.client = nil
end

function Server:stop() self:kill "TERM" end

-- A command, on a connection that is made anew when it was lost.
function Server:call(...)
  if self.client then
    local ok, reply, err = pcall(self.client.call, self.client, ...)
    if ok then return reply, err end
    self.client:close()
    self.client = nil
  end
  self.client = assert(M.connect(self.socket))
  return self.client:call(...)
end

function Server:version() return self:call("INFO", "server"):match "redis_version:([%d.]+)" end

-- options: { tls = true, port =, extra = { "--requirepass", "x" } }
function M.start(options)
  options = options or {}
  local dir = process.tmpdir()
  local self = setmetatable({ dir = dir, port = options.port or process.free_port(), tls = options.tls,
                              extra = options.extra or {}, socket = dir .. "/redis.sock" }, Server)
  if self.tls then certificates(dir) end
  return self:start()
end

local shared = {}

-- One server for the whole run.
function M.shared(options)
  local name = options and options.tls and "tls" or "plain"
  shared[name] = shared[name] or M.start(options)
  return shared[name]
end

return M
