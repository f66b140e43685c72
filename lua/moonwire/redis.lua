--- mw.redis: Redis commands that look blocking and yield the loop. The connection lives in C
--- (runtime/redis/calls.c) and is shared by all handlers of a generation; this file checks what goes out,
--- waits, and makes Lua values of what came back.
local C = require "moonwire.internal.cdef"
local rules = require "moonwire.internal.redis_commands"
local fault = require "moonwire.internal.api.fault"
local ffi = require "ffi"
local wait = require "moonwire.internal.wait"

-- ---- what goes out ----

local held = {} -- luacheck: ignore 241

local function start(self, commands, waiter)
  local all, texts = 0, {}
  for _, command in ipairs(commands) do all = all + command.n end
  local args, lens = ffi.new("const char *[?]", all + 1), ffi.new("size_t[?]", all + 1)
  local counts, at = ffi.new("size_t[?]", #commands + 1), 0
  for i, command in ipairs(commands) do
    counts[i - 1] = command.n
    for k = 1, command.n do
      local text = rules.text_of(command[k])
      texts[at + 1] = text
      args[at], lens[at] = text, #text
      at = at + 1
    end
  end
  held[1] = texts
  local call = C.mw_redis_start_for(wait.vm, self.redis, args, lens, counts, #commands, waiter)
  held[1] = nil
  return call
end

-- ---- what comes back ----

local ReplyError = { __tostring = function(self) return self[1] end }
local text, len, number = ffi.new "const char *[1]", ffi.new "size_t[1]", ffi.new "double[1]"

-- The value at i, and the place behind it.
local function read(call, i)
  local kind = string.char(C.mw_redis_call_value(call, i, text, len, number))
  if kind == "s" then return ffi.string(text[0], len[0]), i + 1 end
  if kind == "i" then return number[0], i + 1 end
  if kind == "n" then return nil, i + 1 end
  if kind == "e" then return setmetatable({ ffi.string(text[0], len[0]) }, ReplyError), i + 1 end
  local list = { n = number[0] }
  i = i + 1
  for k = 1, list.n do list[k], i = read(call, i) end
  return list, i
end

local function is_error(value) return type(value) == "table" and getmetatable(value) == ReplyError end

-- Called by a public function, so that level 3 is the user's line.
local function perform(self, commands, pipelined)
  local refused = rules.problem(commands, pipelined)
  if refused then error("mw.redis: " .. refused, 3) end
  if #commands == 0 then return {} end
  local waiter = wait.begin "mw.redis"
  local call = ffi.gc(start(self, commands, waiter), C.mw_redis_call_free)
  local function release()
    if call then C.mw_redis_call_free(ffi.gc(call, nil)) end
    call = nil
  end
  wait.yield(waiter, release)
  local failed = C.mw_redis_call_error(call)
  if failed ~= nil then
    local why = "mw.redis: " .. ffi.string(failed):gsub("^redis: ", "")
    release()
    error(fault.new { class = "transient", text = why })
  end
  local replies, at = {}, 0
  for i = 1, #commands do replies[i], at = read(call, at) end
  release()
  return replies
end

-- ---- the public side ----

---@class moonwire.redis.Pipeline
local Pipeline = {}

--- Adds a command.
function Pipeline:call(...)
  self.commands[#self.commands + 1] = { n = select("#", ...), ... }
end

local function by_name(call)
  return function(_, name)
    return function(self, ...) return call(self, name, ...) end
  end
end

local pipeline_methods = { __index = function(self, name)
  return rawget(Pipeline, name) or by_name(Pipeline.call)(self, name)
end }

---@class moonwire.redis.Connection
local Connection = {}

--- Sends a command and waits for its answer: a string, a number, nil, or a list (with its length in `n`). A whole
--- number beyond 2^53 comes as a string, because Lua's numbers would round it. An answer that is an error is raised.
---@param name string
---@param ... string|number
---@return any
function Connection:call(name, ...)
  local replies = perform(self, { { n = 1 + select("#", ...), name, ... } }, false)
  if is_error(replies[1]) then error(("mw.redis: %s: %s"):format(name:upper(), tostring(replies[1])), 2) end
  return replies[1]
end

--- Sends several commands in one go: `fn` gets an object that takes commands like this one, and answers nothing. The
--- answers come as a list, in the order of the commands; the first error among them is raised.
---@param fn fun(pipeline: moonwire.redis.Pipeline)
---@return any[]
function Connection:pipeline(fn)
  local p = setmetatable({ commands = {} }, pipeline_methods)
  fn(p)
  local replies = perform(self, p.commands, true)
  for i = 1, #p.commands do
    if is_error(replies[i]) then
      error(("mw.redis: command %d, %s: %s"):format(i, p.commands[i][1]:upper(), tostring(replies[i])), 2)
    end
  end
  replies.n = #p.commands
  return replies
end

local methods = { __index = function(self, name)
  return rawget(Connection, name) or by_name(Connection.call)(self, name)
end }

--- A connection to a Redis server, by its URL: the same URL is the same connection. Nothing is sent before the first
--- command.
---@param url string
---@return moonwire.redis.Connection
return function(url)
  if type(url) ~= "string" then error("mw.redis: expected a URL, such as redis://127.0.0.1:6379", 2) end
  local failure = ffi.new "mw_failure"
  local redis = C.mw_vm_redis(wait.vm, url, failure)
  if redis == nil then error("mw.redis: " .. ffi.string(failure.text), 2) end
  return setmetatable({ redis = redis }, methods)
end
