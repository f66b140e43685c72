--- The sentences of `moonwire explain`: from what processes and brokers told to one plain line for each fact.
local figures = require "moonwire.cli.process.figures"
local out = require "moonwire.cli.out"

local M = {}

--- Text that came from a message, for people and for JSON.
---@param text string
---@return string
function M.printable(text) return out.is_utf8(text) and text or out.plain(text) end

local function error_of(d) return d.error and (" Error: " .. out.plain(d.error)) or "" end

local STATES = {}

function STATES.running(d)
  return ("a handler has had it for %s (attempt %d)."):format(figures.seconds(d.since or 0), d.attempt)
end

function STATES.held(d)
  return ("it failed and keeps its place; attempt %d follows in %s.%s"):format(d.attempt, figures.seconds(d.left or 0),
    error_of(d))
end

function STATES.ready(d) return ("it is ready for attempt %d, as soon as a handler is free."):format(d.attempt) end
function STATES.waiting() return "it waits in its lane." end
function STATES.unkeyed() return "its lane is not decided yet." end

local FATES = {
  ack = "it is handled, and the broker is being told.",
  ["dead letter"] = "it is given up, and its dead letter is being written.",
  retry = "it failed, and the broker is being told when to try again.",
  park = "it is being parked at the broker.",
  release = "it is being given back to the broker.",
}

function STATES.settling(d)
  local text = FATES[d.fate] or "it is being settled."
  if d.left then text = ("%s The broker refused; the next try is in %s."):format(text, figures.seconds(d.left)) end
  return text .. error_of(d)
end

local function state(d)
  local text = STATES[d.state](d)
  if d.fenced then text = text .. " Another process has the message now: this verdict will not count." end
  return text
end

local function ids(list, count)
  local names = {}
  for i, d in ipairs(list) do names[i] = out.plain(d.id) end
  local more = count - #names
  return table.concat(names, ", ") .. (more > 0 and (" and %d more"):format(more) or "")
end

-- ---- what holds for the whole pipeline ----

local function conditions(add, p)
  if p.paused then add("Pipeline %s is paused: it takes nothing until `moonwire resume`.", p.name) end
  if p.draining then add("Pipeline %s is draining: it takes nothing more.", p.name) end
  if p.breaker == "open" then
    add("Pipeline %s waits out an outage: it tries one message in %s.", p.name, figures.seconds(p.breaker_left or 0))
  elseif p.breaker == "half-open" then
    add("Pipeline %s tries one message at a time, after an outage.", p.name)
  end
  if p.full then
    add("The buffer of pipeline %s is full (%d messages, %s): nothing is fetched until some are settled.", p.name,
      p.in_flight, figures.bytes(p.in_flight_bytes))
  end
  local c = p.canary
  if c then
    local among = p.lane and (p.lane.canary and "; this key is among them" or "; this key is not among them") or ""
    add("A canary runs in pipeline %s: generation %d handles %.3g%% of the keys%s.", p.name, c.generation,
      c.share * 100, among)
  end
  if p.running >= p.concurrency then add("All %d handlers of pipeline %s are busy.", p.concurrency, p.name) end
end

-- ---- in a process ----

local function lane_marks(add, lane, p, what)
  if lane.mark == "hold" then
    add("An earlier message of this key is a dead letter: later ones are parked at the broker until it is replayed "
      .. "or purged (moonwire dlq ls %s --key %s).", out.plain(p.dead_channel), what)
  elseif lane.mark == "dead" then
    add("An earlier message of this key is a dead letter: later ones become dead letters too, until it is replayed "
      .. "or purged (moonwire dlq ls %s --key %s).", out.plain(p.dead_channel), what)
  end
  if lane.parked then add "The lane is long: the broker keeps what comes later until it is shorter." end
end

local function message(add, p)
  local d, lane = p.message, p.lane
  add("Message %s is in pipeline %s (process %d): %s", out.plain(d.id), p.name, p.pid, state(d))
  if not lane then return end
  if lane.ahead and lane.ahead > 0 and lane.holder then
    add("%s in front of it in lane %s; the first is %s: %s", lane.ahead == 1 and "1 message is"
      or lane.ahead .. " messages are", lane.hash, out.plain(lane.holder.id), state(lane.holder))
  elseif lane.waiting > 0 then
    add("%s behind it in lane %s: %s.", lane.waiting == 1 and "1 message waits" or lane.waiting .. " messages wait",
      lane.hash, ids(lane.behind, lane.waiting))
  end
  lane_marks(add, lane, p, out.plain(d.key or "…"))
end

