--- The numbers of `status` and `top`: a row for each pipeline, over all processes or for each, and how they are shown.
local out = require "moonwire.cli.out"

local M = {}

local SUMS = { "rate", "received", "handled", "retried", "dead", "dropped", "deduped", "fenced", "published", "parked",
  "released", "in_flight", "in_flight_bytes", "running", "ready", "waiting", "held", "settling", "unsettled" }
-- Of what all processes see alike, or where one figure must stand for all: the highest.
local HIGHEST = { "delayed", "parked_now", "oldest", "held_keys", "dead_keys", "p50", "p99", "breaker_left" }
local BREAKERS = { closed = 0, ["half-open"] = 1, open = 2 }

local function highest(a, b) return a and b and math.max(a, b) or a or b end

-- What is ready is counted by each process as all that is not settled, less what it has itself.
local function unsettled_at_broker(p) return p.lag and p.lag + (p.unsettled or 0) end

-- Of a canary: both generations' messages; the time that is left to the last of them.
local function add_canary(total, c)
  if not c then return end
  local sum = total.canary or { generation = 0, share = c.share, left = 0, messages = 0, failures = 0,
    old_messages = 0, old_failures = 0 }
  for _, name in ipairs { "messages", "failures", "old_messages", "old_failures" } do
    sum[name] = sum[name] + (c[name] or 0)
  end
  sum.generation, sum.left = math.max(sum.generation, c.generation), math.max(sum.left, c.left)
  total.canary = sum
end

local function add(total, p)
  for _, name in ipairs(SUMS) do total[name] = (total[name] or 0) + (p[name] or 0) end
  for _, name in ipairs(HIGHEST) do total[name] = highest(total[name], p[name]) end
  if p.own_share then -- each process has partitions of its own
    total.own_lag = (total.own_lag or 0) + (p.lag or 0)
  else
    total.outstanding = highest(total.outstanding, unsettled_at_broker(p))
  end
  for _, place in ipairs(p.partitions or {}) do
    total.partitions = total.partitions or {}
    table.insert(total.partitions, place)
  end
  if p.next_retry then total.next_retry = math.min(total.next_retry or math.huge, p.next_retry) end
  total.breaker = total.breaker or "closed"
  if (BREAKERS[p.breaker] or 0) > BREAKERS[total.breaker] then total.breaker = p.breaker end
  total.generation = highest(total.generation, p.generation)
  total.full = total.full or p.full
  add_canary(total, p.canary)
end

--- A process may have two of one name: one that a reload has changed, and the one from before, which drains.
local function count_process(total, list, stale)
  local draining, paused = true, false
  for _, p in ipairs(list) do
    draining = draining and p.draining
    paused = paused or p.paused and not p.draining
  end
  total.processes = (total.processes or 0) + 1
  total.stale_in = (total.stale_in or 0) + (stale and 1 or 0)
  total.paused_in = (total.paused_in or 0) + (paused and 1 or 0)
  total.draining_in = (total.draining_in or 0) + (draining and 1 or 0)
end

local function finish(total)
  total.lag = total.own_lag or total.outstanding and math.max(0, total.outstanding - total.unsettled)
  total.retrying = total.held + (total.delayed or 0)
  total.paused, total.draining = total.paused_in > 0, total.draining_in == total.processes
  total.workers, total.outstanding = total.processes - total.stale_in, nil
end

