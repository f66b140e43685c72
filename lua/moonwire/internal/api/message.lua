--- What a handler is given. Fields are made on first use: a handler that reads two fields of the body pays for two
--- fields.
--- After the verdict the record in C is gone; fields that were read before stay, others raise an error.
local C = require "moonwire.internal.cdef"
local body = require "moonwire.internal.api.body"
local ffi = require "ffi"

local M = {}

local parts = ffi.new "mw_parts"
local at, view = ffi.new "size_t[1]", ffi.new "mw_header_view"

---@class moonwire.Message
---@field id string
---@field body string the bytes as they came
---@field data any the body, decoded on first use (JSON)
---@field key string|nil
---@field headers table<string, string>
---@field attempt integer 1 for the first
---@field time number when it was published, seconds since 1970
---@field type string content type, "" when unknown
---@field priority integer 0..9
---@field channel string
---@field pipeline string
---@field reply_to string|nil the channel that a reply is wanted on, see mw.reply
---@field correlation_id string|nil
local Message = {}

local FIELDS = { "id", "body", "data", "key", "headers", "attempt", "time", "type", "priority", "channel", "pipeline",
                 "reply_to", "correlation_id" }

local SETTLED = "the message is settled: read what you need before the handler returns"

local function load_parts(self)
  local d = self[1]
  if d == nil then error(SETTLED, 4) end
  if rawget(self, 4) then C.mw_message_parts(d, parts) else C.mw_delivery_parts(d, parts) end
  return parts
end

--- Only body, key and time: the rest may not have been read yet, and that would cost more than these do.
local function load_content(self)
  local d = self[1]
  if d == nil then error(SETTLED, 4) end
  if rawget(self, 4) then C.mw_message_known(d, parts) else C.mw_delivery_known(d, parts) end
  return parts
end

local make = {}

function make.id(self)
  local p = load_parts(self)
  return ffi.string(p.id, p.id_len)
end

function make.body(self)
  local p = load_content(self)
  return ffi.string(p.body, p.body_len)
end

function make.key(self)
  local p = load_content(self)
  if p.has_key then return ffi.string(p.key, p.key_len) end
  return nil
end

function make.type(self)
  local p = load_parts(self)
  return ffi.string(p.type, p.type_len)
end

function make.time(self) return tonumber(load_content(self).time_ms) / 1000 end

function make.priority(self) return load_parts(self).priority end

function make.headers(self)
  local p = load_parts(self)
  local headers = {}
  at[0] = 0
  while C.mw_ffi_headers_next(p.headers, p.headers_len, at, view) do
    headers[ffi.string(view.name, view.name_len)] = ffi.string(view.value, view.value_len)
  end
  return headers
end

function make.data(self)
  local p = load_content(self)
  local value, err = body.decode(p.body, p.body_len)
  if err then M.invalid("body is not JSON: " .. err) end
  return value
end

--- Replaced by the runtime: raises a fault of class "invalid".
function M.invalid(text) error(text, 0) end

-- Where a field is kept that was read: not under its name, or setting it would go unnoticed. [1] to [4]: see M.wrap.
local SLOTS = {}
do
  local slot = 5
  for _, field in ipairs(FIELDS) do
    if make[field] then SLOTS[field], slot = slot, slot + 1 end
  end
end

local methods = {}

--- A few fields out of a JSON body, without decoding the rest: `msg:get("customer.id", "items.1.sku")`.
---@param ... string paths, dots between the steps, 1-based array positions
---@return any ... nil where there is nothing
function methods.get(self, ...)
  if getmetatable(self) ~= Message then error("msg.get: write msg:get(…), with a colon", 2) end
  if rawget(self, SLOTS.data) ~= nil then return M.dig(self.data, ...) end
  local p = load_content(self)
  return body.find(p.body, p.body_len, M.invalid, ...)
end

local function dig_one(value, path)
  for step in path:gmatch "[^.]+" do
    if type(value) ~= "table" then return nil end
    local next_value = value[step]
    if next_value == nil and step:find "^[1-9]%d*$" then next_value = value[tonumber(step)] end
    value = next_value
  end
  return value
end

function M.dig(value, path, ...)
  if path == nil then return end
  if select("#", ...) == 0 then return dig_one(value, path) end
  return dig_one(value, path), M.dig(value, ...)
end

---@param name string
---@return string|nil
function methods.header(self, name)
  if getmetatable(self) ~= Message then error("msg.header: write msg:header(…), with a colon", 2) end
  return self.headers[name]
end

function Message.__index(self, field)
  local slot = SLOTS[field]
  if slot then
    local value = rawget(self, slot)
    if value == nil then
      value = make[field](self)
      rawset(self, slot, value)
    end
    return value
  end
  if field == "attempt" then
    return self[2]
  elseif field == "channel" then
    return self[3].channel
  elseif field == "pipeline" then
    return self[3].name
  elseif field == "reply_to" then
    return self.headers["reply-to"]
  elseif field == "correlation_id" then
    return self.headers["correlation-id"]
  end
  local method = methods[field]
  if method then return method end
  if type(field) ~= "string" then return nil end
  local nearest = require "moonwire.internal.nearest"(field, FIELDS)
  error(("a message has no field %q%s"):format(field, nearest and ("; did you mean %q?"):format(nearest) or ""), 2)
end

function Message.__newindex(_, field)
  error(("a message cannot be changed: publish a new one instead of setting %q"):format(tostring(field)), 2)
end

--- [1] the delivery in C until it is settled, [2] attempt, [3] the pipeline's table. The delivery and not its message:
--- the worker has that pointer already, and another one would be another object for the collector.
function M.wrap(delivery, attempt, pipeline) return setmetatable({ delivery, attempt, pipeline }, Message) end

--- The same for a message that is no delivery; [4] says so.
function M.view(record, attempt, pipeline)
  return setmetatable({ record, attempt or 1, pipeline or {}, true }, Message)
end

--- From now on nothing more can be read out of C.
function M.seal(message) message[1] = nil end

return M
