-- tokens.lua - an identity provider for specs: an HTTP server that gives unsecured JWTs for client credentials. As a
-- program (a process of its own, so that it answers while the spec waits):
--   moonwire lua spec/support/servers/tokens.lua PORT DIR LIFE
-- DIR/control holds a word: give, refuse (401), break (500, no JSON), or hang (accepts and says nothing). DIR/asked
-- gets the body of each request, one a line. As a module: start(LIFE), server:say(word), server:asked().
local program = arg and arg[0] and arg[0]:match "^(.*)/spec/support/servers/tokens%.lua$"
if program then package.path = program .. "/?.lua;" .. package.path end
local jwt = require "spec.support.jwt"
local sockets = require "spec.support.sockets"

local function first_line(path)
  local file = io.open(path)
  local text = file and file:read "*l"
  if file then file:close() end
  return text
end

-- ---- the program ----

local function read_request(fd)
  local text = ""
  while true do
    local body = text:match "\r\n\r\n(.*)"
    local length = tonumber(text:lower():match "content%-length: (%d+)") or 0
    if body and #body >= length then return body end
    local more = sockets.read(fd)
    if not more then return nil end
    text = text .. more
  end
end

local ANSWERS = {
  give = function(life)
    return "200 OK", ('{"access_token":"%s","token_type":"Bearer","expires_in":%d}'):format(jwt(os.time(), life), life)
  end,
  refuse = function() return "401 Unauthorized", '{"error":"invalid_client"}' end,
  ["break"] = function() return "500 Internal Server Error", "<html>oops</html>" end,
}

local function serve(port, dir, life)
  local listener = sockets.listen(port)
  io.stdout:write "listening\n"
  io.stdout:flush()
  local log = assert(io.open(dir .. "/asked", "a"))
  while true do
    local fd = sockets.accept(listener)
    local body = fd and read_request(fd)
    if body then
      log:write(body, "\n")
      log:flush()
    end
    local answer = ANSWERS[first_line(dir .. "/control")]
    if body and answer then
      local status, text = answer(life)
      text = ("HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s")
        :format(status, #text, text)
      sockets.send(fd, text)
    end
    if fd and (answer or not body) then sockets.close(fd) end -- else it hangs
  end
end

if program then
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
