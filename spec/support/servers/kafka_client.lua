-- kafka_client.lua - what specs ask a Kafka broker directly, past our driver: topics, ends, commits. Blocks.
local ffi = require "ffi"
local wait = require "spec.support.wait"

ffi.cdef [[
typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_op_s rd_kafka_event_t;
typedef struct rd_kafka_NewTopic_s rd_kafka_NewTopic_t;
typedef struct rd_kafka_AdminOptions_s rd_kafka_AdminOptions_t;
typedef struct rd_kafka_topic_result_s rd_kafka_topic_result_t;
typedef struct rd_kafka_mock_cluster_s rd_kafka_mock_cluster_t;
typedef struct mwt_rd_partition {
  char *topic; int32_t partition; int64_t offset; void *metadata; size_t metadata_size; void *opaque; int err;
  void *private_;
} mwt_rd_partition;
typedef struct mwt_rd_list { int cnt; int size; mwt_rd_partition *elems; } mwt_rd_list;
typedef struct mwt_rd_meta_partition { int32_t id; int err; int32_t leader; int replica_cnt; int32_t *replicas;
  int isr_cnt; int32_t *isrs; } mwt_rd_meta_partition;
typedef struct mwt_rd_meta_topic { char *topic; int partition_cnt; mwt_rd_meta_partition *partitions; int err; }
  mwt_rd_meta_topic;
typedef struct mwt_rd_metadata { int broker_cnt; void *brokers; int topic_cnt; mwt_rd_meta_topic *topics;
  int32_t orig_broker_id; char *orig_broker_name; } mwt_rd_metadata;
typedef struct mwt_rd_group { struct { int32_t id; char *host; int port; } broker; char *group; int err; char *state;
  char *protocol_type; char *protocol; void *members; int member_cnt; } mwt_rd_group;
typedef struct mwt_rd_groups { mwt_rd_group *groups; int group_cnt; } mwt_rd_groups;

rd_kafka_conf_t *rd_kafka_conf_new(void);
int rd_kafka_conf_set(rd_kafka_conf_t *conf, const char *name, const char *value, char *errstr, size_t size);
rd_kafka_t *rd_kafka_new(int type, rd_kafka_conf_t *conf, char *errstr, size_t size);
void rd_kafka_destroy(rd_kafka_t *rk);
const char *rd_kafka_err2str(int err);
const char *rd_kafka_version_str(void);
int mwt_rd_metadata_get(rd_kafka_t *rk, int all, void *topic, const mwt_rd_metadata **out, int timeout_ms)
  __asm__("rd_kafka_metadata");
void mwt_rd_metadata_destroy(const mwt_rd_metadata *m) __asm__("rd_kafka_metadata_destroy");
int rd_kafka_query_watermark_offsets(rd_kafka_t *rk, const char *topic, int32_t partition, int64_t *low,
  int64_t *high, int timeout_ms);
mwt_rd_list *mwt_rd_list_new(int size) __asm__("rd_kafka_topic_partition_list_new");
void mwt_rd_list_destroy(mwt_rd_list *l) __asm__("rd_kafka_topic_partition_list_destroy");
mwt_rd_partition *mwt_rd_list_add(mwt_rd_list *l, const char *topic, int32_t partition)
  __asm__("rd_kafka_topic_partition_list_add");
void *rd_kafka_ListConsumerGroupOffsets_new(const char *group, const mwt_rd_list *l);
void rd_kafka_ListConsumerGroupOffsets_destroy(void *request);
void rd_kafka_ListConsumerGroupOffsets(rd_kafka_t *rk, void **requests, size_t n, const rd_kafka_AdminOptions_t *o,
  rd_kafka_queue_t *q);
const void *rd_kafka_event_ListConsumerGroupOffsets_result(rd_kafka_event_t *e);
const void **rd_kafka_ListConsumerGroupOffsets_result_groups(const void *result, size_t *n);
int rd_kafka_error_code(const void *error);
const void *rd_kafka_group_result_error(const void *group);
const mwt_rd_list *rd_kafka_group_result_partitions(const void *group);
int mwt_rd_list_groups(rd_kafka_t *rk, const char *group, const mwt_rd_groups **out, int timeout_ms)
  __asm__("rd_kafka_list_groups");
void mwt_rd_groups_destroy(const mwt_rd_groups *g) __asm__("rd_kafka_group_list_destroy");
rd_kafka_queue_t *rd_kafka_queue_new(rd_kafka_t *rk);
void rd_kafka_queue_destroy(rd_kafka_queue_t *q);
rd_kafka_event_t *rd_kafka_queue_poll(rd_kafka_queue_t *q, int timeout_ms);
void rd_kafka_event_destroy(rd_kafka_event_t *e);
int rd_kafka_event_error(rd_kafka_event_t *e);
const void *rd_kafka_event_CreateTopics_result(rd_kafka_event_t *e);
const rd_kafka_topic_result_t **rd_kafka_CreateTopics_result_topics(const void *result, size_t *n);
int rd_kafka_topic_result_error(const rd_kafka_topic_result_t *r);
rd_kafka_NewTopic_t *rd_kafka_NewTopic_new(const char *topic, int partitions, int replication, char *errstr, size_t n);
void rd_kafka_NewTopic_destroy(rd_kafka_NewTopic_t *t);
int rd_kafka_NewTopic_set_config(rd_kafka_NewTopic_t *t, const char *name, const char *value);
void *rd_kafka_NewPartitions_new(const char *topic, size_t total, char *errstr, size_t n);
void rd_kafka_NewPartitions_destroy(void *p);
void rd_kafka_CreatePartitions(rd_kafka_t *rk, void **list, size_t n, const rd_kafka_AdminOptions_t *o,
  rd_kafka_queue_t *q);
void rd_kafka_CreateTopics(rd_kafka_t *rk, rd_kafka_NewTopic_t **topics, size_t n, const rd_kafka_AdminOptions_t *o,
  rd_kafka_queue_t *q);
void *rd_kafka_DeleteTopic_new(const char *topic);
void rd_kafka_DeleteTopic_destroy(void *t);
void rd_kafka_DeleteTopics(rd_kafka_t *rk, void **list, size_t n, const rd_kafka_AdminOptions_t *o,
  rd_kafka_queue_t *q);
void *rd_kafka_AclBinding_new(int resource, const char *name, int pattern, const char *principal, const char *host,
  int operation, int permission, char *errstr, size_t n);
void rd_kafka_AclBinding_destroy(void *acl);
void rd_kafka_CreateAcls(rd_kafka_t *rk, void **list, size_t n, const rd_kafka_AdminOptions_t *o, rd_kafka_queue_t *q);
rd_kafka_mock_cluster_t *rd_kafka_mock_cluster_new(rd_kafka_t *rk, int brokers);
const char *rd_kafka_mock_cluster_bootstraps(const rd_kafka_mock_cluster_t *c);
int rd_kafka_mock_broker_set_down(rd_kafka_mock_cluster_t *c, int32_t broker);
int rd_kafka_mock_broker_set_up(rd_kafka_mock_cluster_t *c, int32_t broker);
int rd_kafka_mock_broker_set_rtt(rd_kafka_mock_cluster_t *c, int32_t broker, int ms);
int rd_kafka_mock_topic_create(rd_kafka_mock_cluster_t *c, const char *topic, int partitions, int replication);
void rd_kafka_mock_push_request_errors_array(rd_kafka_mock_cluster_t *c, int16_t api, size_t n, const int *errors);
]]

