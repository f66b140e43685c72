--- Reading a message's body where it lies, in C memory: the whole of it into tables, or single fields without
--- building the rest.
local ffi = require "ffi"
local json = require "moonwire.json"
local core = require "moonwire.json.core"

if not pcall(ffi.typeof, "struct mw_json_value") then -- once per process; busted loads modules again
  ffi.cdef [[
    struct mw_json_value {
      int32_t type; uint32_t count, node, len; const char *text; double number; int64_t integer;
    };
  ]]
end
ffi.cdef [[
  struct mw_json_doc;
  struct mw_json_doc *mw_json_new(void);
  void mw_json_free(struct mw_json_doc *doc);
  int mw_json_parse(struct mw_json_doc *doc, const char *text, size_t len);
  const char *mw_json_error(const struct mw_json_doc *doc);
  int mw_json_find(const struct mw_json_doc *doc, const char *path, size_t path_len, struct mw_json_value *out);
]]

local C = ffi.C
local M = {}

local doc = ffi.gc(C.mw_json_new(), C.mw_json_free)
local doc_address = tonumber(ffi.cast("uintptr_t", doc))
local value = ffi.new "struct mw_json_value"

---@param pointer ffi.cdata*
---@param len integer
---@return any value, string|nil error
function M.decode(pointer, len) return core.decode_at(tonumber(ffi.cast("uintptr_t", pointer)), tonumber(len)) end

-- Types as in json.h.
local NULL, FALSE, TRUE, NUMBER, STRING = 1, 2, 3, 4, 7

local function found(path)
  local kind = C.mw_json_find(doc, path, #path, value)
  if kind == STRING then return ffi.string(value.text, value.len) end
  if kind == NUMBER then return value.number end
  if kind == 0 then return nil end
  if kind == TRUE then return true end
  if kind == FALSE then return false end
  if kind == NULL then return json.null end
  return core.push_doc(doc_address, value.node) -- tables and integers beyond 2^53
end

local function rest(path, ...)
  if path == nil then return end
  return found(path), rest(...)
end

--- The values at the paths, nil where there is nothing. `invalid(text)` is called, and must raise, when the body is
--- not JSON.
function M.find(pointer, len, invalid, path, second, ...)
  if C.mw_json_parse(doc, pointer, len) ~= 0 then invalid("body is not JSON: " .. ffi.string(C.mw_json_error(doc))) end
  if second == nil then return found(path) end
  return found(path), rest(second, ...)
end

return M
