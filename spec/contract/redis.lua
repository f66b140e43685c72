-- redis.lua - Redis Streams in the contract: one server for the run, a database for each case. A stream keeps what was
-- acked, so "empty" means that no group has anything left of it.
local clock = require "spec.support.wait"
local redis = require "spec.support.servers.redis"

local function database(server, h, number)
  h.server, h.db = server, number
  return number
end

local last = 0

local function next_database()
  last = last + 1
  return last
end

-- Commands on the case's database.
local function call(h, ...)
  h.server:call("SELECT", h.db)
  return h.server:call(...)
end

local function left_for(h, channel, group, left)
  local at = "-"
  repeat
    local rows = call(h, "XPENDING", channel, group.name, at, "+", 1000)
    for _, row in ipairs(rows or {}) do left[row[1]], at = true, "(" .. row[1] end
  until not rows or #rows < 1000
  at = "(" .. group["last-delivered-id"]
  repeat
    local entries = call(h, "XRANGE", channel, at, "+", "COUNT", 1000)
    for _, entry in ipairs(entries) do left[entry[1]], at = true, "(" .. entry[1] end
  until #entries < 1000
end

local function groups_of(h, channel)
  local list = {}
  for i, group in ipairs(call(h, "XINFO", "GROUPS", channel) or {}) do list[i] = redis.fields(group) end
  return list
end

-- Ids of what some group has not settled; nil when there is no group.
local function unsettled(h, channel)
  local groups = groups_of(h, channel)
  if #groups == 0 then return nil end
  local left = {}
  for _, group in ipairs(groups) do left_for(h, channel, group, left) end
  return left
end

local function delayed(h, channel) return call(h, "ZCARD", ("{%s}:mw:delayed"):format(channel)) end

-- No memory for anything that is written, for a while: publishes and settlements with publishes are refused. How many
-- that are is not for us to say; those that look at the channel end it.
local REFUSAL = 0.4

local function refuse(h)
  h.server:call("CONFIG", "SET", "maxmemory", "1")
  h.refused_until = clock.now() + REFUSAL
end

local function end_refusal(h)
  if not h.refused_until or clock.now() < h.refused_until then return end
  h.server:call("CONFIG", "SET", "maxmemory", "0")
  h.refused_until = nil
end

local function is_empty(h, channel)
  end_refusal(h)
  if delayed(h, channel) > 0 then return false end
  local groups = groups_of(h, channel)
  if #groups == 0 then return call(h, "XLEN", channel) == 0 end
  for _, group in ipairs(groups) do
    if group.pending > 0 then return false end
    if #call(h, "XRANGE", channel, "(" .. group["last-delivered-id"], "+", "COUNT", 1) > 0 then return false end
  end
  return true
end

local function messages(h, channel)
  end_refusal(h)
  local left, list = unsettled(h, channel), {}
  for _, message in ipairs(h.broker:messages(channel)) do
    if not left or left[message.position] then list[#list + 1] = message end
  end
  for _ = 1, delayed(h, channel) do list[#list + 1] = { due = 0 } end
  return list
end

local function ready(h)
  local group = groups_of(h, "in")[1]
  return group ~= nil
end

local function entry(fields)
  fields.outside = true
  fields.is_empty, fields.messages, fields.ready, fields.refuse = is_empty, messages, ready, refuse
  return fields
end

return {
  plain = entry {
    name = "redis",
    url = function(h)
      local server = redis.shared()
      return ("redis://127.0.0.1:%d/%d"):format(server.port, database(server, h, next_database()))
    end,
    version = function() return "Redis " .. redis.shared():version() end,
  },
  tls = entry {
    name = "redis-tls",
    url = function(h)
      local server = redis.shared { tls = true }
      local number = database(server, h, next_database())
      return ("rediss://localhost:%d/%d?ca=%s/ca.crt"):format(server.port, number, server.dir)
    end,
    version = function() return "Redis " .. redis.shared({ tls = true }):version() .. ", TLS" end,
  },
}
