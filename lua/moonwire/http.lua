--- mw.http: HTTP requests that look blocking and yield the loop. The transfer lives in C (runtime/http); this file
--- checks and encodes what goes out, waits, and shapes what came back. The module is a builder: it returns
--- `function(vm, http)`, called once per generation with the C objects, which returns the `mw.http` table.
local ffi = require "ffi"
local fault = require "moonwire.internal.api.fault"
local json = require "moonwire.json"
local nearest = require "moonwire.internal.nearest"
local wait = require "moonwire.internal.wait"

-- Struct bodies cannot be declared twice; the runtime may have declared them already.
if not pcall(ffi.typeof, "mw_http_spec") then
  ffi.cdef [[
    struct mw_vm;
    typedef struct mw_http mw_http;
    typedef struct mw_http_request mw_http_request;
    typedef struct mw_http_spec {
      const char *method;
      const char *url;
      const char *body;
      size_t body_len;
      const char *const *headers;
      size_t header_count;
      const char *ca_file;
      const char *cert_file, *key_file;
      const char *user, *password;
      size_t max_bytes;
      int timeout_ms;
      int connect_timeout_ms;
      bool follow;
      bool insecure;
      bool env_proxy;
    } mw_http_spec;
    mw_http_request *mw_http_start_for(struct mw_vm *vm, mw_http *h, const mw_http_spec *spec, double waiter);
    void mw_http_request_free(mw_http_request *r);
    int mw_http_status(const mw_http_request *r);
    double mw_http_elapsed(const mw_http_request *r);
    const char *mw_http_error(const mw_http_request *r);
    const char *mw_http_error_kind(const mw_http_request *r);
    const char *mw_http_body(const mw_http_request *r, size_t *len);
    bool mw_http_header_at(const mw_http_request *r, size_t i, const char **name, size_t *name_len,
                           const char **value, size_t *value_len);
  ]]
end

---@class moonwire.http.Options
---@field headers? table<string, string|number|string[]>|string[]  name -> value (a list repeats it), or whole lines
---@field query? table<string, string|number|boolean|table>  added to the URL, percent-encoded, sorted by name
---@field body? string|table  a string goes out as it is, a table as JSON
---@field json? any           the body, encoded as JSON
---@field form? table<string, string|number|boolean|table>  the body, as a web form
---@field timeout? number          seconds for the whole request; default 30
---@field connect_timeout? number  seconds until connected; default 10
---@field follow? boolean     follow redirects, 5 at most; default false
---@field max_bytes? integer  the largest response body taken; default 16 MiB
---@field auth? { user: string, password: string }  basic authentication
---@field bearer? string      the token of an "Authorization: Bearer" header
---@field ca? string          file of CA certificates to trust instead of the system's
---@field cert? string        file of the client certificate
---@field key? string         file of its private key
---@field insecure? boolean   accept any certificate
---@field env_proxy? boolean  use http_proxy, https_proxy and no_proxy; default false
---@field raise? boolean      false: a failure returns nil, text, kind instead of raising

---@class moonwire.http.Request : moonwire.http.Options
---@field method? string  default "GET"
---@field url string

---@class moonwire.http.Reply
---@field status integer
---@field ok boolean  the status is 2xx
---@field headers table<string, string>  names in lower case, looked up in any case; repeated ones joined with ", "
---@field body string
---@field elapsed number  seconds
local Reply = {}
Reply.__index = Reply

--- The body, decoded once and kept. Raises when it is not JSON.
---@return any
function Reply:json()
  local kept = rawget(self, "decoded")
  if kept then return kept[1] end
  local ok, value, problem = pcall(json.decode, self.body)
  if not ok then
    value, problem = nil, value
  end
  if value == nil and problem ~= nil then
    error(("the response (status %d, %s) is not JSON: %s; it begins with %q"):format(self.status,
      self.headers["content-type"] or "no content-type", tostring(problem), self.body:sub(1, 60)), 2)
  end
  self.decoded = { value }
  return value
end

local any_case = {
  __index = function(headers, name)
    return type(name) == "string" and rawget(headers, name:lower()) or nil
  end,
}