local C = ffi.C
local TIMEOUT = 10000
local CONSUMER, PRODUCER = 1, 0
local TOPIC_EXISTS = 36

local M = {}

local function check(what, err)
  if err ~= 0 then error(what .. ": " .. ffi.string(C.rd_kafka_err2str(err)), 2) end
end

local function handle(kind, properties)
  local conf, text = C.rd_kafka_conf_new(), ffi.new "char[512]"
  for name, value in pairs(properties) do
    if C.rd_kafka_conf_set(conf, name, tostring(value), text, 512) ~= 0 then error(ffi.string(text), 2) end
  end
  local rk = C.rd_kafka_new(kind, conf, text, 512)
  if rk == nil then error(ffi.string(text), 2) end
  return rk
end

-- One handle per broker, for the life of the process: making one costs more than asking it.
local handles = {}

local function of(bootstrap)
  handles[bootstrap] = handles[bootstrap] or handle(CONSUMER, {
    ["bootstrap.servers"] = bootstrap, ["group.id"] = "specs", ["log_level"] = 0, ["reconnect.backoff.max.ms"] = 200,
  })
  return handles[bootstrap]
end

local function metadata(bootstrap)
  local out = ffi.new "const mwt_rd_metadata *[1]"
  local err = C.mwt_rd_metadata_get(of(bootstrap), 1, nil, out, TIMEOUT)
  if err ~= 0 then return nil, err end
  return out[0]
end

function M.answers(bootstrap)
  local rk = handle(CONSUMER, { ["bootstrap.servers"] = bootstrap, ["log_level"] = 0 })
  local out = ffi.new "const mwt_rd_metadata *[1]"
  local good = C.mwt_rd_metadata_get(rk, 1, nil, out, 500) == 0
  if good then
    good = out[0].broker_cnt > 0
    C.mwt_rd_metadata_destroy(out[0])
  end
  C.rd_kafka_destroy(rk)
  return good
