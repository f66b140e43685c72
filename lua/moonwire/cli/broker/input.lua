--- Standard input or a file, read inside a task: while nothing comes, the loop turns and a signal is seen.
local fail = require "moonwire.cli.fail"
local out = require "moonwire.cli.out"
local posix = require "moonwire.cli.posix"
local task = require "moonwire.cli.task"

local M = {}

local STDIN = 0
local FILE_CHUNK = 256 * 1024
local PAUSE_LEAST, PAUSE_MOST = 0.001, 0.05

local function from_stdin()
  local pause = PAUSE_LEAST
  return function()
    while not task.interrupted() do
      if posix.readable(STDIN) then
        pause = PAUSE_LEAST
        local data, err = posix.read(STDIN)
        if err then fail.raise(fail.FAILED, "cannot read standard input: %s", err) end
        if data then return data ~= "" and data or nil end
      else
        task.sleep(pause)
        pause = math.min(pause * 2, PAUSE_MOST)
      end
    end
    return nil
  end
end

local function from_file(path)
  local file, why = io.open(path, "rb")
  if not file then fail.raise(fail.FAILED, "cannot read %s", why) end
  return function()
    local data, err = file:read(FILE_CHUNK)
    if err then fail.raise(fail.FAILED, "cannot read %s: %s", path, err) end
    if not data then file:close() end
    return data
  end
end

--- Gives one chunk a call, nil at the end.
---@param path string|nil nil or "-": standard input
---@return fun(): string|nil
function M.chunks(path)
  if path == nil or path == "-" then return from_stdin() end
  return from_file(path)
end

--- Everything.
---@param path string|nil
---@return string
function M.all(path)
  local pieces = {}
  for chunk in M.chunks(path) do pieces[#pieces + 1] = chunk end
  return table.concat(pieces)
end

--- Gives one line a call, without its end, with its number; empty lines are left out.
---@param path string|nil
---@return fun(): string|nil, integer|nil
function M.lines(path)
  local next_chunk = M.chunks(path)
  local chunk, at, number, open = "", 1, 0, {} -- open: pieces of a line whose end has not come yet
  local function line_of(piece)
    number = number + 1
    if #open == 0 then return piece end
    open[#open + 1] = piece
    local line = table.concat(open)
    open = {}
    return line
  end
  local function step() -- one line, even an empty one; nil at the end
    while true do
      local stop = chunk:find("\n", at, true)
      if stop then
        local from = at
        at = stop + 1
        return line_of(chunk:sub(from, stop - 1))
      end
      if at <= #chunk then open[#open + 1] = chunk:sub(at) end
      chunk, at = next_chunk(), 1
      if not chunk then
        chunk = ""
        return #open > 0 and line_of "" or nil
      end
    end
  end
  return function()
    local line
    repeat line = step() until line == nil or line:find "%S"
    return line, number
  end
end

--- Asks on the terminal.
---@param question string
---@return boolean yes
function M.confirm(question)
  out.flush()
  out.err(question .. " [y/N] ")
  local text = ""
  for chunk in M.chunks() do
    text = text .. chunk
    if text:find "\n" then break end
  end
  return text:lower():match "^%s*y" ~= nil
end

--- Is there a person to ask?
---@return boolean
function M.can_ask() return out.terminal(0) and out.terminal(2) and true or false end

return M
