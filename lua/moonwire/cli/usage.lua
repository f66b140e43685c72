--- The texts of --help, made from the verbs' descriptions.
local args = require "moonwire.cli.args"
local core = require "moonwire.core"
local verbs = require "moonwire.cli.verbs"

local M = {}

local function column(lines, rows, indent)
  local width = 0
  for _, row in ipairs(rows) do width = math.max(width, #row[1]) end
  for _, row in ipairs(rows) do
    local text = row[2]:gsub("\n", "\n" .. (" "):rep(indent + width + 2))
    lines[#lines + 1] = ("%s%-" .. width .. "s  %s"):format((" "):rep(indent), row[1], text)
  end
end

--- What stands behind the verb's name.
---@return string
local function synopsis(verb)
  local parts = {}
  for _, argument in ipairs(verb.arguments or {}) do
    local name = argument[1] .. (argument.many and "..." or "")
    parts[#parts + 1] = argument.optional and "[" .. name .. "]" or name
  end
  parts[#parts + 1] = "[flags]"
  return table.concat(parts, " ")
end

local function flag_row(flag)
  local value = flag[2] and " " .. (flag.of and table.concat(flag.of, "|") or flag[2]) or ""
  return { (flag.short and "-" .. flag.short .. ", " or "    ") .. "--" .. flag[1] .. value, flag[3] }
end

--- Help of one verb.
---@param verb table
---@return string
function M.verb(verb)
  local lines = { ("usage: moonwire %s %s"):format(verb.name, synopsis(verb)), "", verb.summary }
  if verb.details then lines[#lines + 1] = "\n" .. verb.details end
  local rows = {}
  for _, argument in ipairs(verb.arguments or {}) do rows[#rows + 1] = { argument[1], argument[2] } end
  if #rows > 0 then
    lines[#lines + 1] = "\narguments:"
    column(lines, rows, 2)
  end
  rows = {}
  for _, flag in ipairs(args.flags(verb)) do
    if not flag.hidden then rows[#rows + 1] = flag_row(flag) end
  end
  lines[#lines + 1] = "\nflags:"
  column(lines, rows, 2)
  lines[#lines + 1] = #verb.examples > 1 and "\nexamples:" or "\nexample:"
  for _, example in ipairs(verb.examples) do lines[#lines + 1] = "  " .. example end
  return table.concat(lines, "\n") .. "\n"
end

--- Help of a verb that has verbs of its own (dlq).
---@return string
function M.group(group)
  local lines, rows = { ("usage: moonwire %s VERB ..."):format(group.name), "", group.summary, "", "verbs:" }, {}
  for _, verb in ipairs(group.verbs) do rows[#rows + 1] = { verb.name:match "%S+$", verb.summary } end
  column(lines, rows, 2)
  lines[#lines + 1] = ("\n`moonwire %s VERB --help` tells all about one of them.\n\nexample:"):format(group.name)
  lines[#lines + 1] = "  " .. group.examples[1]
  return table.concat(lines, "\n") .. "\n"
end

--- Help of everything.
---@return string
function M.all()
  local lines = {
    ("Moonwire %s: runs message handlers written in Lua."):format(core.version), "",
    "usage: moonwire VERB ...", "", "verbs:",
  }
  local rows = {}
  for _, entry in ipairs(verbs.list) do
    if not entry.hidden then rows[#rows + 1] = { entry.name, entry.summary } end
  end
  column(lines, rows, 2)
  lines[#lines + 1] = "\nFlags stand after the verb; `moonwire VERB --help` tells all about one of them."
  lines[#lines + 1] = "Exit codes: 0 done, 1 failed, 64 wrong usage, 69 broker unavailable, 78 wrong configuration."
  lines[#lines + 1] = "\nexample:\n  moonwire new shop && cd shop && moonwire run"
  return table.concat(lines, "\n") .. "\n"
end

return M
