--- webhook: sends each message to an HTTP endpoint, body unchanged.
---
---   mw.pipeline "shop-hook" { from = orders, handler = "webhook", options = { url = "https://shop.example/hook" } }
---
--- 2xx is the ack. 408, 425, 429, 5xx, redirects, the statuses in `retry_on` and every failure to get an answer are
--- retries, after Retry-After where the peer says so. Any other 4xx is a rejection: a dead letter at once.
--- Sends moonwire-id, moonwire-attempt and moonwire-key (when there is one), with bytes that a header cannot carry, and
--- "%", as %XX. The endpoint sees a message again after a lost answer: moonwire-id tells it so.
local mw = require "moonwire"
local check_options = require "moonwire.options"

-- The values are looked at in check.
local OPTIONS = { headers = "any?", method = "any?", retry_on = "any?", timeout = "any?", url = "any?" }
local METHODS = { POST = true, PUT = true, PATCH = true }
local RETRY = { [408] = true, [425] = true, [429] = true }
local LONGEST_WAIT_S = 86400 -- a peer cannot park a message for longer than this
local SHOWN = 200            -- bytes of the answer in the reason

---@class moonwire.webhook.Options
---@field url string
---@field method? "POST"|"PUT"|"PATCH"  default "POST"
---@field headers? table<string, string>  added to each request
---@field timeout? number    seconds; default 30
---@field retry_on? integer[]  more statuses to try again, such as { 404 }

local function wrong(text, ...) error(text:format(...), 0) end

local function check_headers(headers)
  if type(headers) ~= "table" then wrong("headers must be a table of name = value, not a %s", type(headers)) end
  for name, value in pairs(headers) do
    if type(name) ~= "string" or not name:find "^[%w!#$%%&'*+%-.^_`|~]+$" then
      wrong("headers: %q is not a header name", tostring(name))
    end
    if type(value) ~= "string" or value:find "%c" then
      wrong("headers: the value of %q must be a string without line breaks", name)
    end
    if name:lower():find "^moonwire%-" then wrong("headers: %q is set by the handler itself", name) end
  end
end

local function check_statuses(list)
  if type(list) ~= "table" then wrong("retry_on must be a list of statuses, not a %s", type(list)) end
  local set = {}
  for key, status in pairs(list) do
    if type(key) ~= "number" or type(status) ~= "number" or status % 1 ~= 0 or status < 300 or status > 599 then
      wrong("retry_on must be a list of statuses from 300 to 599, such as { 404 }; %s is not", tostring(status))
    end
    set[status] = true
  end
  return set
end

local function check(options)
  check_options(options, OPTIONS)
  if type(options.url) ~= "string" or not options.url:lower():find "^https?://[^/%s]%S*$" then
    wrong("url must be an http:// or https:// URL, not %s", options.url == nil and "missing" or
      ("%q"):format(tostring(options.url)))
  end
  if options.method ~= nil and not METHODS[options.method] then
    wrong("method must be POST, PUT or PATCH, not %q", tostring(options.method))
  end
  local timeout = options.timeout
  if timeout ~= nil and not (type(timeout) == "number" and timeout > 0 and timeout <= 86400) then
    wrong("timeout must be a number of seconds above 0, not %q", tostring(timeout))
  end
  check_headers(options.headers or {})
  return check_statuses(options.retry_on or {})
end

local function printable(text)
  return (text:gsub("[^\32-\36\38-\126]", function(c) return ("%%%02X"):format(c:byte()) end))
end

local MONTHS = {
  Jan = 1, Feb = 2, Mar = 3, Apr = 4, May = 5, Jun = 6, Jul = 7, Aug = 8, Sep = 9, Oct = 10, Nov = 11, Dec = 12,
}

--- "Wed, 21 Oct 2026 07:28:00 GMT" in seconds since 1970, or nil.
local function parse_date(text)
  local day, month, year, h, m, s = text:match "^%a+, (%d%d) (%a%a%a) (%d%d%d%d) (%d%d):(%d%d):(%d%d) GMT$"
  month = MONTHS[month]
  if not month then return nil end
  -- days since 1970, the year beginning in March so that the leap day comes last
  local y = month > 2 and tonumber(year) or year - 1
  local days = 365 * y + math.floor(y / 4) - math.floor(y / 100) + math.floor(y / 400)
    + math.floor((153 * ((month + 9) % 12) + 2) / 5) + day - 719469
  return ((days * 24 + h) * 60 + m) * 60 + s
end

--- Seconds to wait by the Retry-After header, or nil to leave it to the policy.
local function retry_after(value)
  if not value then return nil end
  local seconds = value:find "^%d+$" and tonumber(value)
  if not seconds then
    local date = parse_date(value)
    seconds = date and date - mw.now()
  end
  return seconds and math.max(0, math.min(seconds, LONGEST_WAIT_S))
end

local function describe(method, url, reply)
  local text = ("%s %s answered %d"):format(method, url:match "^%a+://[^/?#]*":gsub("//.*@", "//"), reply.status)
  local body = reply.body:sub(1, SHOWN):gsub("%c+", " ")
  return body == "" and text or text .. ": " .. body
end

---@param options moonwire.webhook.Options
local function new(options)
  local retry_on = check(options)
  local method, url = options.method or "POST", options.url

  local function headers_of(msg)
    local headers = {}
    for name, value in pairs(options.headers or {}) do headers[name:lower()] = value end
    local kind = msg.type
    local fit = kind and kind ~= "" and not kind:find "%c"
    if fit and not headers["content-type"] then headers["content-type"] = kind end
    headers["moonwire-id"] = msg.id and printable(msg.id)
    headers["moonwire-key"] = msg.key and printable(msg.key)
    headers["moonwire-attempt"] = tostring(msg.attempt)
    return headers
  end

  local function handle(msg)
    local reply = mw.http.request {
      method = method, url = url, body = msg.body, headers = headers_of(msg), timeout = options.timeout,
    }
    local status = reply.status
    if reply.ok then return end
    local reason = describe(method, url, reply)
    if RETRY[status] or retry_on[status] or status >= 500 or status < 400 then
      return mw.retry { after = retry_after(reply.headers["retry-after"]), reason = reason }
    end
    return mw.reject(reason, "rejected")
  end

  return { handle = handle }
end

return { new = new }
