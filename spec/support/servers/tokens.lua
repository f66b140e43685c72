-- tokens.lua - an identity provider for specs: an HTTP server that gives unsecured JWTs for client credentials. As a
-- program (a process of its own, so that it answers while the spec waits):
--   moonwire lua spec/support/servers/tokens.lua PORT DIR LIFE
-- DIR/control holds a word: give, refuse (401), break (500, no JSON), or hang (accepts and says nothing). DIR/asked
-- gets the body of each request, one a line. As a module: start(LIFE), server:say(word), server:asked().
local ffi = require "ffi"

ffi.cdef [[
int mwt_tk_socket(int domain, int type, int protocol) __asm__("socket");
int mwt_tk_bind(int fd, const void *addr, unsigned len) __asm__("bind");
int mwt_tk_listen(int fd, int backlog) __asm__("listen");
int mwt_tk_accept(int fd, void *addr, void *len, int flags) __asm__("accept4");
int mwt_tk_setsockopt(int fd, int level, int name, const void *value, unsigned len) __asm__("setsockopt");
long mwt_tk_read(int fd, void *buf, size_t n) __asm__("read");
long mwt_tk_send(int fd, const void *buf, size_t n, int flags) __asm__("send");
int mwt_tk_close(int fd) __asm__("close");
]]
local C = ffi.C

local function first_line(path)
  local file = io.open(path)
  local text = file and file:read "*l"
  if file then file:close() end
  return text
end

-- ---- the program ----

local LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

local function base64url(text)
  local out, bits, count = {}, 0, 0
  for i = 1, #text do
    bits, count = bits * 256 + text:byte(i), count + 8
    while count >= 6 do
      local high = math.floor(bits / 2 ^ (count - 6))
      out[#out + 1] = LETTERS:sub(high + 1, high + 1)
      bits, count = bits - high * 2 ^ (count - 6), count - 6
    end
  end
  if count > 0 then
    local last = bits * 2 ^ (6 - count) + 1
    out[#out + 1] = LETTERS:sub(last, last)
  end
  return table.concat(out)
end

local function jwt(life)
  local now = os.time()
  local claims = ('{"sub":"me","iat":%d,"exp":%d}'):format(now, now + life)
  return base64url '{"alg":"none"}' .. "." .. base64url(claims) .. "."
end

local function read_request(fd)
  local buffer, text = ffi.new "char[65536]", ""
  while true do
    local body = text:match "\r\n\r\n(.*)"
    local length = tonumber(text:lower():match "content%-length: (%d+)") or 0
    if body and #body >= length then return body end
    local n = tonumber(C.mwt_tk_read(fd, buffer, 65536))
    if n <= 0 then return nil end
    text = text .. ffi.string(buffer, n)
  end
end

local ANSWERS = {
  give = function(life)
    return "200 OK", ('{"access_token":"%s","token_type":"Bearer","expires_in":%d}'):format(jwt(life), life)
  end,
  refuse = function() return "401 Unauthorized", '{"error":"invalid_client"}' end,
  ["break"] = function() return "500 Internal Server Error", "<html>oops</html>" end,
}

local function serve(port, dir, life)
  local listener, one = C.mwt_tk_socket(2, 0x80001, 0), ffi.new("int[1]", 1)
  C.mwt_tk_setsockopt(listener, 1, 2, one, 4)
  local address = ffi.new "uint8_t[16]"
  ffi.copy(address, string.char(2, 0, math.floor(port / 256), port % 256, 127, 0, 0, 1))
  assert(C.mwt_tk_bind(listener, address, 16) == 0 and C.mwt_tk_listen(listener, 64) == 0, "cannot listen")
  io.stdout:write "listening\n"
  io.stdout:flush()
  local log = assert(io.open(dir .. "/asked", "a"))
  while true do
    local fd = C.mwt_tk_accept(listener, nil, nil, 0x80000)
    local body = fd >= 0 and read_request(fd)
    if body then
      log:write(body, "\n")
      log:flush()
    end
    local answer = ANSWERS[first_line(dir .. "/control")]
    if body and answer then
      local status, text = answer(life)
      text = ("HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s")
        :format(status, #text, text)
      C.mwt_tk_send(fd, text, #text, 0x4000)
    end
    if fd >= 0 and (answer or not body) then C.mwt_tk_close(fd) end -- else it hangs
  end
end

if arg and arg[0] and arg[0]:find "tokens%.lua$" then
  serve(tonumber(arg[1]), arg[2], tonumber(arg[3]))
  return 0
end

-- ---- the module ----

local process = require "spec.support.process"
local wait = require "spec.support.wait"

local M = {}
local Server = {}
Server.__index = Server

function Server:say(text)
  local file = assert(io.open(self.dir .. "/control.new", "w"))
  file:write(text, "\n")
  file:close()
  os.rename(self.dir .. "/control.new", self.dir .. "/control")
end

--- The bodies of the requests so far.
function Server:asked()
  local list = {}
  local file = io.open(self.dir .. "/asked")
  for line in file and file:lines() or function() end do list[#list + 1] = line end
  if file then file:close() end
  return list
end

function Server:stop()
  self.child:kill "KILL"
  self.child:wait(5)
end

--- life: seconds that a token lives
function M.start(life)
  local dir, port = process.tmpdir(), process.free_port()
  local self = setmetatable({ dir = dir, url = ("http://127.0.0.1:%d/token"):format(port) }, Server)
  self:say "give"
  self.child = process.spawn { { os.getenv "MOONWIRE_BIN", "lua", os.getenv "MOONWIRE_ROOT"
    .. "/spec/support/servers/tokens.lua", tostring(port), dir, tostring(life) } }
  wait.until_(function() return self.child:stdout():find "listening" end, 10, "the token server")
  return self
end

return M
