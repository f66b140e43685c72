--- The line of a command: a word and its arguments, each escaped as in an address (%20), so that keys and ids may hold
--- anything.
local function escape(c) return ("%%%02X"):format(c:byte()) end

---@param word string
---@param ... string
---@return string
return function(word, ...)
  local words = { word }
  for _, argument in ipairs { ... } do words[#words + 1] = "=" .. argument:gsub("[^%w_.-]", escape) end
  return table.concat(words, " ")
end
