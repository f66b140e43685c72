-- kafka.lua - Kafka in the contract suite: one broker for all cases, topics and groups of its own for each. A topic
-- keeps what was handled, so "what is there" means what no group has settled, by what the groups committed.
local client = require "spec.support.servers.kafka_client"
local ffi = require "ffi"
local kafka = require "spec.support.servers.kafka"

ffi.cdef [[bool kafka_marks_says_done(uint64_t mark, const char *text, size_t len, uint64_t offset);]]

local M = { name = "kafka", outside = true, notes = 0.3 }

local CHANNELS = { "in", "in.dead", "out", "copy", "buried" }
-- These speak of the order of a whole channel, or of keys that Kafka does not see; others have several partitions.
local ONE_PARTITION = { ["order-source"] = true, ["waits-for-consumer"] = true, ["order-own-key"] = true }
local PARTITIONS = 4

function M.url(h)
  h.prefix = ("%s-%d."):format(h.name, math.random(1e9))
  local case = h.case or {}
  h.server = case.server or kafka.shared(h.driver.broker) -- other specs bring their own
  h.partitions = case.partitions or ONE_PARTITION[case.name] and 1 or PARTITIONS
  local topics = {}
  for _, name in ipairs(CHANNELS) do
    topics[h.prefix .. name] = { partitions = name == "in" and h.partitions or 1,
                                 config = name == "in" and case.config or nil }
  end
  for name, wanted in pairs(case.topics or {}) do -- a number of partitions, or as client.create takes it
    topics[h.prefix .. name] = type(wanted) == "table" and wanted or { partitions = wanted }
  end
  if h.server.mock then
    client.mock_topics(h.server.mock, topics)
  else
    client.create(h.server.bootstrap, topics)
  end
  return ("kafka://%s/%s?session.timeout.ms=%d&revoke.drain.ms=1000%s"):format(h.server.bootstrap, h.prefix,
    (case.session or h.server.mock and 6000 or 1500) * h.late, case.options or "")
end

-- What librdkafka's mock cluster cannot show, and why.
local METADATA = "librdkafka's mock cluster keeps no metadata of commits"
local SLOW = "librdkafka's mock cluster needs seconds to notice who comes and goes"
local SMALL = "librdkafka's mock cluster keeps 5 MiB a partition"
local NOT_ON_MOCK = {
  ["ack-crash"] = METADATA, ["attempts-crash"] = METADATA, ["backoff-crash"] = METADATA, ["drain-backoff"] = METADATA,
  ["drain-storm"] = METADATA, ["soak"] = METADATA, ["two-workers"] = METADATA, ["max-age"] = SLOW, ["fence"] = SLOW,
  ["fence-dedupe"] = SLOW, ["any-bytes"] = SMALL,
}

function M.cannot(h, case) return h.server.mock and NOT_ON_MOCK[case.name] or nil end

function M.version() return kafka.shared().kind end

-- The newest broker, for the contract; everything else runs on the oldest that is supported.
local function newest()
  local driver = { name = "kafka-4", broker = kafka.newest }
  function driver.version() return kafka.shared(kafka.newest).kind end
  return setmetatable(driver, { __index = M })
end

local function partitions_of(h, channel) return channel == "in" and h.partitions or 1 end

-- The mock cluster cannot list groups; these are the ones that cases have.
local GROUPS = { "p", "q", "one", "the group" }

local function groups_of(h)
  if not h.server.mock then return client.groups(h.server.bootstrap, h.prefix) end
  local list = {}
  for _, name in ipairs(GROUPS) do
    local committed = client.committed(h.server.bootstrap, h.prefix .. name, h.prefix .. "in", h.partitions)
    for partition = 0, h.partitions - 1 do
      if committed[partition].offset then
        list[#list + 1] = h.prefix .. name
        break
      end
    end
  end
  return list
end

-- What the groups that consume this topic have committed in it.
local function commits_of(h, topic, count)
  local list = {}
  for _, group in ipairs(groups_of(h)) do
    local committed = client.committed(h.server.bootstrap, group, topic, count)
    for partition = 0, count - 1 do
      if committed[partition].offset then
        list[#list + 1] = committed
        break
      end
    end
  end
  return list
end

-- Everything was settled by every group that consumes it; without one, nothing may be there.
function M.is_empty(h, channel)
  local topic, count = h.prefix .. channel, partitions_of(h, channel)
  local commits = commits_of(h, topic, count)
  for partition = 0, count - 1 do
    local low, high = client.ends(h.server.bootstrap, topic, partition)
    if #commits == 0 and high > low then return false end
    for _, committed in ipairs(commits) do
      if high > 0 and (committed[partition].offset or 0) < high then return false end
    end
  end
  return true
end

-- Until a group stands somewhere: from then on it gets what comes.
function M.ready(h)
  local topic = h.prefix .. "in"
  local group = groups_of(h)[1]
  if not group then return false end
  local committed = client.committed(h.server.bootstrap, group, topic, h.partitions)
  for partition = 0, h.partitions - 1 do if not committed[partition].offset then return false end end
  return true
end

-- A position is the partition and the offset behind the message; see drivers/kafka/browse.c.
local function place_of(position)
  local partition, behind = tostring(position):match "^(%d+)%-(%d+)$"
  return tonumber(partition or 0), tonumber(behind or position) - 1
end

-- Of a channel that a group consumes, what that group has not settled; else all of it.
function M.messages(h, channel)
  local list = h.broker:messages(channel)
  local groups = groups_of(h)
  if channel ~= "in" or #groups ~= 1 then return list end
  local committed = client.committed(h.server.bootstrap, groups[1], h.prefix .. channel, h.partitions)
  local left = {}
  for _, m in ipairs(list) do
    local partition, offset = place_of(m.position)
    local c = committed[partition]
    if not ffi.C.kafka_marks_says_done(c.offset or 0, c.metadata, #c.metadata, offset) then left[#left + 1] = m end
  end
  return left
end

M.newest = newest()

return M
