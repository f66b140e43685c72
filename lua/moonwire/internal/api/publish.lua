--- mw.publish, and the making of messages that it shares with the CLI.
local C = require "moonwire.internal.cdef"
local fault = require "moonwire.internal.api.fault"
local ffi = require "ffi"
local fields = require "moonwire.internal.config.fields"
local json = require "moonwire.json"
local nearest = require "moonwire.internal.nearest"
local wait = require "moonwire.internal.wait"

local M = {}

local OPTIONS = { "key", "headers", "id", "delay", "priority", "type", "now", "of", "ttl", "routing_key",
                  "correlation_id", "reply_to" }
local KNOWN = {}
for _, name in ipairs(OPTIONS) do KNOWN[name] = true end

local DELAY_MOST = 3.15e9
local parts, failure = ffi.new "mw_parts", ffi.new "mw_failure"
local uuid = ffi.new "char[37]"

function M.uuid()
  C.mw_uuid(uuid)
  return ffi.string(uuid, 36)
end

local function add_headers(block, headers)
  for name, value in pairs(headers) do
    if type(name) ~= "string" or name == "" then
      return nil, "a header's name must be a string, got " .. tostring(name)
    end
    if #name > 255 then return nil, ("a header's name has %d bytes, over the limit of 255"):format(#name) end
    if type(value) == "number" or type(value) == "boolean" then value = tostring(value) end
    if type(value) ~= "string" then return nil, ("header %q must be a string, got %s"):format(name, type(value)) end
    C.mw_ffi_headers_add(block, name, #name, value, #value)
  end
  return true
end

--- An option that does not exist, or nil. The first few are looked at without a loop: the compiler does not take a
--- handler in one piece that runs into a loop which it has compiled already.
local function unknown_option(options)
  local name = next(options)
  if name == nil then return nil end
  if not KNOWN[name] then return name end
  name = next(options, name)
  if name == nil then return nil end
  if not KNOWN[name] then return name end
  name = next(options, name)
  if name == nil then return nil end
  for other in pairs(options) do
    if not KNOWN[other] then return other end
  end
  return nil
end

function M.knows_option(name) return KNOWN[name] or false end

---@param name any
---@param more string|nil a name that is known too
---@return string
function M.unknown_option_text(name, more)
  local known = more and { more, unpack(OPTIONS) } or OPTIONS
  local near = type(name) == "string" and nearest(name, known)
  return ("unknown option %q%s"):format(tostring(name), near and ("; did you mean %q?"):format(near) or "")
end

local function check_options(options)
  local name = unknown_option(options)
  if name ~= nil then return nil, M.unknown_option_text(name) end
  local p, d = options.priority, options.delay
  if p ~= nil and (type(p) ~= "number" or p < 0 or p > 9 or p % 1 ~= 0) then
    return nil, "priority must be a whole number from 0 to 9"
  end
  if d ~= nil and (type(d) ~= "number" or d < 0 or d ~= d or d > DELAY_MOST) then
    return nil, ("delay must be seconds, 0 or more and at most %g (a hundred years), got %s"):format(DELAY_MOST,
      tostring(d))
  end
  if options.id ~= nil and (type(options.id) ~= "string" or options.id == "") then
    return nil, "id must be a string that is not empty"
  end
  if options.type ~= nil and type(options.type) ~= "string" then return nil, "type must be a string" end
  if options.headers ~= nil and type(options.headers) ~= "table" then return nil, "headers must be a table" end
  if options.now ~= nil and type(options.now) ~= "boolean" then return nil, "now must be true or false" end
  return true
end

local function encode(body)
  if type(body) == "string" then return body end
  if body == nil then return nil, "the body is nil" end
  local text, err = json.encode(body)
  if not text then return nil, "the body cannot be JSON: " .. err end
  return text
end

local kept = {} -- luacheck: ignore 241 (what `parts` points into must live as long as it may be read)

--- Fills `parts` with everything but the body and the headers. Encoding the body leaves the compiled code, and what
--- comes after it in the handler is interpreted: so this stands before it, and little after it.
local function prepare(body, options)
  local ok, err = check_options(options)
  if not ok then return nil, err end
  local key, id = options.key, options.id
  if key ~= nil and type(key) ~= "string" then
    if type(key) ~= "number" then return nil, "key must be a string" end
    key = tostring(key)
  end
  local type_ = options.type or type(body) == "string" and "" or "application/json"
  kept.key, kept.id, kept.type = key, id, type_
  if key then
    parts.key, parts.key_len, parts.has_key = key, #key, true
  else
    parts.key_len, parts.has_key = 0, false
  end
  if id then
    parts.id, parts.id_len = id, #id
  else
    C.mw_uuid(uuid)
    parts.id, parts.id_len = uuid, 36
  end
  parts.type, parts.type_len = type_, #type_
  parts.priority = options.priority or 4
  parts.time_ms = C.mw_vm_now(wait.vm) * 1000
  parts.headers_len = 0
  return true
end

local function with_headers(headers)
  local block = ffi.new "mw_headers_out"
  local ok, err = add_headers(block, headers)
  if not ok then
    C.mw_ffi_headers_free(block)
    return nil, err
  end
  parts.headers, parts.headers_len = block.data, block.len
  local m = C.mw_message_make(parts, failure)
  C.mw_ffi_headers_free(block)
  if m == nil then return nil, ffi.string(failure.text) end -- the pointer NULL, which is true
  return m
end

--- A message in C, with one reference for the caller.
---@return ffi.cdata*|nil message, string|nil error
function M.message(body, options)
  local ok, err = prepare(body, options)
  if not ok then return nil, err end
  local text, why = encode(body)
  if not text then return nil, why end
  parts.body, parts.body_len = text, #text
  if options.headers then return with_headers(options.headers) end
  local m = C.mw_message_make(parts, failure)
  if m == nil then return nil, ffi.string(failure.text) end
  return m
end

local function milliseconds(seconds) return math.floor((seconds or 0) * 1000 + 0.5) end

--- Ties a message to the ack of a delivery.
---@return boolean|nil ok, string|nil error
local function attach(delivery, link, channel, body, options)
  if options.headers then
    local m, err = M.message(body, options)
    if not m then return nil, err end
    local rc = C.mw_delivery_attach(delivery, link, channel, m, milliseconds(options.delay), failure)
    C.mw_message_unref(m)
    if rc ~= 0 then return nil, ffi.string(failure.text) end
    return true
  end
  local ok, err = prepare(body, options)
  if not ok then return nil, err end
  local delay = milliseconds(options.delay)
  local text, why = encode(body)
  if not text then return nil, why end
  if C.mw_delivery_send(delivery, link, channel, parts, text, #text, delay, failure) ~= 0 then
    return nil, ffi.string(failure.text)
  end
  return true
end

--- Publishes now and waits for the broker's confirm.
---@return boolean|nil ok, string|nil error, boolean|nil retryable
function M.now(link, channel, m, delay)
  local waiter = wait.begin()
  C.mw_vm_publish(wait.vm, link, channel, m, milliseconds(delay), waiter)
  C.mw_message_unref(m)
  -- The broker may have it by the time the task is cancelled: there is nothing to undo.
  local _, _, err, retryable = wait.yield(waiter, function() end)
  if err then return nil, err, retryable end
  return true
end

--- Options that travel as headers: what has a property for them (RabbitMQ) uses that, others carry the header.
local AS_HEADERS = { correlation_id = "correlation-id", reply_to = "reply-to" }

--- The options with those among the headers; the same table when there are none of them.
---@return table|nil options, string|nil error
function M.with_properties(options)
  if options.ttl == nil and options.correlation_id == nil and options.reply_to == nil then return options end
  if options.headers ~= nil and type(options.headers) ~= "table" then return options end -- refused in a moment
  local copy, headers = {}, {}
  for k, v in pairs(options) do copy[k] = v end
  for k, v in pairs(options.headers or {}) do headers[k] = v end
  for name, header in pairs(AS_HEADERS) do
    local value = options[name]
    if value ~= nil and type(value) ~= "string" then return nil, name .. " must be a string" end
    headers[header] = value or headers[header]
    copy[name] = nil
  end
  if options.ttl ~= nil then
    if type(options.ttl) ~= "number" or options.ttl < 0 or options.ttl > 4e6 then
      return nil, "ttl must be seconds, from 0 to 4000000"
    end
    headers.expiration = ("%d"):format(options.ttl * 1000)
    copy.ttl = nil
  end
  copy.headers = headers
  return copy
end

local function root_task()
  local task = wait.current
  while task and task.parent do task = task.parent end
  return task
end

-- Looking through a name leaves the compiled code, so each is looked at once.
local names, name_count = {}, 0

local function check_name(name)
  if not fields.is_name(name) then
    error(name == "" and "mw.publish: the channel's name is empty"
      or "mw.publish: the channel's name must have at most 249 bytes and no control characters", 4)
  end
  if name_count == 1000 then names, name_count = {}, 0 end
  names[name], name_count = true, name_count + 1
end

--- The link, and the names of the channels: an exchange stands for several in specs.
local function resolve(target, task, options)
  if type(target) == "string" then
    if not names[target] then check_name(target) end
    return task.pipeline.link, target
  end
  if type(target) == "table" and target.addresses then
    local channels, err = target:addresses(options.routing_key, options.headers)
    if not channels then error("mw.publish: " .. err, 3) end
    return target.connection.link, channels
  end
  if type(target) == "table" and target.link_of then return target:link_of(), target.name end
  error("mw.publish: expected a channel or its name, got " .. type(target), 3)
end
M.resolve = resolve

local function delivery_for(task, of)
  if not task.batch then
    if of ~= nil and not (type(of) == "table" and rawget(of, 1) == task.delivery) then
      error("mw.publish: of is for handle_batch: here it goes with the ack of the one message", 3)
    end
    return task.delivery
  end
  for i, msg in ipairs(task.messages) do
    if msg == of then return task.batch[i - 1] end
  end
  if of ~= nil then error("mw.publish: of must be a message of this batch", 3) end
  return nil -- a batch has no single ack to tie it to: it is sent at once
end

local source = ffi.new "mw_parts"

--- The options, with the traceparent of the message that is being handled.
local function add_trace(options)
  if options.headers ~= nil and type(options.headers) ~= "table" then return options end -- refused in a moment
  local at, view = ffi.new "size_t[1]", ffi.new "mw_header_view"
  while C.mw_ffi_headers_next(source.headers, source.headers_len, at, view) do
    if ffi.string(view.name, view.name_len) == "traceparent" then
      local copy = {}
      for k, v in pairs(options) do copy[k] = v end
      copy.headers = { traceparent = ffi.string(view.value, view.value_len) }
      for k, v in pairs(options.headers or {}) do copy.headers[k] = v end
      return copy
    end
  end
  return options
end

local function with_trace(task, options)
  if task.batch then return options end
  C.mw_message_parts(C.mw_delivery_message(task.delivery), source)
  if source.headers_len == 0 then return options end
  return add_trace(options)
end

local NO_OPTIONS = {}

local CAN_DELAY = 1 -- as in core/driver.h

--- Why this broker cannot be asked for the delay; nil: it can. Sent at once it would be handled too early, and nobody
--- would notice.
---@param link ffi.cdata*
---@param delay any
---@return string|nil
function M.delay_problem(link, delay)
  if type(delay) == "number" and delay > 0 and bit.band(C.mw_vm_link_can(link), CAN_DELAY) == 0 then
    return "delay: this broker cannot hold messages back"
  end
end

local function check_delay(link, options)
  local problem = M.delay_problem(link, options.delay)
  if problem then
    error(("mw.publish: %s; mw.retry { after = … } delays the handling of the message at hand"):format(problem), 3)
  end
end

--- Sends a message. It leaves with the ack: in the same transaction where the broker has them, else confirmed before
--- it; when the handler fails, it is not sent. With `now = true` it is sent at once and the call waits for the confirm.
---@param target moonwire.Channel|string a channel, or a name on the pipeline's own connection
---@param body any a string is sent as it is, anything else as JSON
---@param options moonwire.PublishOptions|nil
function M.publish(target, body, options)
  local task = root_task()
  if not task or task.delivery == nil then error("mw.publish: only inside a handler", 2) end
  options = options or NO_OPTIONS
  if type(options) ~= "table" then error("mw.publish: the options must be a table", 2) end
  local link, channel = resolve(target, task, options)
  check_delay(link, options)
  if options.routing_key ~= nil and type(target) == "table" and not target.addresses or type(target) == "string"
    and options.routing_key ~= nil then
    error("mw.publish: routing_key is for exchanges, such as broker:exchange \"orders\"", 2)
  end
  local err
  options, err = M.with_properties(options)
  if not options then error("mw.publish: " .. err, 2) end
  local delivery = not options.now and delivery_for(task, options.of) or nil
  options = with_trace(task, options)
  if type(channel) == "table" then
    for _, name in ipairs(channel) do M.send(delivery, link, name, body, options) end
  else
    M.send(delivery, link, channel, body, options)
  end
end

--- To one channel: with the ack of the delivery, or at once without one.
function M.send(delivery, link, channel, body, options)
  if delivery ~= nil then
    local ok, err = attach(delivery, link, channel, body, options)
    if not ok then error("mw.publish: " .. err, 3) end
    return
  end
  wait.ready "mw.publish with now"
  local m, err = M.message(body, options)
  if not m then error("mw.publish: " .. err, 3) end
  local ok, why, retryable = M.now(link, channel, m, options.delay)
  if not ok then
    local text = ("publish to %s: %s"):format(channel, why)
    error(fault.new { class = retryable and "transient" or "invalid", text = text }, 0)
  end
end

M.root_task = root_task

return M
