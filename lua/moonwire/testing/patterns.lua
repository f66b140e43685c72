--- A table of patterns and answers, as specs give it to fakes: "*" stands for anything, the most exact pattern wins.
local M = {}

--- A Lua pattern, without anchors, for a text in which only "*" means something.
function M.pattern(text) return (text:gsub("[%^%$%(%)%%%.%[%]%+%-%?]", "%%%0"):gsub("%*", ".*")) end

---@generic T
---@param answers table<string, any>
---@param matcher fun(key: string): fun(request: T): boolean
---@param each fun(answer: any): any[]|nil one answer after the other, of which the last one stays
---@param expected string the error for a key that is no text
---@return fun(request: T): boolean, any whether a pattern matched, and its answer
---@return string[] keys the most exact first
function M.choose(answers, matcher, each, expected)
  local keys, matches, used = {}, {}, {}
  for key in pairs(answers) do
    if type(key) ~= "string" then error(expected, 4) end
    keys[#keys + 1] = key
    matches[key] = matcher(key)
  end
  local function stars(key) return select(2, key:gsub("%*", "")) end
  table.sort(keys, function(a, b)
    if stars(a) ~= stars(b) then return stars(a) < stars(b) end
    if #a ~= #b then return #a > #b end
    return a < b
  end)

  local function answer_of(key, request)
    local answer = answers[key]
    local list = each(answer)
    if list then
      used[key] = math.min((used[key] or 0) + 1, #list)
      answer = list[used[key]]
    end
    if type(answer) == "function" then return answer(request) end
    return answer
  end

  return function(request)
    for _, key in ipairs(keys) do
      if matches[key](request) then return true, answer_of(key, request) end
    end
    return false
  end, keys
end

return M
