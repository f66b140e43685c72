--- The right name for a misspelt one.

-- Edit distance with swapped neighbours counted once (optimal string alignment).
local function distance(a, b)
  local rows = { [0] = {} }
  for j = 0, #b do rows[0][j] = j end
  for i = 1, #a do
    local row, up, up2 = { [0] = i }, rows[i - 1], rows[i - 2]
    for j = 1, #b do
      local same = a:byte(i) == b:byte(j)
      local best = math.min(up[j - 1] + (same and 0 or 1), up[j] + 1, row[j - 1] + 1)
      if i > 1 and j > 1 and a:byte(i) == b:byte(j - 1) and a:byte(i - 1) == b:byte(j) then
        best = math.min(best, up2[j - 2] + 1)
      end
      row[j] = best
    end
    rows[i] = row
  end
  return rows[#a][#b]
end

---@param word string
---@param list string[]
---@param most integer|nil edits; half of the word when not given
---@return string|nil # the nearest of the list, or nil when none is near enough to be meant
return function(word, list, most)
  if #word > 64 then return nil end
  local found, best = nil, (most or math.floor(#word / 2)) + 1
  for _, candidate in ipairs(list) do
    local d = distance(word:lower(), candidate:lower())
    if d < best then found, best = candidate, d end
  end
  return found
end
