-- wait.lua - bounded waiting for specs: a monotonic clock, a sleep, and a poll that says what it waited for.
-- Blocks the whole process, so it is for the spec side only. Works under plain luajit too.
local ffi = require "ffi"

-- The asm names keep these declarations from replacing, or clashing with, anyone else's of the same function.
ffi.cdef [[
int mwt_clock_gettime(int id, int64_t *sec_nsec) __asm__("clock_gettime");
int mwt_nanosleep(const int64_t *sec_nsec, int64_t *rest) __asm__("nanosleep");
]]

local C = ffi.C
local CLOCK_REALTIME, CLOCK_MONOTONIC = 0, 1
local POLL = 0.005
local pair = ffi.typeof "int64_t[2]"

local M = {}

local function read_clock(id)
  local t = pair()
  C.mwt_clock_gettime(id, t)
  return tonumber(t[0]) + tonumber(t[1]) / 1e9
end

-- Seconds since an arbitrary start; never goes back.
function M.now() return read_clock(CLOCK_MONOTONIC) end

-- Seconds since 1970, as mw.now in a handler.
function M.wall() return read_clock(CLOCK_REALTIME) end

-- Sleeps the full time: a signal (SIGCHLD, mostly) only makes it go on with the rest.
function M.sleep(seconds)
  if seconds <= 0 then return end
  local whole = math.floor(seconds)
  local t = pair(whole, math.floor((seconds - whole) * 1e9))
  while C.mwt_nanosleep(t, t) ~= 0 do end
end

local function describe(value)
  if type(value) == "string" then return string.format("%q", value) end
  return tostring(value)
end

-- Polls fn until it returns something true and returns that. An error in fn counts as "not yet", so a spec can
-- ask a server that is still starting; the last error or value stands in the message when time is up. `what`: a text,
-- or a function that makes one then.
function M.until_(fn, seconds, what)
  local deadline = M.now() + (seconds or 5)
  while true do
    local ok, value, more = pcall(fn)
    if ok and value then return value, more end
    if M.now() >= deadline then
      local last = ok and describe(value) or ("error: " .. tostring(value))
      if ok and more ~= nil then last = last .. ", " .. describe(more) end
      if type(what) == "function" then what = what() end
      error(string.format("waited %g s for %s; last value: %s", seconds or 5, what or "a condition", last), 2)
    end
    M.sleep(POLL)
  end
end

return M
