--- A message of C as plain values, and as JSON.
local C = require "moonwire.internal.cdef"
local ffi = require "ffi"
local json = require "moonwire.json"
local out = require "moonwire.cli.out"

local M = {}

local parts = ffi.new "mw_parts"
local at, view = ffi.new "size_t[1]", ffi.new "mw_header_view"

---@class moonwire.View
---@field position number
---@field id string
---@field key string|nil
---@field type string
---@field priority integer
---@field time number
---@field due number|nil
---@field headers table<string, string> the first of each name
---@field size integer of the body
---@field body string|nil when asked for

local function headers_of(p)
  local headers = {}
  at[0] = 0
  while C.mw_ffi_headers_next(p.headers, p.headers_len, at, view) do
    local name = ffi.string(view.name, view.name_len)
    if headers[name] == nil then headers[name] = ffi.string(view.value, view.value_len) end
  end
  return headers
end

---@param entry moonwire.Entry
---@param with_body boolean|nil
---@return moonwire.View
function M.of(entry, with_body)
  C.mw_message_parts(entry.message, parts)
  return {
    position = entry.position, due = entry.due, headers = headers_of(parts),
    id = ffi.string(parts.id, parts.id_len),
    key = parts.has_key and ffi.string(parts.key, parts.key_len) or nil,
    type = ffi.string(parts.type, parts.type_len),
    priority = parts.priority,
    time = tonumber(parts.time_ms) / 1000,
    size = tonumber(parts.body_len),
    body = with_body and ffi.string(parts.body, parts.body_len) or nil,
  }
end

-- ---- base64 ----

local ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
local alphabet = ffi.new("uint8_t[65]", ALPHABET)

---@param text string
---@return string
function M.base64(text)
  local band, rshift = bit.band, bit.rshift
  local n = #text
  local source, target = ffi.cast("const uint8_t *", text), ffi.new("uint8_t[?]", math.floor((n + 2) / 3) * 4 + 1)
  local to = 0
  for from = 0, n - 1, 3 do
    local b, c = from + 1 < n and source[from + 1] or 0, from + 2 < n and source[from + 2] or 0
    local bits = source[from] * 65536 + b * 256 + c
    target[to] = alphabet[rshift(bits, 18)]
    target[to + 1] = alphabet[band(rshift(bits, 12), 63)]
    target[to + 2] = from + 1 < n and alphabet[band(rshift(bits, 6), 63)] or 61
    target[to + 3] = from + 2 < n and alphabet[band(bits, 63)] or 61
    to = to + 4
  end
  return ffi.string(target, to)
end

-- ---- JSON ----

--- Sets a field; bytes that are not UTF-8 go into `<name>_base64`.
function M.put(object, name, value)
  if value == nil then return end
  if out.is_utf8(value) then object[name] = value else object[name .. "_base64"] = M.base64(value) end
end

local function put_headers(object, headers)
  local plain, odd = json.object(), nil
  for name, value in pairs(headers) do
    if out.is_utf8(name) and out.is_utf8(value) then
      plain[name] = value
    else
      odd = odd or json.object()
      odd[out.plain(name)] = M.base64(value)
    end
  end
  object.headers, object.headers_base64 = plain, odd
end

--- The message as `tail --json` and `dlq … --json` print it.
---@param v moonwire.View
---@return table
function M.object(v)
  local object = { position = v.position, time = out.time(v.time), priority = v.priority }
  if v.due then object.due = out.time(v.due) end
  M.put(object, "id", v.id)
  M.put(object, "key", v.key)
  if v.type ~= "" then M.put(object, "type", v.type) end
  put_headers(object, v.headers)
  M.put(object, "body", v.body)
  return object
end

return M
