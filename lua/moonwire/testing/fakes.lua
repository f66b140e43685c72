--- Answers to the project's HTTP requests, given by a spec: a function, or a table of patterns. The project runs in
--- another state; its requests queue in C (runtime/http/fake.c), and are answered here between two steps of the loop.
local C = require "moonwire.internal.cdef"
local ffi = require "ffi"
local json = require "moonwire.json"
local patterns = require "moonwire.testing.patterns"

local M = {}

-- ---- the request, as a spec sees it ----

local any_case = {
  __index = function(headers, name) return type(name) == "string" and rawget(headers, name:lower()) or nil end,
}

local Request = {}
function Request.__index(self, name)
  if name ~= "data" then return nil end
  local value, err = json.decode(self.body)
  if err then error("the body of the request is not JSON: " .. err, 2) end
  return value
end

local len = ffi.new "size_t[1]"

local function read(raw)
  local headers, i = {}, 0
  while true do
    local line = C.mw_http_fake_header(raw, i)
    if line == nil then break end
    local name, value = ffi.string(line):match "^([^:;]*)[:;]%s*(.*)$"
    if name and value ~= "" then headers[name:lower()] = value end -- an empty one tells curl to leave its own out
    i = i + 1
  end
  local body = C.mw_http_fake_body(raw, len)
  return setmetatable({
    method = ffi.string(C.mw_http_fake_method(raw)), url = ffi.string(C.mw_http_fake_url(raw)),
    headers = setmetatable(headers, any_case), body = body ~= nil and ffi.string(body, len[0]) or "",
  }, Request)
end

-- ---- patterns ----

local function matcher(key)
  local method, url = key:match "^(%u+) (.*)$"
  local pattern = "^" .. patterns.pattern(url or key) .. "$"
  return function(request) return (not method or method == request.method) and request.url:find(pattern) ~= nil end
end

local function each(reply) return type(reply) == "table" and reply[1] ~= nil and reply or nil end

local function by_pattern(answers)
  local choose, keys = patterns.choose(answers, matcher, each, 'http: expected a table of "METHOD URL" = reply')
  return function(request) return select(2, choose(request)) end, keys
end

---@param answers fun(request: table): any|table<string, any>
---@return { answer: fun(request: table): any, keys: string[]|nil, requests: table[] }
function M.new(answers)
  local answer, keys = answers, nil
  if type(answers) == "table" then
    answer, keys = by_pattern(answers)
  elseif type(answers) ~= "function" then
    error(("http: expected a function or a table, got a %s"):format(type(answers)), 3)
  end
  return { answer = answer, keys = keys, requests = {} }
end

-- ---- replies ----

local FIELDS = { status = "number", headers = "table", body = "string table", delay = "number", error = "string",
  kind = "string", timeout = "boolean" }

local function problem_of(reply)
  for name, value in pairs(reply) do
    local types = FIELDS[name]
    if not types then
      return ("a reply has no field %q; it takes status, headers, body, delay, error, kind and timeout"):format(
        tostring(name))
    elseif not types:find(type(value), 1, true) then
      return ("the reply's %s must be a %s, got a %s"):format(name, (types:gsub(" ", " or ")), type(value))
    end
  end
end

local function head(raw, line) C.mw_http_fake_head(raw, line, #line) end

local function send(raw, reply)
  if reply.timeout then return end -- its deadline ends it
  if reply.error then
    C.mw_http_fake_fail(raw, reply.kind or "other", reply.error)
    return
  end
  local body, headers = reply.body or "", reply.headers or {}
  head(raw, ("HTTP/1.1 %d Faked\r\n"):format(reply.status or 200))
  if type(body) == "table" then
    body = assert(json.encode(body))
    head(raw, "content-type: application/json\r\n")
  end
  for name, value in pairs(headers) do head(raw, ("%s: %s\r\n"):format(name, tostring(value))) end
  head(raw, "\r\n")
  C.mw_http_fake_answer(raw, body, #body, math.floor((reply.delay or 0) * 1000 + 0.5))
end

local function traced(err) return type(err) == "table" and err or debug.traceback(tostring(err), 2) end

local function one(fake, raw)
  local request = read(raw)
  fake.requests[#fake.requests + 1] = request
  M.serving = true
  local ok, reply = xpcall(function() return fake.answer(request) end, traced)
  M.serving = false
  local problem
  if not ok then
    problem = reply
  elseif reply == nil then
    problem = ("unexpected request: %s %s%s"):format(request.method, request.url,
      fake.keys and "; answered are " .. (#fake.keys > 0 and table.concat(fake.keys, ", ") or "none") or "")
  else
    if type(reply) == "number" then reply = { status = reply } end
    if type(reply) == "string" then reply = { body = reply } end
    if type(reply) ~= "table" then
      problem = ("http: expected a reply (a table, a status or a body), got a %s"):format(type(reply))
    else
      problem = problem_of(reply)
    end
  end
  if problem then
    C.mw_http_fake_fail(raw, "other", type(problem) == "string" and problem:match "^[^\n]*" or "the fake failed")
    return problem
  end
  send(raw, reply)
end

--- While an answer is made the request must not go away: the app stands still.
M.serving = false

--- Answers what waits.
---@return any problem the first one: what the spec did not foresee
function M.serve(fake)
  local first
  while true do
    local raw = C.mw_http_fake_next()
    if raw == nil then return first end
    local problem = one(fake, raw)
    first = first or problem
  end
end

return M
