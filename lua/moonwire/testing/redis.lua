--- Answers to the project's Redis commands (mw.redis), given by a spec: a function, or a table of patterns. They queue
--- in C (runtime/redis/calls.c) and are answered here between two steps of the loop.
local C = require "moonwire.internal.cdef"
local ffi = require "ffi"
local patterns = require "moonwire.testing.patterns"

local M = {}

-- ---- commands ----

local len = ffi.new "size_t[1]"

local function read(raw, i)
  local command = {}
  while true do
    local text = C.mw_redis_fake_argument(raw, i, #command, len)
    if text == nil then break end
    command[#command + 1] = ffi.string(text, len[0])
  end
  command[1] = command[1]:upper()
  return command
end

-- ---- patterns: "GET user:*", "INCR" ----

local function matcher(key)
  local pattern = patterns.pattern(key)
  local whole, begin = "^" .. pattern .. "$", "^" .. pattern .. " "
  return function(command)
    local line = table.concat(command, " ")
    return line:find(whole) ~= nil or line:find(begin) ~= nil
  end
end

local function each(answer) return type(answer) == "table" and answer.each or nil end

local function by_pattern(answers)
  local choose = patterns.choose(answers, matcher, each, 'redis: expected a table of "COMMAND arguments" = answer')
  return function(command)
    local found, answer = choose(command)
    if not found then return { unexpected = table.concat(command, " ") } end
    return answer
  end
end

---@param answers fun(command: string[]): any|table<string, any>
function M.new(answers)
  local answer = answers
  if type(answers) == "table" then
    answer = by_pattern(answers)
  elseif type(answers) ~= "function" then
    error(("redis: expected a function or a table, got a %s"):format(type(answers)), 3)
  end
  return { answer = answer, commands = {} }
end

-- ---- answers, as a server would write them ----

local function encode(out, value)
  local kind = type(value)
  if value == nil then
    out[#out + 1] = "$-1\r\n"
  elseif value == true then
    out[#out + 1] = "+OK\r\n"
  elseif kind == "number" and value % 1 == 0 then
    out[#out + 1] = (":%d\r\n"):format(value)
  elseif kind == "string" or kind == "number" then
    local text = tostring(value)
    out[#out + 1] = ("$%d\r\n%s\r\n"):format(#text, text)
  elseif kind == "table" and value.error then
    out[#out + 1] = ("-%s\r\n"):format((tostring(value.error):gsub("[\r\n]", " ")))
  elseif kind == "table" then
    local n = value.n or #value
    out[#out + 1] = ("*%d\r\n"):format(n)
    for i = 1, n do encode(out, value[i]) end
  else
    error(("redis: an answer cannot be a %s"):format(kind), 0)
  end
end

local function traced(err) return type(err) == "table" and err or debug.traceback(tostring(err), 2) end

local function one(fake, raw)
  local out, problem, down, delay = {}, nil, nil, 0
  for i = 0, tonumber(C.mw_redis_fake_commands(raw)) - 1 do
    local command = read(raw, i)
    fake.commands[#fake.commands + 1] = command
    local ok, answer = xpcall(function() return fake.answer(command) end, traced)
    if ok and type(answer) == "table" then
      if answer.unexpected then ok, answer = false, "unexpected Redis command: " .. answer.unexpected end
      if ok and answer.down then down = answer.down end
      if ok and answer.delay then answer, delay = answer.value, answer.delay end
    end
    if ok and not down then ok, answer = pcall(encode, out, answer) end
    if not ok then problem = problem or answer end
  end
  if problem then
    C.mw_redis_fake_fail(raw, type(problem) == "string" and problem:match "^[^\n]*" or "the fake failed")
  elseif down then
    C.mw_redis_fake_fail(raw, "redis: " .. tostring(down))
  else
    local text = table.concat(out)
    C.mw_redis_fake_answer(raw, text, #text, math.floor(delay * 1000 + 0.5))
  end
  return problem
end

--- Answers what waits.
---@return any problem the first one: what the spec did not foresee
function M.serve(fake)
  local first
  while true do
    local raw = C.mw_redis_fake_next()
    if raw == nil then return first end
    local problem = one(fake, raw)
    first = first or problem
  end
end

return M
