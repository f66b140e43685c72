-- The JSON codec against Node's JSON.parse and lua-cjson, on the same orders of about 1 KiB, each one different.
--
--   luajit spec/bench/json_bench.lua             a table, with Node's figures if node is there
--   luajit spec/bench/json_bench.lua --json      one JSON object
--   luajit spec/bench/json_bench.lua --documents the documents, one a line (json_bench.js asks for them)
--
-- MW_JSON_CORE names the shared object with the codec when it is not built into this interpreter.

local ffi = require "ffi"

local COUNT, ROUNDS = 20000, tonumber(os.getenv "MW_BENCH_ROUNDS") or 15
local root = arg[0]:match "^(.*)spec/bench/[^/]*$" or "./"
package.path = root .. "lua/?.lua;" .. package.path

-- One generator for every language: it prints, the others read.
local seed = 42
local function random(n)
  seed = (seed * 16807) % 2147483647
  return seed % n
end

local FIRST = { "Ada", "Grace", "Edsger", "Barbara", "Zoë", "Jürgen", "Margaret", "Ken" }
local LAST = { "Lovelace", "Hopper", "Dijkstra", "Liskov", "Müller", "Hamilton", "Thompson", "Okonkwo" }
local STREET = { "Harbour Road", "Lindenstraße", "Rue de la Paix", "Kings Avenue", "Via Roma", "Elm Street" }
local CITY = { "Rotterdam", "Köln", "Lyon", "Leeds", "Torino", "Springfield" }
local THING = { "Lamp", "Chair", "Kettle", "Desk", "Shelf", "Rug", "Mirror", "Clock" }
local COLOUR = { "anthracite", "white", "oak", "sea green", "brass" }

