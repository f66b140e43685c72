--- The connections to servers, as `status` shows them: one row each, of every process that was asked.
local figures = require "moonwire.cli.process.figures"
local out = require "moonwire.cli.out"

local M = {}

--- One table for each connection of each process; what one process says is marked with its pid.
---@param answers { pid: integer, reply: table }[]
---@return table[]
function M.each(answers)
  local list = {}
  for _, answer in ipairs(answers) do
    for _, c in ipairs(answer.reply.connections or {}) do -- none from another version, perhaps
      c.pid = answer.pid
      list[#list + 1] = c
    end
  end
  return list
end

local function state(c)
  if c.state == "up" then return c.tls and "up, " .. c.tls or "up" end
  return c.state
end

--- Heads and rows for out.table; with pids in front when there is more than one process.
---@param list table[] of `each`
---@param pids boolean
---@return string[] heads, string[][] rows
function M.table(list, pids)
  local heads, rows = { "CONNECTION", "FOR", "STATE", "SINCE", "ADDRESS", "UPS", "IN", "OUT", "LAST ERROR" }, {}
  if pids then table.insert(heads, 1, "PID") end
  for i, c in ipairs(list) do
    rows[i] = { out.plain(c.broker), c.name, state(c), figures.seconds(c.since), out.plain(c.address or "-"),
      ("%d"):format(c.connects), figures.bytes(c.bytes_in), figures.bytes(c.bytes_out), out.plain(c.error or "-") }
    if pids then table.insert(rows[i], 1, tostring(c.pid)) end
  end
  return heads, rows
end

return M