--- One table a pipeline, over all processes, in the order of the first.
---@param answers { pid: integer, reply: table }[]
---@return table[]
function M.totals(answers)
  local list, by_name = {}, {}
  for _, answer in ipairs(answers) do
    local here = {}
    for _, p in ipairs(answer.reply.pipelines) do
      local total = by_name[p.name]
      if not total then
        total = { name = p.name, channel = p.channel }
        by_name[p.name], list[#list + 1] = total, total
      end
      add(total, p)
      here[p.name] = here[p.name] or {}
      table.insert(here[p.name], p)
    end
    for name, of in pairs(here) do count_process(by_name[name], of, answer.reply.stale) end
  end
  for _, total in ipairs(list) do finish(total) end
  return list
end

--- One table for each pipeline of each process.
function M.each(answers)
  local list = {}
  for _, answer in ipairs(answers) do
    for _, p in ipairs(answer.reply.pipelines) do
      p.pid, p.worker, p.stale = answer.pid, answer.worker, answer.reply.stale
      for _, name in ipairs(SUMS) do p[name] = p[name] or 0 end -- of another version, perhaps
      list[#list + 1] = p
    end
  end
  return list
end

-- ---- shown ----

--- 0.00042 -> "420us", 0.0213 -> "21ms", 75 -> "1m15s"
---@param s number|nil
---@return string
function M.seconds(s)
  if not s then return "-" end
  if s < 0.00001 then return s == 0 and "0us" or ("%.1fus"):format(s * 1e6) end
  if s < 0.001 then return ("%.0fus"):format(s * 1e6) end
  if s < 0.01 then return ("%.1fms"):format(s * 1e3) end
  if s < 1 then return ("%.0fms"):format(s * 1e3) end
  if s < 60 then return ("%.1fs"):format(s) end
  local whole = math.floor(s + 0.5)
  if whole < 3600 then return ("%dm%02ds"):format(whole / 60, whole % 60) end
  if whole < 86400 then return ("%dh%02dm"):format(whole / 3600, whole % 3600 / 60) end
  return ("%dd%02dh"):format(whole / 86400, whole % 86400 / 3600)
end

local function number(n)
  if not n then return "-" end
  if n < 10 and n ~= math.floor(n) then return ("%.1f"):format(n) end
  return ("%.0f"):format(n)
end

---@param n number
---@return string
function M.bytes(n)
  for _, unit in ipairs { "B", "kB", "MB" } do
    if n < 1000 then return (n < 10 and unit ~= "B" and "%.1f%s" or "%.0f%s"):format(n, unit) end
    n = n / 1000
  end
  return ("%.1fGB"):format(n)
end

local function share(n) return ("%.3g%%"):format(n * 100) end

local function canary_text(c)
  return ("canary %d at %s: %d failed of %d, old %d of %d, %s left"):format(c.generation, share(c.share), c.failures,
    c.messages, c.old_failures, c.old_messages, M.seconds(c.left))
end

local function partly(word, some, all)
  return some and all and some < all and ("%s in %d of %d"):format(word, some, all) or word
end

--- Anything but "running" in words.
---@return string
function M.state(p)
  local words = {}
  if p.draining then words[#words + 1] = "draining" end
  if p.canary then words[#words + 1] = canary_text(p.canary) end
  if p.paused then words[#words + 1] = partly("paused", p.paused_in, p.processes) end
  if p.breaker == "open" then words[#words + 1] = "outage, tries in " .. M.seconds(p.breaker_left or 0) end
  if p.breaker == "half-open" then words[#words + 1] = "outage, trying one" end
  if p.full then words[#words + 1] = "buffer full" end
  if p.stale then words[#words + 1] = "no answer" end
  if p.processes and p.workers == 0 then words[#words + 1] = "no worker answers" end
  if (p.held_keys or 0) > 0 then words[#words + 1] = out.count(p.held_keys, "held key") end
  if (p.dead_keys or 0) > 0 then words[#words + 1] = out.count(p.dead_keys, "dead key") end
  return #words > 0 and table.concat(words, ", ") or "ok"
end

local COLUMNS = {
  { "PIPELINE", function(p) return p.name end },
  { "GEN", function(p) return number(p.generation) end },
  { "RATE", function(p) return number(p.rate) .. "/s" end },
  { "IN FLIGHT", function(p) return ("%d (%s)"):format(p.in_flight, M.bytes(p.in_flight_bytes)) end },
  { "RUNNING", function(p) return number(p.running) end },
  { "WAITING", function(p) return number(p.waiting) end },
  { "RETRYING", function(p) return number(p.retrying) end },
  { "NEXT", function(p) return M.seconds(p.next_retry) end },
  { "LAG", function(p) return number(p.lag) end },
  { "OLDEST", function(p) return M.seconds(p.oldest) end },
  { "PARKED", function(p) return number(p.parked_now) end },
  { "HANDLED", function(p) return number(p.handled) end },
  { "DEAD", function(p) return number(p.dead) end },
  { "P50", function(p) return M.seconds(p.p50) end },
  { "P99", function(p) return M.seconds(p.p99) end },
  { "WORKERS", function(p)
    return p.stale_in == 0 and number(p.workers) or ("%d of %d"):format(p.workers, p.processes)
  end, totals = true },
  { "STATE", M.state },
}

-- What a narrow terminal does without, the least important first.
local DISPENSABLE = { "GEN", "PARKED", "WAITING", "HANDLED", "RUNNING", "OLDEST", "P50", "NEXT" }

local function build(list, each, hidden)
  local heads, rows = each and { "PID", "WORKER" } or {}, {}
  for i, p in ipairs(list) do rows[i] = each and { tostring(p.pid or "-"), number(p.worker) } or {} end
  for _, column in ipairs(COLUMNS) do
    if not hidden[column[1]] and not (each and column.totals) then
      heads[#heads + 1] = column[1]
      for i, p in ipairs(list) do table.insert(rows[i], column[2](p)) end
    end
  end
  return heads, rows
end

local function width(heads, rows)
  local sum = 0
  for i, head in ipairs(heads) do
    local most = #head
    for _, row in ipairs(rows) do most = math.max(most, #row[i]) end
    sum = sum + most + 2
  end
  return sum - 2
end

-- What the pipelines are not shown to do because their worker is not there.
local STATES = {
  starting = function(w) return ("starting, for %s"):format(M.seconds(w.since)) end,
  draining = function() return "draining" end,
  down = function(w) return w.starts_in and "down, starts in " .. M.seconds(w.starts_in) or "down" end,
  ended = function() return "ended" end,
}

local function trouble(answer)
  local w = answer.state
  if not w then return nil end
  if STATES[w.state] then return STATES[w.state](w) end
  if not answer.reply.stale then return nil end
  local what = w.id and ("handling message %s of pipeline %s"):format(out.plain(w.id), out.plain(w.pipeline or "?"))
  return ("stuck for %s%s; its figures are the last it wrote"):format(M.seconds(w.still), what and ", " .. what or "")
end

--- A line for each worker that is not simply at work.
---@param answers moonwire.cli.Answer[]
---@return string[]
function M.troubles(answers)
  local lines = {}
  for _, answer in ipairs(answers) do
    local what = trouble(answer)
    if what then
      local restarts = answer.state.restarts > 0 and (" (%s)"):format(out.count(answer.state.restarts, "restart")) or ""
      lines[#lines + 1] = ("%s: %s%s"):format(answer.name, what, restarts)
    end
  end
  return lines
end

--- Heads and rows for out.table; with pids in front when each process has its own.
---@param list table[]
---@param each boolean|nil
---@param columns integer|false|nil of the terminal: what does not fit is left out
---@return string[] heads, string[][] rows
function M.table(list, each, columns)
  local hidden = {}
  local heads, rows = build(list, each, hidden)
  for _, name in ipairs(DISPENSABLE) do
    if not columns or width(heads, rows) <= columns then break end
    hidden[name] = true
    heads, rows = build(list, each, hidden)
  end
  return heads, rows
end

return M