local function pick(list)
  return list[random(#list) + 1]
end

local function item(order, n)
  return ('{"sku":"%s-%05d","name":"%s, %s","quantity":%d,"price":%d.%02d,"tax":%s,"gift":%s}'):format(
    pick(THING):upper(), order % 1000 * 10 + n, pick(THING), pick(COLOUR), random(9) + 1, random(900) + 1,
    random(100), pick { "0.21", "0.09", "0" }, pick { "true", "false" })
end

local function order(n)
  local first, last, items = pick(FIRST), pick(LAST), {}
  for i = 1, 5 do
    items[i] = item(n, i)
  end
  return ('{"id":"ord_%08x%04x","number":%d,"created":"2024-%02d-%02dT%02d:%02d:%02d.%03dZ","status":"%s",'
    .. '"currency":"EUR","total":%d.%02d,"customer":{"id":%d,"name":"%s %s","email":"%s.%d@example.com",'
    .. '"vip":%s,"phone":%s,"address":{"street":"%s","number":"%d","postcode":"%05d","city":"%s",'
    .. '"country":"%s","location":[%d.%06d,%d.%06d]}},"items":[%s],"notes":"%s","tags":["%s","%s"],'
    .. '"shipping":{"method":"%s","weight":%d.%d,"tracking":null}}'):format(
    random(2147483647), n % 65536, 100000 + n, random(12) + 1, random(28) + 1, random(24), random(60), random(60),
    random(1000), pick { "paid", "open", "sent" }, random(4000), random(100), 50000 + random(1000000), first, last,
    last:lower():gsub("[^a-z]", "u"), random(100000), pick { "true", "false" }, pick { "null", '"+31 20 5550199"' },
    pick(STREET), random(300) + 1, random(100000), pick(CITY), pick { "NL", "DE", "FR", "GB", "IT" }, random(60),
    random(1000000), random(30), random(1000000), table.concat(items, ","),
    pick { "", "leave at the door", "ring twice,\\nthen wait", "fragile: \\\"this side up\\\"" },
    pick { "web", "shop", "phone" }, pick { "first", "returning" }, pick { "express", "standard" }, random(40),
    random(10))
end

local documents, bytes = {}, 0
for i = 1, COUNT do
  documents[i] = order(i)
  bytes = bytes + #documents[i]
end

if arg[1] == "--documents" then
  io.write(table.concat(documents, "\n"), "\n")
  return
end

-- ---- measuring ----

ffi.cdef [[
  struct mw_json_doc;
  struct mw_json_value {
    int32_t type; uint32_t count, node, len; const char *text; double number; int64_t integer;
  };
  struct mw_json_doc *mw_json_new(void);
  void mw_json_free(struct mw_json_doc *doc);
  int mw_json_parse(struct mw_json_doc *doc, const char *text, size_t len);
  int mw_json_find(const struct mw_json_doc *doc, const char *path, size_t path_len, struct mw_json_value *out);
  void *malloc(size_t size);
  typedef struct { long s, ns; } mw_bench_time;
  int clock_gettime(int clock, mw_bench_time *now);
]]

local C = ffi.C
local shared = os.getenv "MW_JSON_CORE"
if shared then
  C = ffi.load(shared, true)
  package.preload["moonwire.json.core"] = assert(package.loadlib(shared, "luaopen_moonwire_json_core"))
end
local json = require "moonwire.json"
local core = require "moonwire.json.core"

local now_buffer = ffi.new "mw_bench_time"
local function now()
  ffi.C.clock_gettime(1, now_buffer)
  return tonumber(now_buffer.s) + tonumber(now_buffer.ns) / 1e9
end

-- The bodies lie in C memory, as a driver leaves them: strings of them all would make the heap, and with it the
-- garbage between two collections, far larger than a handler's.
local memory = ffi.cast("char *", ffi.C.malloc(bytes))
local address, length, at = ffi.new("double[?]", COUNT), ffi.new("double[?]", COUNT), 0
for i = 1, COUNT do
  ffi.copy(memory + at, documents[i], #documents[i])
  address[i - 1], length[i - 1] = tonumber(ffi.cast("uintptr_t", memory + at)), #documents[i]
  at = at + #documents[i]
end
local file = os.tmpname()
local handle = assert(io.open(file, "w"))
handle:write(table.concat(documents, "\n"), "\n")
handle:close()
documents = nil -- luacheck: ignore 311

local function body(i)
  return ffi.string(ffi.cast("const char *", address[i]), length[i])
end

-- Microseconds per document in the best round: what the code costs when nobody else wants the machine. The
-- collector's work is in every round.
local function measure(one)
  local best = math.huge
  collectgarbage()
  collectgarbage()
  for _ = 1, ROUNDS do
    local start = now()
    for i = 0, COUNT - 1 do
      one(i)
    end
    best = math.min(best, (now() - start) / COUNT * 1e6)
  end
  return best
end

local results = {}
local function record(name, one)
  results[#results + 1] = { name = name, time = measure(one) }
end

local doc, value = ffi.gc(C.mw_json_new(), C.mw_json_free), ffi.new "struct mw_json_value"
local found = 0

record("parse + 2 finds", function(i)
  assert(C.mw_json_parse(doc, ffi.cast("const char *", address[i]), length[i]) == 0)
  if C.mw_json_find(doc, "customer.address.city", 21, value) ~= 0 then
    found = found + #ffi.string(value.text, value.len)
  end
  if C.mw_json_find(doc, "total", 5, value) ~= 0 then
    found = found + value.number
  end
end)
record("parse", function(i)
  assert(C.mw_json_parse(doc, ffi.cast("const char *", address[i]), length[i]) == 0)
end)
record("decode_at", function(i)
  found = found + #core.decode_at(address[i], length[i]).items
end)
record("decode, string made first", function(i)
  found = found + #json.decode(body(i)).items
end)
local decoded = {}
for i = 0, 99 do
  decoded[i] = json.decode(body(i))
end
record("encode", function(i)
  found = found + #json.encode(decoded[i % 100])
end)
local has_cjson, cjson = pcall(require, "cjson")
if has_cjson then
  record("lua-cjson, string first", function(i)
    found = found + #cjson.decode(body(i)).items
  end)
  for i = 0, 99 do
    decoded[i] = cjson.decode(body(i))
  end
  record("lua-cjson encode", function(i)
    found = found + #cjson.encode(decoded[i % 100])
  end)
end
assert(found > 0)

-- ---- Node, on the same documents ----

local pipe = io.popen(("node %sspec/bench/json_bench.js %s --json 2>/dev/null"):format(root, file))
local node = json.decode(pipe:read "*a") or {}
pipe:close()
os.remove(file)

if arg[1] == "--json" then
  local out = { documents = COUNT, bytes = bytes / COUNT, node = node, us = {} }
  for _, r in ipairs(results) do
    out.us[r.name] = r.time
  end
  print(json.encode(out, { sort = true }))
  return
end

print(("%d documents of %d bytes on average; microseconds each, best of %d rounds"):format(
  COUNT, bytes / COUNT, ROUNDS))
print(("%-28s %8s %10s %14s"):format("", "us", "MB/s", "of JSON.parse"))
for _, name in ipairs { "JSON.parse", "JSON.parse of a Buffer", "JSON.stringify" } do
  if node[name] then
    results[#results + 1] = { name = "Node " .. name, time = node[name] }
  end
end
for _, r in ipairs(results) do
  local ratio = node["JSON.parse"] and ("%.2f"):format(r.time / node["JSON.parse"]) or "-"
  print(("%-28s %8.2f %10.0f %14s"):format(r.name, r.time, bytes / COUNT / r.time, ratio))
end
