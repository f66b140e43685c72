--- moonwire explain: why a message, or the messages of a key, do not move. The processes are asked first; what none of
--- them has is looked for at the broker.
local answers = require "moonwire.cli.process.answers"
local channel = require "moonwire.cli.broker.channel"
local control = require "moonwire.cli.process.control"
local broker = require "moonwire.cli.broker.link"
local fail = require "moonwire.cli.fail"
local json = require "moonwire.json"
local letters = require "moonwire.cli.dlq.letters"
local out = require "moonwire.cli.out"
local reasons = require "moonwire.cli.process.reasons"
local task = require "moonwire.cli.task"

local LINE_MOST = 4000 -- what a process reads of a command
local SCAN_MOST = 20000 -- messages of a channel that are looked at
local HITS_MOST = 10

-- ---- the processes ----

local function ask(values, what)
  if what == "" then fail.usage "WHAT is empty: say a message's id, or a key" end
  local line = answers.line("explain", what)
  if #line > LINE_MOST then fail.usage "that is too long for a key or an id" end
  local found, known, silent = {}, false, {}
  for _, answer in ipairs(control.ask(values.DIR, line, 10)) do
    if not answer.reply.ok then fail.raise(fail.FAILED, "%s: %s", answer.name, answer.reply.problems) end
    if answer.reply.stale then silent[#silent + 1] = answer end
    for _, p in ipairs(answer.reply.pipelines) do
      if not values.pipeline or p.name == values.pipeline then
        p.pid, p.worker, known = answer.pid, answer.worker, true
        found[#found + 1] = p
      end
    end
  end
  if not known and #silent == 0 then
    fail.raise(fail.FAILED, "there is no pipeline %q", values.pipeline or "at all")
  end
  return found, silent
end

local function in_flight(p) return p.message or p.lane and p.lane.holder or p.of_key_count > 0 end

-- ---- the broker ----

-- kind: "dead" and "retry" are those channels; else it is the one that the pipeline reads.
local function hit_of(entry, what, kind)
  local v = letters.of(entry)
  if v.id ~= what and v.key ~= what then return nil end
  local hit = { id = v.id, key = v.key, due = v.due, position = v.position, time = v.time }
  if kind == "dead" then hit.place, hit.class, hit.reason = "dead", v.class, v.reason end
  if kind == "retry" then
    hit.place, hit.due = "retry", (tonumber(v.headers["mw-retry-due"]) or 0) / 1000
    hit.attempts, hit.error = tonumber(v.headers["mw-retry-attempts"]), v.headers["mw-retry-error"]
  end
  return hit
end

local function scan(link, name, what, kind)
  local result = { channel = name, dead = kind == "dead" or nil, hits = json.array {}, count = 0, scanned = 0 }
  channel.each_page(link, name, nil, function(entries)
    for _, entry in ipairs(entries) do
      local hit = hit_of(entry, what, kind)
      if hit then
        result.count = result.count + 1
        if #result.hits < HITS_MOST then table.insert(result.hits, hit) end
      end
    end
    result.scanned = result.scanned + #entries
    result.cut = result.scanned >= SCAN_MOST or nil
    return not result.cut and not task.interrupted()
  end)
  return result
end

local function open(url)
  local ok, link = pcall(broker.open, { broker = url }, { need = { "browse" } })
  if ok then return link end
  if not fail.is(link) then error(link, 0) end
  return nil, tostring(link)
end

-- Where partitions are read by offsets: whether some process was given this message, and has it no more.
local function was_delivered(hit, pipelines, name)
  local partition, behind = tostring(hit.position):match "^(%d+)%-(%d+)$"
  if not behind then partition, behind = "0", tostring(hit.position) end
  for _, p in ipairs(pipelines) do
    for _, place in ipairs(p.name == name and p.partitions or {}) do
      if place.name == partition then return tonumber(behind) <= place.next end
    end
  end
  return nil
end

-- A key that is held, or whose lane is parked, keeps its messages at the broker.
local function place_of(values, hit, pipeline, pipelines)
  if hit.due then return "delayed" end
  local delivered = was_delivered(hit, pipelines, pipeline.name)
  if delivered ~= nil then return delivered and "kept" or "ready" end
  if hit.key and pipeline.order == "key" and not pipeline.own_key then
    for _, p in ipairs(ask(values, hit.key)) do
      if p.name == pipeline.name and p.lane and (p.lane.mark == "hold" or p.lane.parked) then return "parked" end
    end
  end
  local nothing = pipeline.lag == 0 and pipeline.delayed == 0 and pipeline.parked_now == 0 and pipeline.in_flight == 0
  return nothing and "kept" or "ready"
end

local function look_at(values, p, pipelines, address, name, kind)
  if address:find "^memory" then return { channel = name, unreadable = "a memory: broker lives inside its process" } end
  local link, why = open(address)
  if not link then return { channel = name, unreadable = why } end
  local result = scan(link, name, values.WHAT, kind)
  for _, hit in ipairs(result.hits) do hit.place = hit.place or place_of(values, hit, p, pipelines) end
  return result
end

-- Each channel once: the processes of a project share them.
local function search_brokers(values, pipelines)
  local results, seen = {}, {}
  for _, p in ipairs(pipelines) do
    local channels = { { p.address, p.channel }, { p.dead_address, p.dead_channel, "dead" } }
    for _, name in ipairs(p.retry_channels or {}) do channels[#channels + 1] = { p.address, name, "retry" } end
    for _, at in ipairs(channels) do
      local mark = table.concat({ p.name, at[1], at[2] }, "\0")
      if not seen[mark] then
        seen[mark] = true
        local result = look_at(values, p, pipelines, at[1], at[2], at[3])
        result.pipeline = p.name
        results[#results + 1] = result
      end
    end
  end
  return results
end

-- ---- both ----

local function object_of(what, pipelines, results, sentences, found)
  for _, p in ipairs(pipelines) do p.address, p.dead_address = nil, nil end -- a password may stand there
  for _, result in ipairs(results) do
    for _, hit in ipairs(result.hits or {}) do
      for _, name in ipairs { "id", "key", "reason" } do hit[name] = hit[name] and reasons.printable(hit[name]) end
    end
  end
  return { what = reasons.printable(what), found = found, pipelines = json.array(pipelines),
    broker = json.array(results), sentences = json.array(sentences) }
end

local function explain(values)
  local pipelines, silent = ask(values, values.WHAT)
  local found, results, held = false, {}, false
  for _, p in ipairs(pipelines) do found = found or in_flight(p) and true end
  local known = found
  for _, answer in ipairs(silent) do held = held or #answer.reply.begun > 0 end
  found = found or held
  if not found then results = search_brokers(values, pipelines) end
  local sentences = #pipelines > 0 and (known or not held) and reasons.of(values.WHAT, pipelines, results) or {}
  for i, sentence in ipairs(reasons.of_silent(silent)) do table.insert(sentences, i, sentence) end
  for _, result in ipairs(results) do found = found or result.count and result.count > 0 end
  for _, p in ipairs(pipelines) do found = found or p.lane ~= nil end
  if values.json then
    out.json(object_of(values.WHAT, pipelines, results, sentences, found))
  else
    for _, sentence in ipairs(sentences) do out.line(sentence) end
  end
  return found and 0 or fail.FAILED
end

return {
  name = "explain",
  summary = "Tells why a message or a key does not move: what holds it, until when, and what waits behind it.",
  details = ("The running processes are asked; what none of them has is looked for on the channels and dead-letter\n"
    .. "channels of the project, in the first %d messages of each. Exit 1 when it is nowhere."):format(SCAN_MOST),
  arguments = {
    { "WHAT", "a message's id, or a key" },
    { "DIR", "the project's folder (default: the current one)", optional = true },
  },
  flags = {
    { "pipeline", "NAME", "only this pipeline", short = "p" },
    { "json", nil, "one object: what, found, pipelines, broker, sentences" },
  },
  examples = { "moonwire explain customer-17 shop", "moonwire explain --pipeline orders 0192f0c1 --json" },
  run = function(values) return task.run(function() return explain(values) end) end,
}