end

--- { [topic] = number of partitions }
function M.topics(bootstrap)
  local found, err = metadata(bootstrap)
  if not found then check("metadata", err) end
  local list = {}
  for i = 0, found.topic_cnt - 1 do
    list[ffi.string(found.topics[i].topic)] = found.topics[i].partition_cnt
  end
  C.mwt_rd_metadata_destroy(found)
  return list
end

--- topics: { [name] = { partitions =, config = { … } } }; those that exist are left as they are.
function M.create(bootstrap, topics)
  local rk, text = of(bootstrap), ffi.new "char[512]"
  local names = {}
  for name in pairs(topics) do names[#names + 1] = name end
  local list = ffi.new("rd_kafka_NewTopic_t *[?]", #names)
  for i, name in ipairs(names) do
    list[i - 1] = C.rd_kafka_NewTopic_new(name, topics[name].partitions or 1, 1, text, 512)
    if list[i - 1] == nil then error(ffi.string(text), 2) end
    for key, value in pairs(topics[name].config or {}) do
      C.rd_kafka_NewTopic_set_config(list[i - 1], key, tostring(value))
    end
  end
  local q = C.rd_kafka_queue_new(rk)
  C.rd_kafka_CreateTopics(rk, list, #names, nil, q)
  local event = C.rd_kafka_queue_poll(q, 30000)
  assert(event ~= nil, "CreateTopics was not answered")
  check("CreateTopics", C.rd_kafka_event_error(event))
  local count = ffi.new "size_t[1]"
  local results = C.rd_kafka_CreateTopics_result_topics(C.rd_kafka_event_CreateTopics_result(event), count)
  for i = 0, tonumber(count[0]) - 1 do
    local err = C.rd_kafka_topic_result_error(results[i])
    if err ~= TOPIC_EXISTS then check("CreateTopics", err) end
  end
  C.rd_kafka_event_destroy(event)
  C.rd_kafka_queue_destroy(q)
  for i = 0, #names - 1 do C.rd_kafka_NewTopic_destroy(list[i]) end
  wait.until_(function() -- the controller knows them; the broker learns of them in a moment
    local known = M.topics(bootstrap)
    for _, name in ipairs(names) do if not known[name] then return false, name end end
    return true
  end, 20, "the topics to be known")
end

--- Makes the topic have so many partitions.
function M.add_partitions(bootstrap, topic, total)
  local rk, text = of(bootstrap), ffi.new "char[512]"
  local list = ffi.new("void *[1]", { C.rd_kafka_NewPartitions_new(topic, total, text, 512) })
  local q = C.rd_kafka_queue_new(rk)
  C.rd_kafka_CreatePartitions(rk, list, 1, nil, q)
  local event = C.rd_kafka_queue_poll(q, 30000)
  assert(event ~= nil, "CreatePartitions was not answered")
  check("CreatePartitions", C.rd_kafka_event_error(event))
  C.rd_kafka_event_destroy(event)
  C.rd_kafka_queue_destroy(q)
  C.rd_kafka_NewPartitions_destroy(list[0])
  wait.until_(function() return M.topics(bootstrap)[topic] == total end, 20, "the new partitions")
end

-- Sends a request of the administration and waits for its answer.
local function ask(rk, what, send)
  local q = C.rd_kafka_queue_new(rk)
  send(q)
  local event = C.rd_kafka_queue_poll(q, 30000)
  assert(event ~= nil, what .. " was not answered")
  check(what, C.rd_kafka_event_error(event))
  C.rd_kafka_event_destroy(event)
  C.rd_kafka_queue_destroy(q)
end

function M.delete(bootstrap, topic)
  local rk = of(bootstrap)
  local list = ffi.new("void *[1]", { C.rd_kafka_DeleteTopic_new(topic) })
  ask(rk, "DeleteTopics", function(q) C.rd_kafka_DeleteTopics(rk, list, 1, nil, q) end)
  C.rd_kafka_DeleteTopic_destroy(list[0])
  wait.until_(function() return not M.topics(bootstrap)[topic] end, 20, "the topic to be gone")
end

local RESOURCES = { topic = 2, group = 3 }
local OPERATIONS = { all = 2, read = 3, write = 4, create = 5, describe = 8 }
local PERMISSIONS = { deny = 2, allow = 3 }
local LITERAL, PREFIXED = 3, 4

--- M.permit(bootstrap, "allow", "User:me", "topic", "read", "orders"); a name that ends with * is a prefix.
function M.permit(bootstrap, permission, principal, resource, operation, name)
  local rk, text = of(bootstrap), ffi.new "char[512]"
  local prefix = name:match "^(.+)%*$"
  local acl = C.rd_kafka_AclBinding_new(RESOURCES[resource], prefix or name, prefix and PREFIXED or LITERAL, principal,
    "*", OPERATIONS[operation], PERMISSIONS[permission], text, 512)
  if acl == nil then error(ffi.string(text), 2) end
  local list = ffi.new("void *[1]", { acl })
  ask(rk, "CreateAcls", function(q) C.rd_kafka_CreateAcls(rk, list, 1, nil, q) end)
  C.rd_kafka_AclBinding_destroy(acl)
end

--- The first offset and the one after the last.
function M.ends(bootstrap, topic, partition)
  local low, high = ffi.new "int64_t[1]", ffi.new "int64_t[1]"
  check("watermarks of " .. topic, C.rd_kafka_query_watermark_offsets(of(bootstrap), topic, partition, low, high,
    TIMEOUT))
  return tonumber(low[0]), tonumber(high[0])
end

--- What a group committed: { [partition] = { offset = (nil: nothing), metadata = } }
function M.committed(bootstrap, group, topic, partitions)
  local rk, list = of(bootstrap), C.mwt_rd_list_new(partitions)
  for i = 0, partitions - 1 do C.mwt_rd_list_add(list, topic, i) end
  local request = ffi.new("void *[1]", { C.rd_kafka_ListConsumerGroupOffsets_new(group, list) })
  local q = C.rd_kafka_queue_new(rk)
  C.rd_kafka_ListConsumerGroupOffsets(rk, request, 1, nil, q)
  local event = C.rd_kafka_queue_poll(q, 30000)
  C.rd_kafka_ListConsumerGroupOffsets_destroy(request[0])
  C.mwt_rd_list_destroy(list)
  C.rd_kafka_queue_destroy(q)
  assert(event ~= nil, "ListConsumerGroupOffsets was not answered")
  check("commits of " .. group, C.rd_kafka_event_error(event))
  local count, found = ffi.new "size_t[1]", {}
  local groups = C.rd_kafka_ListConsumerGroupOffsets_result_groups(
    C.rd_kafka_event_ListConsumerGroupOffsets_result(event), count)
  local failed = C.rd_kafka_group_result_error(groups[0])
  if failed ~= nil then check("commits of " .. group, C.rd_kafka_error_code(failed)) end
  local result = C.rd_kafka_group_result_partitions(groups[0])
  for i = 0, result.cnt - 1 do
    local p = result.elems[i]
    found[p.partition] = { offset = p.offset >= 0 and tonumber(p.offset) or nil,
                           metadata = p.metadata ~= nil and ffi.string(p.metadata, p.metadata_size) or "" }
  end
  C.rd_kafka_event_destroy(event)
  return found
end

--- The names of the groups that begin so.
function M.groups(bootstrap, prefix)
  local out = ffi.new "const mwt_rd_groups *[1]"
  check("groups", C.mwt_rd_list_groups(of(bootstrap), nil, out, TIMEOUT))
  local names = {}
  for i = 0, out[0].group_cnt - 1 do
    local name = ffi.string(out[0].groups[i].group)
    if name:sub(1, #prefix) == prefix then names[#names + 1] = name end
  end
  C.mwt_rd_groups_destroy(out[0])
  return names
end

function M.mock_cluster()
  local rk = handle(PRODUCER, { ["log_level"] = 0 })
  local cluster = C.rd_kafka_mock_cluster_new(rk, 1)
  return { rk = rk, cluster = cluster, bootstrap = ffi.string(C.rd_kafka_mock_cluster_bootstraps(cluster)) }
end

--- topics: as M.create takes them; their properties mean nothing to a mock cluster.
function M.mock_topics(mock, topics)
  for name, topic in pairs(topics) do
    check("mock topic " .. name, C.rd_kafka_mock_topic_create(mock.cluster, name, topic.partitions or 1, 1))
  end
end

--- The cluster answers the next requests of this API with these errors, one each.
function M.mock_errors(mock, api, errors)
  C.rd_kafka_mock_push_request_errors_array(mock.cluster, api, #errors, ffi.new("int[?]", #errors, errors))
end

--- Its answers take so long.
function M.mock_slow(mock, ms) C.rd_kafka_mock_broker_set_rtt(mock.cluster, 1, ms) end

function M.mock_down(mock, down)
  if down then
    C.rd_kafka_mock_broker_set_down(mock.cluster, 1)
  else
    C.rd_kafka_mock_broker_set_up(mock.cluster, 1)
  end
end

return M