-- Option -> the types it may have. Anything else is a misspelling.
local OPTIONS = {
  method = "string", url = "string", headers = "table", query = "table", body = "string table", json = "any",
  form = "table", timeout = "number", connect_timeout = "number", follow = "boolean", max_bytes = "number",
  auth = "table", bearer = "string", ca = "string", cert = "string", key = "string", insecure = "boolean",
  env_proxy = "boolean", raise = "boolean",
}
local NAMES = {}
for name in pairs(OPTIONS) do NAMES[#NAMES + 1] = name end
table.sort(NAMES)

local LONGEST_S = 86400

-- ---- checking: each returns a problem, or nil ----

local function check_seconds(name, value)
  if value and not (value > 0 and value <= LONGEST_S) then
    return ("%s must be a number of seconds above 0 and up to %d"):format(name, LONGEST_S)
  end
end

local function check_options(o)
  for name, value in pairs(o) do
    local types = OPTIONS[name]
    if not types then
      local near = nearest(tostring(name), NAMES)
      return ("unknown option %q%s"):format(tostring(name), near and ("; did you mean %q?"):format(near) or "")
    end
    if types ~= "any" and not types:find(type(value), 1, true) then
      return ("%s must be a %s, not a %s"):format(name, types:gsub(" ", " or "), type(value))
    end
    -- past this point strings become C strings
    if type(value) == "string" and name ~= "body" and name ~= "json" and name ~= "url" and value:find("%z") then
      return ("%s contains a NUL byte"):format(name)
    end
  end
  if not o.url or o.url == "" then return "the URL is missing" end
  local bodies = (o.body ~= nil and 1 or 0) + (o.json ~= nil and 1 or 0) + (o.form and 1 or 0)
  if bodies > 1 then return "only one of body, json and form can be given" end
  if o.auth and o.bearer then return "only one of auth and bearer can be given" end
  if o.max_bytes and not (o.max_bytes >= 1 and o.max_bytes <= 2 ^ 31) then
    return "max_bytes must be from 1 to 2147483648"
  end
  return check_seconds("timeout", o.timeout) or check_seconds("connect_timeout", o.connect_timeout)
end

local function check_auth(auth)
  for name, value in pairs(auth) do
    if name ~= "user" and name ~= "password" then
      return ("auth takes user and password, not %q"):format(tostring(name))
    end
    if type(value) ~= "string" or value:find("%z") then return ("auth.%s must be a string"):format(name) end
  end
  if not auth.user then return "auth.user is missing" end
  if auth.user:find(":", 1, true) then return "auth.user must not contain a colon" end
end

-- ---- encoding ----

local function escape(text)
  return (tostring(text):gsub("[^%w%-%._~]", function(c) return ("%%%02X"):format(c:byte()) end))
end

local function scalar(value)
  local t = type(value)
  if t == "number" and value % 1 == 0 and math.abs(value) < 2 ^ 53 then return ("%d"):format(value) end
  if t == "string" or t == "number" or t == "boolean" then return tostring(value) end
end

--- a=1&b=2&b=3, sorted by name so that the same table is always the same text.
local function encode_pairs(what, values)
  local names, out = {}, {}
  for name in pairs(values) do
    if type(name) ~= "string" then return nil, what .. " must be a table of name = value" end
    names[#names + 1] = name
  end
  table.sort(names)
  for _, name in ipairs(names) do
    local list = values[name]
    if type(list) ~= "table" then list = { list } end
    for _, value in ipairs(list) do
      local text = scalar(value)
      if not text then return nil, ("%s.%s must be a string, number or boolean"):format(what, name) end
      out[#out + 1] = escape(name) .. "=" .. escape(text)
    end
  end
  return table.concat(out, "&")
end

local function with_query(url, query)
  local text, problem = encode_pairs("query", query)
  if not text then return nil, problem end
  if text == "" then return url end
  local base, fragment = url:match "^([^#]*)(.*)$"
  local glue = not base:find("?", 1, true) and "?" or base:find "[?&]$" and "" or "&"
  return base .. glue .. text .. fragment
end

--- The header lines in a stable order, and the set of names in lower case.
local function header_lines(headers)
  local lines, seen, names = {}, {}, {}
  for i, line in ipairs(headers) do
    local name = type(line) == "string" and line:match "^([^:]*):"
    if not name then return nil, ("headers[%d] must be a line \"Name: value\""):format(i) end
    lines[i], seen[name:lower()] = line, true
  end
  for name in pairs(headers) do
    if type(name) == "string" then
      names[#names + 1] = name
    elseif type(name) ~= "number" or not lines[name] then
      return nil, "headers must be a table of name = value, or a list of lines"
    end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    local list = headers[name]
    if type(list) ~= "table" then list = { list } end
    for _, value in ipairs(list) do
      local text = type(value) ~= "boolean" and scalar(value)
      if not text then return nil, ("headers[%q] must be a string"):format(name) end
      lines[#lines + 1], seen[name:lower()] = name .. ": " .. text, true
    end
  end
  return lines, seen
end

local function encode_json(value)
  local ok, text, problem = pcall(json.encode, value)
  if not ok then return nil, "the body cannot be encoded as JSON: " .. tostring(text) end
  if not text then return nil, "the body cannot be encoded as JSON: " .. tostring(problem) end
  return text
end

--- The body's bytes and its content type, or nil, nil, problem. No body is all nil.
local function encode_body(o)
  if type(o.body) == "string" then return o.body end
  if o.form then
    local text, problem = encode_pairs("form", o.form)
    return text, "application/x-www-form-urlencoded", problem
  end
  local value = o.json
  if value == nil then value = o.body end
  if value == nil then return nil end
  local text, problem = encode_json(value)
  return text, "application/json", problem
end

local function milliseconds(seconds) return math.max(1, math.ceil(seconds * 1000)) end

--- The C spec and what must stay alive while C reads it; or nil, problem, kind: "invalid" when a value that may
--- come from a message is to blame (a URL, a header), nil when the program is.
local function prepare(o)
  local problem = check_options(o) or o.auth and check_auth(o.auth)
  if problem then return nil, problem end
  if o.url:find "%z" then return nil, "the URL contains a NUL byte", "invalid" end
  local url = o.url
  if o.query then
    url, problem = with_query(url, o.query)
    if not url then return nil, problem end
  end
  local lines, seen = header_lines(o.headers or {})
  if not lines then return nil, seen end
  for _, line in ipairs(lines) do
    if line:find "[%z\r\n]" then return nil, "a header contains a line break or NUL byte", "invalid" end
  end
  local body, content_type, wrong = encode_body(o)
  if wrong then return nil, wrong end
  if content_type and not seen["content-type"] then lines[#lines + 1] = "Content-Type: " .. content_type end
  if o.bearer then
    if o.bearer:find "[%c ]" then return nil, "bearer must not contain spaces or control characters" end
    lines[#lines + 1] = "Authorization: Bearer " .. o.bearer
  end

  local spec = ffi.new "mw_http_spec"
  local array = ffi.new("const char *[?]", #lines + 1)
  for i, line in ipairs(lines) do array[i - 1] = line end
  local auth = o.auth or {}
  local method = (o.method or "GET"):upper()
  spec.method, spec.url = method, url
  spec.body, spec.body_len = body, body and #body or 0
  spec.headers, spec.header_count = array, #lines
  spec.ca_file, spec.cert_file, spec.key_file = o.ca, o.cert, o.key
  spec.user, spec.password = auth.user, auth.password
  spec.max_bytes = o.max_bytes or 0
  spec.timeout_ms = milliseconds(o.timeout or 30)
  spec.connect_timeout_ms = milliseconds(o.connect_timeout or 10)
  spec.follow, spec.insecure, spec.env_proxy = o.follow or false, o.insecure or false, o.env_proxy or false
  return spec, { array, lines, url, method, body, o, auth }
end

-- ---- the reply ----

local out = ffi.new [[struct { const char *name[1], *value[1]; size_t name_len[1], value_len[1]; }]]

local function read_headers(C, request)
  local headers, i = {}, 0
  while C.mw_http_header_at(request, i, out.name, out.name_len, out.value, out.value_len) do
    local name = ffi.string(out.name[0], out.name_len[0]):lower()
    local value = ffi.string(out.value[0], out.value_len[0])
    local before = headers[name]
    headers[name] = before and before .. ", " .. value or value
    i = i + 1
  end
  return setmetatable(headers, any_case)
end

local function read_reply(C, request)
  local status = C.mw_http_status(request)
  local data = C.mw_http_body(request, out.value_len)
  local body = ffi.string(data, out.value_len[0]) -- before the headers use the same space
  return setmetatable({
    status = status,
    ok = status >= 200 and status < 300,
    headers = read_headers(C, request),
    body = body,
    elapsed = C.mw_http_elapsed(request),
  }, Reply)
end

-- What the spec points into, until C has copied it: the compiler may forget a local that is not read again.
local held = {} -- luacheck: ignore 241

---@param vm ffi.cdata*    `struct mw_vm *`: whose waiters are completed
---@param http ffi.cdata*  `mw_http *`
---@param C? table         the C functions; ffi.C, except in specs
---@return moonwire.http
return function(vm, http, C)
  C = C or ffi.C
  ---@class moonwire.http
  local M = {}

  --- Called by a public function, so that level 3 is the user's line. Must not be a tail call there.
  local function perform(who, o)
    wait.ready("mw.http." .. who)
    local spec, kept, bad = prepare(o)
    if not spec then
      local text = ("mw.http.%s: %s"):format(who, kept)
      if bad and o.raise == false then return nil, text, bad end
      error(text, 3)
    end
    held[1] = kept
    -- between begin and yield nothing may fail: the waiter would wait for ever
    local waiter = wait.begin()
    local request = C.mw_http_start_for(vm, http, spec, waiter)
    held[1] = nil
    request = ffi.gc(request, C.mw_http_request_free)
    local function release()
      if request then C.mw_http_request_free(ffi.gc(request, nil)) end
      request = nil
    end
    wait.yield(waiter, release)

    local failed = C.mw_http_error(request)
    if failed == nil then
      local reply = read_reply(C, request)
      release()
      return reply
    end
    local text, kind = "mw.http." .. who .. ": " .. ffi.string(failed), ffi.string(C.mw_http_error_kind(request))
    release()
    if o.raise == false then return nil, text, kind end
    if kind == "invalid" then error(text, 3) end
    error(fault.new { class = "transient", text = wait.where() .. text })
  end

  local function merge(who, method, url, opts, body)
    if type(url) ~= "string" then
      error(("mw.http.%s: the URL must be a string, not a %s"):format(who, type(url)), 3)
    end
    if opts ~= nil and type(opts) ~= "table" then
      error(("mw.http.%s: the options must be a table, not a %s"):format(who, type(opts)), 3)
    end
    local o = {}
    for name, value in pairs(opts or {}) do
      if name == "method" or name == "url" then
        error(("mw.http.%s: unknown option %q; use mw.http.request"):format(who, name), 3)
      end
      o[name] = value
    end
    if body ~= nil then
      if o.body ~= nil then error(("mw.http.%s: the body is given twice"):format(who), 3) end
      o.body = body
    end
    o.method, o.url = method, url
    return o
  end

  --- Waits for the response. Any status is a reply; only a failure to get one raises.
  ---@param request moonwire.http.Request
  ---@return moonwire.http.Reply reply, string? text, string? kind  nil, text, kind on failure when raise = false
  function M.request(request)
    if type(request) ~= "table" then error("mw.http.request: expected a table such as { url = ... }", 2) end
    local reply, text, kind = perform("request", request)
    return reply, text, kind
  end

  ---@param url string
  ---@param opts? moonwire.http.Options
  ---@return moonwire.http.Reply reply, string? text, string? kind
  function M.get(url, opts)
    local reply, text, kind = perform("get", merge("get", "GET", url, opts))
    return reply, text, kind
  end

  ---@param url string
  ---@param opts? moonwire.http.Options
  ---@return moonwire.http.Reply reply, string? text, string? kind
  function M.head(url, opts)
    local reply, text, kind = perform("head", merge("head", "HEAD", url, opts))
    return reply, text, kind
  end

  ---@param url string
  ---@param opts? moonwire.http.Options
  ---@return moonwire.http.Reply reply, string? text, string? kind
  function M.delete(url, opts)
    local reply, text, kind = perform("delete", merge("delete", "DELETE", url, opts))
    return reply, text, kind
  end

  ---@param url string
  ---@param body? string|table  a table is sent as JSON
  ---@param opts? moonwire.http.Options
  ---@return moonwire.http.Reply reply, string? text, string? kind
  function M.post(url, body, opts)
    local reply, text, kind = perform("post", merge("post", "POST", url, opts, body))
    return reply, text, kind
  end

  ---@param url string
  ---@param body? string|table  a table is sent as JSON
  ---@param opts? moonwire.http.Options
  ---@return moonwire.http.Reply reply, string? text, string? kind
  function M.put(url, body, opts)
    local reply, text, kind = perform("put", merge("put", "PUT", url, opts, body))
    return reply, text, kind
  end

  ---@param url string
  ---@param body? string|table  a table is sent as JSON
  ---@param opts? moonwire.http.Options
  ---@return moonwire.http.Reply reply, string? text, string? kind
  function M.patch(url, body, opts)
    local reply, text, kind = perform("patch", merge("patch", "PATCH", url, opts, body))
    return reply, text, kind
  end

  return M
end
