--- Dead letters as the dlq verbs see them: what stands in their headers, which of them are meant.
local C = require "moonwire.internal.cdef"
local channel = require "moonwire.cli.broker.channel"
local fail = require "moonwire.cli.fail"
local out = require "moonwire.cli.out"
local task = require "moonwire.cli.task"
local view = require "moonwire.cli.dlq.view"
local wait = require "moonwire.internal.wait"

local M = {}

--- The flags that choose letters.
M.FLAGS = {
  { "reason", "TEXT", "only those whose reason or last error contains TEXT" },
  { "class", "CLASS", "only those of this error class, such as invalid", short = "c" },
  { "key", "KEY", "only those of this key", short = "k" },
  { "pipeline", "NAME", "only those of this pipeline", short = "p" },
  { "older", "TIME", "only those that died longer ago: 30m, 1h, 7d", kind = "seconds" },
  { "newer", "TIME", "only those that died since", kind = "seconds" },
  { "limit", "N", "at most N, the oldest first", short = "n", kind = "positive" },
}

--- With more flags in front.
---@param ... moonwire.Flag
---@return moonwire.Flag[]
function M.flags(...)
  local flags = { ... }
  for _, flag in ipairs(M.FLAGS) do flags[#flags + 1] = flag end
  return flags
end

---@class moonwire.Letter: moonwire.View
---@field reason string with the last error, where that says more
---@field class string
---@field attempts string
---@field origin string|nil the channel it died on
---@field broker string|nil
---@field group string|nil
---@field lane string|nil hex; its key is held since
---@field replays integer

---@param entry moonwire.Entry
---@param with_body boolean|nil
---@return moonwire.Letter
function M.of(entry, with_body)
  local v = view.of(entry, with_body)
  local h = v.headers
  v.reason, v.class, v.attempts = h["mw-dead-reason"] or "", h["mw-dead-class"] or "", h["mw-dead-attempts"] or ""
  -- "gave up after 5 attempts" alone helps nobody.
  local last = h["mw-dead-last-error"] or ""
  if last ~= "" and not v.reason:find(last, 1, true) then v.reason = v.reason .. ": " .. last end
  v.origin, v.broker, v.group, v.lane = h["mw-dead-channel"], h["mw-dead-broker"], h["mw-dead-group"], h["mw-dead-lane"]
  v.replays = tonumber(h["mw-replay"]) or 0
  return v
end

--- What happened to a letter, as JSON.
---@param letter moonwire.Letter
---@param result string
---@return table
function M.outcome(letter, result)
  local object = M.object(letter)
  object.headers, object.headers_base64, object.body, object.body_base64 = nil, nil, nil, nil
  object.result = result
  return object
end

--- The letter as JSON.
---@param letter moonwire.Letter
---@return table
function M.object(letter)
  local object = view.object(letter)
  view.put(object, "reason", letter.reason)
  view.put(object, "class", letter.class)
  view.put(object, "channel", letter.origin)
  object.attempts = tonumber(letter.attempts)
  object.replays = letter.replays
  return object
end

-- ---- choosing ----

--- A function that tells whether a letter is meant; ids that were met are taken out of `missing`.
---@param values table
---@return fun(letter: moonwire.Letter): boolean matches
---@return table<string, boolean> missing
function M.filter(values)
  local ids, missing = nil, {}
  for _, id in ipairs(values.ID or {}) do
    ids = ids or {}
    ids[id], missing[id] = true, true
  end
  local now = C.mw_vm_now(wait.vm)
  local function matches(letter)
    if ids and not ids[letter.id] then return false end
    if values.reason and not letter.reason:find(values.reason, 1, true) then return false end
    if values.class and letter.class ~= values.class then return false end
    if values.key and letter.key ~= values.key then return false end
    if values.pipeline and letter.headers["mw-dead-pipeline"] ~= values.pipeline then return false end
    if values.older and letter.time > now - values.older then return false end
    if values.newer and letter.time < now - values.newer then return false end
    missing[letter.id] = nil
    return true
  end
  return matches, missing
end

--- Every letter that is meant, in the order in which they died, page by page; `page_over` after each page.
---@param options { upto: number|nil, body: boolean|nil }
---@param use fun(letter: moonwire.Letter, entry: moonwire.Entry)
---@param page_over fun()|nil
---@return integer count, string[] missing ids that were asked for and not found
function M.each(link, values, options, use, page_over)
  local matches, missing = M.filter(values)
  local count, limit = 0, values.limit or math.huge
  channel.each_page(link, values.CHANNEL, options.upto, function(entries)
    for _, entry in ipairs(entries) do
      if count >= limit or task.interrupted() then break end
      local letter = M.of(entry, options.body)
      if matches(letter) then
        count = count + 1
        use(letter, entry)
      end
    end
    if page_over then page_over() end
    return count < limit and not task.interrupted()
  end)
  local ids = {}
  for id in pairs(missing) do ids[#ids + 1] = out.plain(id) end
  table.sort(ids)
  return count, ids
end

--- Do flags choose some of the letters?
---@return boolean
function M.chooses(values)
  for _, flag in ipairs(M.FLAGS) do
    if values[flag[1]] ~= nil then return true end
  end
  return false
end

--- How many are meant.
---@return integer
function M.count(link, values, upto)
  return (M.each(link, values, { upto = upto }, function() end))
end

--- Ends the command when ids were not found.
---@param missing string[]
---@param values table
function M.must_be_found(missing, values)
  if #missing == 0 or task.interrupted() or values.limit then return end
  fail.raise(fail.FAILED, "not on %s: %s", out.plain(values.CHANNEL), table.concat(missing, ", "))
end

return M
