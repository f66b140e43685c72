--- publish --lines: many messages in flight at a time, so that the broker can commit them together.
local body = require "moonwire.internal.api.body"
local fail = require "moonwire.cli.fail"
local input = require "moonwire.cli.broker.input"
local json = require "moonwire.json"
local make = require "moonwire.internal.api.publish"
local out = require "moonwire.cli.out"
local task = require "moonwire.cli.task"

local M = {}

local IN_FLIGHT, BYTES_IN_FLIGHT = 4096, 64 * 1024 * 1024
local LINES_TOLD = 10 -- numbers of lines that were not confirmed

--- A key or id out of JSON, as text.
---@return string|nil text, string|nil error
local function text_at(line, path)
  local ok, value = pcall(body.find, line, #line, function(text) error({ text = text }, 0) end, path)
  if not ok then return nil, type(value) == "table" and value.text or tostring(value) end
  if value == nil or value == json.null then return nil, ("there is nothing at %q"):format(path) end
  if type(value) == "table" then return nil, ("what stands at %q is no text or number"):format(path) end
  if type(value) == "number" then return ("%.14g"):format(value) end
  return (tostring(value):gsub("U?LL$", ""))
end

local function message_of(line, values, options)
  local err
  if values["key-path"] then
    options.key, err = text_at(line, values["key-path"])
    if err then return nil, err end
  end
  if values["id-path"] then
    options.id, err = text_at(line, values["id-path"])
    if err then return nil, err end
  end
  return make.message(line, options)
end

local function note_failure(tally, number, why, retryable)
  tally.failed = tally.failed + 1
  tally.why = tally.why or why
  tally.retryable = tally.retryable or retryable
  if #tally.numbers < LINES_TOLD then tally.numbers[#tally.numbers + 1] = number end
end

-- Publishes until the end, an interrupt, or the first line that fails: more of the same would fail as well.
local function pump(link, values, options, tally)
  local window = task.window(IN_FLIGHT, BYTES_IN_FLIGHT)
  for line, number in input.lines(values.file) do
    if tally.failed > 0 or task.interrupted() then break end
    local message, err = message_of(line, values, options)
    if not message then
      tally.refused = ("line %d: %s"):format(number, out.plain(err))
      break
    end
    window:start(function()
      local ok, why, retryable = make.now(link.link, values.CHANNEL, message, values.delay)
      if ok then tally.confirmed = tally.confirmed + 1 else note_failure(tally, number, why, retryable) end
    end, #line)
  end
  window:finish()
end

local function verdict(link, tally)
  if tally.failed > 0 then
    local told = table.concat(tally.numbers, ", ") .. (tally.failed > #tally.numbers and ", …" or "")
    fail.raise(tally.retryable and fail.UNAVAILABLE or fail.FAILED,
      "%d confirmed, %d not confirmed by %s (line %s): %s", tally.confirmed, tally.failed, link.url, told, tally.why)
  end
  if tally.refused then fail.raise(fail.FAILED, "%d confirmed, then stopped: %s", tally.confirmed, tally.refused) end
  if task.interrupted() then fail.raise(fail.FAILED, "interrupted: %d confirmed", tally.confirmed) end
end

---@param link moonwire.Broker
---@param values table
---@param options table
---@return integer
function M.publish(link, values, options)
  local tally = { confirmed = 0, failed = 0, numbers = {} }
  pump(link, values, options, tally)
  verdict(link, tally)
  if not values.quiet then out.line(("%d published"):format(tally.confirmed)) end
  return 0
end

return M
