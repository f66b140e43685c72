--- Is new code worse than the old? Both handled messages over the same time; what decides is Fisher's exact test: how
--- likely would it be that so many of the failures fell to the new code by chance, if both were equally good? It holds
--- for few messages as well as for many. Each pipeline is judged for itself, so that a small one cannot hide behind a
--- large one.
local M = {}

M.LEAST = 20 -- messages on the new code, over all pipelines; fewer tell nothing
M.AT_ONCE = 0.001 -- so unlikely: rolled back before its time is over. Strict, because it is asked again and again
M.AT_END = 0.05

local function log_factorial(n)
  if n < 2 then return 0 end
  if n < 20 then
    local sum = 0
    for i = 2, n do sum = sum + math.log(i) end
    return sum
  end
  local x = n + 1 -- Stirling's series
  return (x - 0.5) * math.log(x) - x + 0.5 * math.log(2 * math.pi) + 1 / (12 * x) - 1 / (360 * x ^ 3)
end

local function log_choose(n, k) return log_factorial(n) - log_factorial(k) - log_factorial(n - k) end

--- The probability that the new code gets this many of all failures, or more, by chance.
---@param messages integer of the new code
---@param failures integer of these
---@param old_messages integer
---@param old_failures integer
---@return number
function M.chance(messages, failures, old_messages, old_failures)
  local all, bad = messages + old_messages, failures + old_failures
  local function term_at(k)
    return math.exp(log_choose(bad, k) + log_choose(all - bad, messages - k) - log_choose(all, messages))
  end
  local sum = 0
  if failures * all <= messages * bad then -- no more than its share: what is missing to 1 is the smaller sum
    local least = math.max(0, bad - old_messages)
    local k, term = failures - 1, failures > least and term_at(failures - 1) or 0
    while k >= least and term > sum * 1e-12 do
      sum = sum + term
      term = term * k * (all - bad - messages + k) / ((bad - k + 1) * (messages - k + 1))
      k = k - 1
    end
    return 1 - math.min(1, sum)
  end
  local k, term = failures, term_at(failures)
  while k <= math.min(messages, bad) and term > sum * 1e-12 do
    sum = sum + term
    term = term * (bad - k) * (messages - k) / ((k + 1) * (all - bad - messages + k + 1))
    k = k + 1
  end
  return math.min(1, sum)
end

--- 3 of 20 -> "3 of 20 failed (15%)"
function M.rate(failures, messages)
  if messages == 0 then return "none" end
  return ("%d of %d failed (%.3g%%)"):format(failures, messages, failures / messages * 100)
end

--- What comes of a trial.
---@param pipelines { name: string, messages: integer, failures: integer, old_messages: integer,
---  old_failures: integer }[]
---@param over boolean is its time over?
---@param least integer|nil
---@return "promote"|"rollback"|nil verdict nil: it goes on
---@return string|nil why
function M.judge(pipelines, over, least)
  least = least or M.LEAST
  local messages, limit = 0, over and M.AT_END or M.AT_ONCE
  for _, p in ipairs(pipelines) do
    messages = messages + p.messages
    if p.failures > 0 and M.chance(p.messages, p.failures, p.old_messages, p.old_failures) < limit then
      return "rollback", ("pipeline %q: new code: %s; old code: %s"):format(p.name, M.rate(p.failures, p.messages),
        M.rate(p.old_failures, p.old_messages))
    end
  end
  if not over then return nil end
  if messages < least then
    return "rollback", ("only %d message%s came to the new code, and fewer than %d tell nothing: take a larger share, "
      .. "a longer time, or --least %d"):format(messages, messages == 1 and "" or "s", least, messages)
  end
  return "promote"
end

return M
