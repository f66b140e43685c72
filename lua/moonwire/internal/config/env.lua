--- Settings from the environment and from `.env` files. What the environment says wins over the file.
local M = {}

local function unquote(value, where)
  local quote = value:match [[^(["'])]]
  if not quote then
    if value:match "^#" then return "" end
    return (value:gsub("%s+#.*$", ""):gsub("%s+$", ""))
  end
  local close = 2
  while value:sub(close, close) ~= quote do
    if close > #value then return nil, where .. ": the quote is not closed" end
    close = close + (quote == '"' and value:sub(close, close) == "\\" and 2 or 1)
  end
  local inner, rest = value:sub(2, close - 1), value:sub(close + 1)
  if not (rest:match "^%s*$" or rest:match "^%s+#") then
    return nil, ("%s: unexpected %q after the closing quote"):format(where, rest)
  end
  if quote == "'" then return inner end
  return (inner:gsub("\\(.)", { n = "\n", t = "\t", ["\\"] = "\\", ['"'] = '"', ["$"] = "$" }))
end

--- Reads `NAME=value` lines; `#` begins a comment, `export ` is allowed, values may be quoted.
---@param text string
---@param name string for errors
---@return table<string, string>|nil values, string|nil error
function M.parse(text, name)
  local values, number = {}, 0
  text = text:gsub("^\239\187\191", "") -- the mark that some editors put in front, as Lua takes it
  for line in (text .. "\n"):gmatch "(.-)\r?\n" do
    number = number + 1
    local where = ("%s:%d"):format(name, number)
    if line:find "%z" then return nil, where .. ": there is a zero byte in it; is it a text file?" end
    if not line:match "^%s*#" and line:match "%S" then
      local variable, value = line:match "^%s*export%s+([%a_][%w_]*)%s*=%s*(.*)$"
      if not variable then variable, value = line:match "^%s*([%a_][%w_]*)%s*=%s*(.*)$" end
      if not variable then return nil, ("%s: expected NAME=value, got %q"):format(where, line) end
      local plain, err = unquote(value, where)
      if not plain then return nil, err end
      values[variable] = plain
    end
  end
  return values
end

--- Makes the `mw.env` of a project.
---@param file table<string, string>
---@param overrides table<string, string>|nil
function M.reader(file, overrides)
  local seen = {}
  --- A setting: from the environment, from `.env`, or the default. Without a default it must be set.
  ---@param name string
  ---@param default string|nil
  ---@return string
  local function env(name, default)
    if type(name) ~= "string" then error("mw.env: the name must be a string", 2) end
    local value = overrides and overrides[name] or os.getenv(name) or file[name]
    if value == nil then value = default end
    if value == nil then
      error(("mw.env: %s is not set, and there is no default: set it in the environment or in .env"):format(name), 2)
    end
    seen[name] = value
    return value
  end
  return env, seen
end

return M
