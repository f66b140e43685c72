--- What the commands print. Data goes to stdout, everything else to stderr. Text that came from messages may hold
--- anything, so it passes `plain` before a person sees it: a dead letter must not be able to move the cursor.
local C = require "moonwire.internal.cdef"
local core = require "moonwire.core"
local fail = require "moonwire.cli.fail"
local json = require "moonwire.json"

local M = {}

-- ---- streams ----

local EPIPE = 32

local function check(ok, text, code)
  if ok then return end
  io.stdout:setvbuf "no" -- what is left in the buffer would only fail again at exit
  if code == EPIPE then fail.raise(M.broken_pipe_code, nil) end
  fail.raise(fail.FAILED, "cannot write to standard output: %s", tostring(text))
end

M.broken_pipe_code = 0 -- who stops reading has seen enough; verbs that change something set 1

function M.write(...) check(io.stdout:write(...)) end
function M.line(text) check(io.stdout:write(text, "\n")) end
function M.flush() check(io.stdout:flush()) end

--- To stderr. Log lines that were written before come before.
function M.err(text)
  C.mw_log_flush()
  io.stderr:write(text)
end

function M.note(text, ...) M.err((select("#", ...) > 0 and text:format(...) or text) .. "\n") end

--- One JSON object on one line.
---@param object table
function M.json(object)
  local text, err = json.encode(object, { sort = true })
  if not text then error("not JSON: " .. err) end
  M.line(text)
end

---@param fd integer
---@return integer|false columns
function M.terminal(fd) return core.terminal(fd) end

-- ---- colours ----

local CODES = { bold = "1", dim = "2", red = "31", green = "32", yellow = "33" }
local colours = {}

local function has_colours(fd)
  if colours[fd] == nil then
    local no = os.getenv "NO_COLOR"
    colours[fd] = core.terminal(fd) and (no == nil or no == "") and os.getenv "TERM" ~= "dumb" or false
  end
  return colours[fd]
end

---@param name string of CODES
---@param text string
---@param fd integer|nil 1 when not given
---@return string
function M.colour(name, text, fd)
  if not has_colours(fd or 1) then return text end
  return ("\27[%sm%s\27[0m"):format(CODES[name], text)
end

-- ---- text from elsewhere ----

local NAMED = { ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }

local function escape(c) return NAMED[c] or ("\\x%02x"):format(c:byte()) end

-- U+0080..U+009F are controls too: terminals act on them.
local function escape_c1(c) return ("\\u%04x"):format(0x80 + c:byte(2) - 0x80) end

--- Is it UTF-8? The codec knows.
---@return boolean
function M.is_utf8(text) return (json.encode(text)) ~= nil end

--- The text on one line, with everything that is not printable escaped.
---@param text string
---@return string
function M.plain(text)
  if not M.is_utf8(text) then return (text:gsub("[%c\127-\255]", escape)) end
  return (text:gsub("[%c\127]", escape):gsub("\194[\128-\159]", escape_c1))
end

--- For JSON: what came from messages or specs may be no UTF-8, or was cut inside a character. Tables are changed.
---@generic T
---@param value T
---@return T
function M.printable(value)
  if type(value) == "string" then
    if M.is_utf8(value) then return value end
    local whole = value:gsub("[\192-\255][\128-\191]*$", "")
    return M.is_utf8(whole) and whole or M.plain(value)
  elseif type(value) == "table" then
    for name, item in pairs(value) do value[name] = M.printable(item) end
  end
  return value
end

-- How many columns; wide characters are taken for one.
local function width(text)
  local _, continued = text:gsub("[\128-\191]", "")
  return #text - continued
end

--- Cut to `columns`, with a mark where it was cut.
---@param text string
---@param columns integer
---@return string
function M.cut(text, columns)
  if width(text) <= columns then return text end
  local bytes = 0
  for _ = 1, columns - 1 do
    bytes = bytes + 1
    while (text:byte(bytes + 1) or 0) >= 128 and text:byte(bytes + 1) < 192 do bytes = bytes + 1 end
  end
  return text:sub(1, bytes) .. "…"
end

-- ---- tables ----

local MOST = 60 -- columns of one cell that is not the last

local function widths_of(heads, rows)
  local widths = {}
  for i, head in ipairs(heads) do widths[i] = #head end
  for _, row in ipairs(rows) do
    for i, cell in ipairs(row) do widths[i] = math.min(MOST, math.max(widths[i], width(cell))) end
  end
  return widths
end

local function format_row(row, widths, columns)
  local parts, left = {}, columns
  for i, cell in ipairs(row) do
    if i == #row then
      parts[i] = columns and M.cut(cell, math.max(8, left)) or cell
    else
      if columns then cell = M.cut(cell, widths[i]) end
      parts[i] = cell .. (" "):rep(widths[i] - width(cell))
      if columns then left = left - widths[i] - 2 end
    end
  end
  return (table.concat(parts, "  "):gsub("%s+$", ""))
end

--- A table that is printed page by page: the first page decides the widths, so that a million rows need no memory.
--- Cells are plain text; the last column takes what is left of the line, and only a terminal cuts cells.
---@param heads string[]
---@return fun(rows: string[][])
function M.table(heads)
  local widths, columns = nil, core.terminal(1) or nil
  return function(rows)
    if not widths then
      widths = widths_of(heads, rows)
      M.line(M.colour("bold", format_row(heads, widths, columns)))
    end
    for _, row in ipairs(rows) do M.line(format_row(row, widths, columns)) end
  end
end

--- The lines of a small table, cut to `columns` when given.
---@param heads string[]
---@param rows string[][]
---@param columns integer|nil
---@return string[]
function M.layout(heads, rows, columns)
  local widths = widths_of(heads, rows)
  local lines = { format_row(heads, widths, columns) }
  for _, row in ipairs(rows) do lines[#lines + 1] = format_row(row, widths, columns) end
  for i, line in ipairs(lines) do lines[i] = columns and M.cut(line, columns) or line end
  return lines
end

-- ---- times and numbers ----

---@param seconds number since 1970
---@return string ISO 8601, UTC
function M.time(seconds)
  local whole = math.floor(seconds)
  return ("%s.%03dZ"):format(os.date("!%Y-%m-%dT%H:%M:%S", whole), math.floor((seconds - whole) * 1000 + 0.5) % 1000)
end

--- "1 letter", "2 letters"
---@return string
function M.count(n, one, many) return ("%d %s"):format(n, n == 1 and one or many or one .. "s") end

return M
