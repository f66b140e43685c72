--- moonwire publish: one message, or one a line.
local C = require "moonwire.internal.cdef"
local broker = require "moonwire.cli.broker.link"
local fail = require "moonwire.cli.fail"
local ffi = require "ffi"
local input = require "moonwire.cli.broker.input"
local lines = require "moonwire.cli.broker.lines"
local make = require "moonwire.internal.api.publish"
local out = require "moonwire.cli.out"
local task = require "moonwire.cli.task"

local parts = ffi.new "mw_parts"

local function headers_of(values)
  local headers = {}
  for _, header in ipairs(values.header or {}) do
    if headers[header[1]] then fail.usage("--header %s is given twice", header[1]) end
    headers[header[1]] = header[2]
  end
  return headers
end

local function options_of(values)
  if values.priority and values.priority > 9 then fail.usage "--priority must be a whole number from 0 to 9" end
  return {
    key = values.key, id = values.id, type = values.type, priority = values.priority, delay = values.delay,
    headers = headers_of(values),
  }
end

-- Where the body comes from must be clear before anything is opened.
local function check(values)
  local sources = (values.BODY and 1 or 0) + (values.file and 1 or 0)
  if sources > 1 then fail.usage "BODY and --file exclude each other" end
  if values.lines then
    if values.BODY and values.BODY ~= "-" then fail.usage "--lines reads standard input or --file, not BODY" end
    if values.id then fail.usage "--id cannot be the same for every line; --id-path takes it out of each" end
  elseif values["key-path"] or values["id-path"] then
    fail.usage "--key-path and --id-path go with --lines"
  end
  if values.key and values["key-path"] then fail.usage "--key and --key-path exclude each other" end
  if sources == 0 and not values.lines and out.terminal(0) then
    fail.usage "no body: give BODY, or - and type it, ended by Ctrl-D"
  end
end

local function body_of(values)
  if values.file then return input.all(values.file) end
  if values.BODY and values.BODY ~= "-" then return values.BODY end
  local body = input.all()
  if task.interrupted() then fail.raise(fail.FAILED, "interrupted: nothing was published") end
  return body
end

local function id_of(message)
  C.mw_message_parts(message, parts)
  return ffi.string(parts.id, parts.id_len)
end

local function publish_one(link, values, options)
  local message, err = make.message(body_of(values), options)
  if not message then fail.usage("%s", err) end
  local id = id_of(message)
  local ok, why, retryable = make.now(link.link, values.CHANNEL, message, values.delay)
  if not ok then
    fail.raise(retryable and fail.UNAVAILABLE or fail.FAILED, "not confirmed by %s: %s", link.url, why)
  end
  if not values.quiet then out.line(out.plain(id)) end
  return 0
end

local function run(values)
  broker.channel(values.CHANNEL)
  check(values)
  local options = options_of(values)
  out.broken_pipe_code = 1
  return task.run(function()
    local link = broker.open(values, { create = true })
    if values.delay and values.delay > 0 then broker.need(link, "delay") end
    if values.priority then broker.need(link, "priority") end
    if values.lines then return lines.publish(link, values, options) end
    return publish_one(link, values, options)
  end)
end

return {
  name = "publish",
  summary = "Publishes messages, waits until the broker has confirmed them, prints the id (--lines: the count).",
  details = "An embedded: store that does not exist is created.",
  arguments = {
    { "CHANNEL", "where to" },
    { "BODY", "the body; - or nothing: standard input", optional = true },
  },
  flags = {
    broker.FLAG,
    { "key", "KEY", "messages of one key keep their order", short = "k" },
    { "header", "NAME=VALUE", "a header; may stand several times", short = "H", kind = "header", many = true },
    { "id", "ID", "instead of a new UUID" },
    { "delay", "TIME", "deliver it that much later: 30, 10m, 1h", kind = "seconds" },
    { "priority", "N", "0 to 9, higher first (default: 4)", kind = "integer" },
    { "type", "TYPE", "content type, such as application/json" },
    { "file", "FILE", "read the body, or with --lines the lines, from this file", short = "f" },
    { "lines", nil, "one message a line; empty lines are left out", short = "l" },
    { "key-path", "PATH", "with --lines: take the key out of each line's JSON, such as customer.id" },
    { "id-path", "PATH", "with --lines: take the id out of each line's JSON" },
    { "quiet", nil, "print nothing", short = "q" },
  },
  examples = {
    [[moonwire publish --broker embedded:data orders '{"id": 1}' --key customer-7]],
    "moonwire publish --broker embedded:data orders --lines --key-path customer.id < orders.ndjson",
  },
  run = run,
}