local function key(add, p, what)
  local lane = p.lane
  if lane.holder then
    add("Key %s is in pipeline %s (process %d), lane %s.", what, p.name, p.pid, lane.hash)
    add("Message %s holds it: %s", out.plain(lane.holder.id), state(lane.holder))
    if lane.waiting > 0 then
      add("%s behind it: %s.", lane.waiting == 1 and "1 message waits" or lane.waiting .. " messages wait",
        ids(lane.behind, lane.waiting))
    end
  else
    add("Nothing of key %s is in pipeline %s (process %d).", what, p.name, p.pid)
  end
  lane_marks(add, lane, p, what)
end

local function unordered(add, p, what)
  add("%s of key %s in pipeline %s (process %d), where keys make no lanes%s:", out.count(p.of_key_count, "message"),
    what, p.name, p.pid, p.order == "source" and ' (order = "source")' or "")
  for _, d in ipairs(p.of_key) do add("Message %s: %s", out.plain(d.id), state(d)) end
end

-- ---- at the broker ----

local PLACES = {
  ready = "it is ready, and no process has fetched it yet.",
  parked = "it is parked until its key goes on.",
  kept = "this pipeline has settled it; the channel still keeps it, for another group or by its retention.",
}

local function hit_text(hit, name)
  if hit.place == "dead" then
    return ("it is a dead letter (%s): %s"):format(out.plain(hit.class), out.plain(hit.reason))
  elseif hit.place == "retry" then
    local attempt = hit.attempts and (" for attempt %d"):format(hit.attempts + 1) or ""
    local why = hit.error and (" First error: " .. out.plain(hit.error)) or ""
    local waits = hit.due > os.time()
    return ("it %s here%s until %s.%s"):format(waits and "waits" or "waited", attempt, out.time(hit.due), why)
  elseif hit.place == "delayed" then
    return ("it is delayed until %s."):format(out.time(hit.due))
  end
  return PLACES[hit.place] or ("it stands on %s."):format(name)
end

local function at_broker(add, result)
  local name = out.plain(result.channel)
  if result.unreadable then
    add("Channel %s could not be looked at: %s.", name, out.plain(result.unreadable))
    return
  end
  for _, hit in ipairs(result.hits) do
    add("Message %s is on channel %s: %s", out.plain(hit.id), name, hit_text(hit, name))
  end
  if result.count > #result.hits then add("%d more on channel %s.", result.count - #result.hits, name) end
  if result.cut then add("Only the first %d messages of channel %s were looked at.", result.scanned, name) end
end

local function of_worker(answer)
  local w = answer.state
  if not w.still then
    return ("%s does not serve now (%s): what it had is delivered again."):format(answer.name, w.state)
  end
  local still = figures.seconds(w.still)
  if not w.id then return ("%s does not answer: it has hung for %s."):format(answer.name, still) end
  return ("%s does not answer: its handler has computed on message %s of pipeline %s for %s. It is killed 5 s after "
    .. "the handler's timeout, and what else it has is delivered again."):format(answer.name, out.plain(w.id),
    out.plain(w.pipeline or "?"), still)
end

--- What is known of workers that did not answer: one sentence each, and one for each message that was asked for.
---@param silent moonwire.cli.Answer[]
---@return string[]
function M.of_silent(silent)
  local sentences = {}
  for _, answer in ipairs(silent) do
    for _, begun in ipairs(answer.reply.begun) do
      sentences[#sentences + 1] = ("Message %s is in pipeline %s (%s, process %s): a handler has it."):format(
        out.plain(begun.id), out.plain(begun.pipeline or "?"), answer.name, answer.pid or "gone")
    end
    sentences[#sentences + 1] = of_worker(answer)
  end
  return sentences
end

--- One sentence a fact.
---@param what string
---@param pipelines table[] what the processes told
---@param results table[] what stands at the brokers; empty when that was not needed
---@return string[]
function M.of(what, pipelines, results)
  local sentences, shown, nothing = {}, out.plain(what), true
  local told = {}
  local function add(text, ...) -- what holds for all workers is told once
    local sentence = text:format(...)
    if not told[sentence] then sentences[#sentences + 1] = sentence end
    told[sentence] = true
  end
  for _, p in ipairs(pipelines) do
    local found = true
    if p.message then message(add, p)
    elseif p.lane then key(add, p, shown)
    elseif p.of_key_count > 0 then unordered(add, p, shown)
    else found = false end
    if found then conditions(add, p) end
    nothing = nothing and not found
  end
  local hits = 0
  for _, result in ipairs(results) do hits = hits + (result.count or 0) end
  if nothing then
    add(hits > 0 and "No process has %s in flight." or "%s is in no process, as a key or an id.", shown)
    for _, p in ipairs(pipelines) do conditions(add, p) end
  end
  for _, result in ipairs(results) do at_broker(add, result) end
  if nothing and hits == 0 then add "It was settled, or never published to a channel of this project." end
  return sentences
end

return M
