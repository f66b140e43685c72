--- Command lines. A verb describes its flags and arguments as data; parsing, checking, --help and completion read that.
---
---   { name = "tail", summary = "…", arguments = { { "CHANNEL", "…" }, { "ID", "…", optional = true, many = true } },
---     flags = { { "count", "N", "…", short = "n", kind = "integer" }, { "json", nil, "…" } }, examples = { … } }
---
--- A flag with a second item takes a value; `many = true` gathers a list. Values are typed by `kind` (below) or `of`,
--- a list of choices.
local nearest = require "moonwire.internal.nearest"

local M = {}

---@class moonwire.Flag
---@field [1] string the long name
---@field [2] string|nil what its value is called; nil: the flag is a switch
---@field [3] string help
---@field short string|nil
---@field kind string|nil a name in `kinds`; text when not given
---@field of string[]|nil the values it takes
---@field many boolean|nil may stand several times
---@field hidden boolean|nil

-- ---- values ----

local UNITS = { ms = 0.001, s = 1, m = 60, h = 3600, d = 86400, w = 604800 }
local kinds = {}

function kinds.text(text) return text end

function kinds.integer(text)
  local n = text:match "^%d+$" and tonumber(text)
  if not n or n > 2 ^ 53 then return nil, "a whole number" end
  return n
end

function kinds.positive(text)
  local n = kinds.integer(text)
  if not n or n < 1 then return nil, "a whole number of 1 or more" end
  return n
end

function kinds.workers(text)
  local n = kinds.integer(text)
  if not n or n > 256 then return nil, "a whole number from 0 to 256" end
  return n
end

function kinds.seconds(text)
  local number, unit = text:match "^(%d*%.?%d+)(%a*)$"
  local factor = number and (unit == "" and 1 or UNITS[unit])
  if not factor then return nil, "a time such as 30, 500ms, 10m or 1h" end
  return tonumber(number) * factor
end

function kinds.rate(text)
  local number, unit = text:match "^(%d*%.?%d+)/?(%a*)$"
  local n, per = tonumber(number), unit == "" and 1 or UNITS[unit]
  if not n or not per or n <= 0 then return nil, "a rate such as 100/s or 30/m" end
  return n / per
end

function kinds.share(text)
  local number, percent = text:match "^(%d*%.?%d+)(%%?)$"
  local n = tonumber(number)
  n = n and (percent == "%" and n / 100 or n)
  if not n or n <= 0 or n >= 1 then return nil, "a share such as 5% or 0.05, more than nothing and less than all" end
  return n
end

function kinds.header(text)
  local name, value = text:match "^([^=%c]+)=(.*)$"
  if not name then return nil, "NAME=VALUE" end
  return { name, value }
end

local function convert(flag, text)
  if flag.of then
    for _, choice in ipairs(flag.of) do
      if text == choice then return text end
    end
    return nil, table.concat(flag.of, " or ")
  end
  return kinds[flag.kind or "text"](text)
end

-- ---- flags ----

local HELP = { "help", nil, "show this", short = "h" }

--- Those of the verb, and --help.
---@return moonwire.Flag[]
function M.flags(verb)
  local all = {}
  for _, flag in ipairs(verb.flags or {}) do all[#all + 1] = flag end
  all[#all + 1] = HELP
  return all
end

local function index(verb)
  local by_name, by_short, names = {}, {}, {}
  for _, flag in ipairs(M.flags(verb)) do
    by_name[flag[1]] = flag
    if flag.short then by_short[flag.short] = flag end
    if not flag.hidden then names[#names + 1] = flag[1] end
  end
  return by_name, by_short, names
end

local function unknown(what, near)
  return ("unknown flag %s%s"):format(what, near and ("; did you mean --%s?"):format(near) or "")
end

local function store(values, flag, text, shown)
  local name = flag[1]
  local value = true
  if flag[2] then
    local expected
    value, expected = convert(flag, text)
    if value == nil then return nil, ("%s must be %s, got %q"):format(shown, expected, text) end
  end
  if flag.many then
    values[name] = values[name] or {}
    table.insert(values[name], value)
  elseif values[name] ~= nil and flag[2] then
    return nil, shown .. " is given twice"
  else
    values[name] = value
  end
  return true
end

-- One long flag; returns how many words it took.
local function long(values, by_name, names, argv, i)
  local name, value = argv[i]:match "^%-%-([^=]+)=(.*)$"
  name = name or argv[i]:sub(3)
  local flag, shown = by_name[name], "--" .. name
  if not flag then return nil, unknown(shown, nearest(name, names)) end
  if not flag[2] then
    if value then return nil, shown .. " takes no value" end
    return store(values, flag, nil, shown) and 1
  end
  local taken = value and 1 or 2
  value = value or argv[i + 1]
  if not value then return nil, ("%s needs a value: %s %s"):format(shown, shown, flag[2]) end
  local ok, err = store(values, flag, value, shown)
  return ok and taken, err
end

-- A word of short flags: -q, -qy, -n5, -n 5.
local function short(values, by_short, argv, i)
  local word, at = argv[i], 2
  while at <= #word do
    local letter = word:sub(at, at)
    local flag, shown = by_short[letter], "-" .. letter
    if not flag then return nil, unknown(shown) end
    if flag[2] then
      local rest = word:sub(at + 1):gsub("^=", "")
      local value = rest ~= "" and rest or argv[i + 1]
      if not value then return nil, ("%s needs a value: %s %s"):format(shown, shown, flag[2]) end
      local ok, err = store(values, flag, value, shown)
      return ok and (rest ~= "" and 1 or 2), err
    end
    store(values, flag, nil, shown)
    at = at + 1
  end
  return 1
end

-- ---- arguments ----

local function place(values, verb, words)
  local expected, at = verb.arguments or {}, 1
  for _, argument in ipairs(expected) do
    local name = argument[1]
    if argument.many then
      values[name] = {}
      while words[at] do
        table.insert(values[name], words[at])
        at = at + 1
      end
      if not argument.optional and #values[name] == 0 then return nil, name .. " is missing" end
    else
      if words[at] == nil and not argument.optional then return nil, name .. " is missing" end
      values[name] = words[at]
      at = at + 1
    end
  end
  if words[at] then return nil, ("one argument too many: %q"):format(words[at]) end
  return true
end

--- Reads a command line.
---@param verb table
---@param argv string[]
---@param from integer the first word that belongs to the verb
---@return table|nil values by flag and argument name; `help = true` when asked for (then nothing else is checked)
---@return string|nil error
function M.parse(verb, argv, from)
  local by_name, by_short, names = index(verb)
  local values, words, i = {}, {}, from
  while i <= #argv do
    local word, taken, err = argv[i], 1, nil
    if word == "--" then
      for k = i + 1, #argv do words[#words + 1] = argv[k] end
      break
    elseif word:sub(1, 2) == "--" then
      taken, err = long(values, by_name, names, argv, i)
    elseif #word > 1 and word:sub(1, 1) == "-" then
      taken, err = short(values, by_short, argv, i)
    else
      words[#words + 1] = word
    end
    if not taken then return nil, err end
    if values.help then return values end
    i = i + taken
  end
  local ok, err = place(values, verb, words)
  if not ok then return nil, err end
  return values
end

return M
