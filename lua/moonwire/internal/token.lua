--- Tokens for brokers that want them (SASL OAUTHBEARER): `mw.connect(url, { token = function() … end })`. One task per
--- connection calls the function, hands over what it returns, and calls it again before that ends. Only the current
--- generation does so: after a reload it is the new function that is asked.
local C = require "moonwire.internal.cdef"
local async = require "moonwire.internal.api.async"
local fault = require "moonwire.internal.api.fault"
local ffi = require "ffi"
local log = require "moonwire.internal.api.log"
local runtime = require "moonwire.internal.runtime"
local wait = require "moonwire.internal.wait"

local M = {}

local SHARE = 0.8 -- of a token's life, then it is renewed
local SOONEST = 0.2 -- seconds between two calls, however short a token lives
local LIMIT = 30 -- seconds that the function may take
local FIRST_RETRY, LAST_RETRY = 1, 30 -- seconds after a failure
local LOOK, LAST_LOOK = 2, 60 -- seconds until it is seen that the broker refused one

--- An URL that speaks of a function, where there is none: written by hand, or taken over from a log.
---@param url string
---@return boolean
function M.named(url) return url:find "^kafka:.*[?&]token=" ~= nil end

-- ---- what the function returned ----

local function is_text(value) return type(value) == "string" and value ~= "" and not value:find "[%z\1-\31\127]" end

local function extensions_of(given)
  local list = {}
  if given == nil then return list end
  if type(given) ~= "table" then return nil, "extensions must be a table of names and texts" end
  for name, value in pairs(given) do
    if type(name) ~= "string" or not name:find "^%a+$" or name:lower() == "auth" then
      return nil, ("extensions: a name has letters only and is not auth, unlike %q"):format(tostring(name))
    end
    if not is_text(value) then
      return nil, ("extensions: %s must be a text without control characters"):format(name)
    end
    list[#list + 1], list[#list + 2] = name, value
  end
  return list
end

local FIELDS = { token = true, expires = true, principal = true, extensions = true }

local function check(answer)
  if type(answer) ~= "table" then
    return nil, "it must return { token = text, expires = seconds since 1970 }, not " .. type(answer)
  end
  for name in pairs(answer) do
    if not FIELDS[name] then
      local near = type(name) == "string"
        and require "moonwire.internal.nearest"(name, { "token", "expires", "principal", "extensions" })
      return nil, ("unknown field %s%s"):format(tostring(name), near and ("; did you mean %s?"):format(near) or "")
    end
  end
  if not is_text(answer.token) then return nil, "token must be a text that is not empty" end
  local expires, now = answer.expires, C.mw_vm_now(wait.vm)
  if type(expires) ~= "number" or expires ~= expires or expires > 1e11 then
    return nil, "expires must be seconds since 1970"
  end
  if expires <= now then
    return nil, ("the token ended %.1f seconds ago (expires is seconds since 1970)"):format(now - expires)
  end
  if answer.principal ~= nil and not is_text(answer.principal) then return nil, "principal must be a text" end
  local extensions, err = extensions_of(answer.extensions)
  if not extensions then return nil, err end
  return extensions
end

-- ---- calling it ----

--- What the function returned; nil, and why not. It may wait, for LIMIT seconds.
local function call(fn)
  local over, answer, failure = false, nil, nil
  local joined, join = false, wait.begin()
  local child = runtime.spawn(function() answer = fn() end, nil, function(err)
    over, failure = true, err
    if joined then
      C.mw_vm_forget(wait.vm, join)
      C.mw_vm_sleep(wait.vm, join, 0)
    end
  end)
  if not over then
    joined = true
    C.mw_vm_sleep(wait.vm, join, LIMIT)
    wait.yield(join, function()
      C.mw_vm_forget(wait.vm, join)
      wait.cancel(child)
    end)
    joined = false
    if not over then
      wait.cancel(child)
      return nil, ("it took longer than %d seconds"):format(LIMIT)
    end
  end
  if failure ~= nil then return nil, fault.text(failure) end
  return answer
end

local function hand_over(link, answer, extensions)
  local failure = ffi.new "mw_failure"
  local list = ffi.new("const char *[?]", #extensions + 1)
  for i, text in ipairs(extensions) do list[i - 1] = text end
  if C.mw_vm_token(link, answer.token, answer.principal or "moonwire", answer.expires * 1000, list, #extensions, nil,
    failure) ~= 0 then
    return nil, ffi.string(failure.text)
  end
  return true
end

--- One round: the seconds that the token lives; nil, and why there is none.
local function renew(connection)
  local answer, err = call(connection.token)
  if err then return nil, err end
  local extensions, ok
  extensions, err = check(answer)
  if not extensions then return nil, err end
  ok, err = hand_over(connection.link, answer, extensions)
  if not ok then return nil, err end
  return answer.expires - C.mw_vm_now(wait.vm)
end

local function complain(connection, err, again)
  local text = "the token function: " .. err
  C.mw_vm_token(connection.link, nil, nil, 0, nil, 0, text, ffi.new "mw_failure")
  log.write(log.LEVELS.error, "no token for the broker", {
    broker = ffi.string(C.mw_link_url(connection.link)), error = text, again_in = ("%d s"):format(again),
  })
end

--- Sleeps until it is time for the next token. true: the broker refused this one.
local function sleep_until_due(connection, life, look)
  local due = C.mw_vm_mono(wait.vm) + math.max(SOONEST, life * SHARE)
  while true do
    local left = due - C.mw_vm_mono(wait.vm)
    if left <= 0 then return false end
    async.sleep(math.min(left, look))
    if left > look and C.mw_vm_token_refused(connection.link) then return true end
  end
end

local function keep(connection)
  local again, look = FIRST_RETRY, LOOK
  while true do
    local life, err = renew(connection)
    if life then
      again = FIRST_RETRY
      local refused = sleep_until_due(connection, life, look)
      look = refused and math.min(look * 2, LAST_LOOK) or LOOK
    else
      complain(connection, err, again)
      async.sleep(again)
      again = math.min(again * 2, LAST_RETRY)
    end
  end
end

--- Starts it now.
---@return moonwire.Task
function M.start(connection)
  return runtime.spawn(function() keep(connection) end, nil, function(err)
    log.write(log.LEVELS.error, "the token task ended", { error = tostring(err) })
  end)
end

--- Starts it for each connection of a project as soon as its generation is the current one.
---@param connections table[]
function M.serve(connections)
  local seen = {}
  for _, connection in ipairs(connections) do
    local key = tostring(connection.link)
    if connection.token and not seen[key] then
      seen[key] = true
      runtime.services[#runtime.services + 1] = function() return M.start(connection) end
    end
  end
end

return M
