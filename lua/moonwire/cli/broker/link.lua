--- Opening a broker for a command: where its address comes from, and what to refuse before it is touched.
local C = require "moonwire.internal.cdef"
local env = require "moonwire.internal.config.env"
local fail = require "moonwire.cli.fail"
local files = require "moonwire.internal.config.files"
local ffi = require "ffi"
local here = require "moonwire.cli.broker.here"
local posix = require "moonwire.cli.posix"
local task = require "moonwire.cli.task"
local token = require "moonwire.internal.token"
local wait = require "moonwire.internal.wait"

local M = {}

local WARN = 2
local PATIENCE = 3 -- seconds, from the first time that all addresses failed

-- As in runtime/core/driver.h.
M.CAN = { delay = 1, priority = 2, browse = 32, remove = 64, groups = 512 }

M.FLAG = { "broker", "URL", "the broker, such as embedded:data\n(default: BROKER_URL, from the environment or ./.env, "
  .. "else the one of the project here)", short = "b" }

-- ---- addresses ----

local function unescape(text)
  return (text:gsub("%%(%x%x)", function(hex) return string.char(tonumber(hex, 16)) end))
end

local function escape(path)
  return (path:gsub("[%%?]", { ["%"] = "%25", ["?"] = "%3F" }))
end

--- The folder of an embedded broker, or nil for others.
---@return string|nil path, string|nil query
local function folder(url)
  local path, query = url:match "^embedded:([^?]*)(.*)$"
  if not path or path == "" then return nil end
  return unescape(path), query
end

--- A folder given on the command line is relative to the working directory, wherever the address is used later.
---@param url string
---@return string
function M.absolute(url)
  local path, query = folder(url)
  if not path or path:sub(1, 1) == "/" then return url end
  local cwd = posix.realpath "."
  if not cwd then fail.raise(fail.FAILED, "the working directory does not exist any more") end
  return "embedded:" .. escape(cwd .. "/" .. path) .. query
end

local function canonical(url)
  local path = folder(url)
  if not path then return url end
  return "embedded:" .. (posix.realpath(path) or path)
end

--- Do both name the same broker? Folders are compared as the system sees them; options do not matter.
---@return boolean
function M.same(a, b) return a == b or canonical(a) == canonical(b) end

local function from_env_file()
  local text, why, missing = files.new(".").read ".env"
  if missing then return nil end
  if not text then fail.raise(fail.CONFIG, "%s", why) end
  local values, err = env.parse(text, ".env")
  if not values then fail.raise(fail.CONFIG, err) end
  return values.BROKER_URL
end

-- ---- opening ----

local EUSAGE = 10001 -- as in runtime/base/error.h

-- What is published there would be gone with this command, and nothing else can be there.
local function must_outlive(url)
  if not url:find "^memory[%w-]*:" then return end
  fail.usage("--broker: %s lives inside of one process, and ends with this command: use embedded:FOLDER", url)
end

-- A misspelt folder must not become a new, empty store.
local function must_exist(url)
  local path = folder(url)
  if path and not posix.exists(path .. "/moonwire.mdb") then
    local what = posix.is_dir(path) and "no store in the folder %s" or "there is no folder %s"
    fail.raise(fail.UNAVAILABLE, what .. " (nothing was created)", path)
  end
end

-- A worker waits for its broker; who typed a command wants to know.
local HURRY = { kafka = "message.timeout.ms=10000", amqp = "blocked_timeout=10" }
local SAID = { kafka = { "message.timeout.ms", "delivery.timeout.ms" }, amqp = { "blocked_timeout" } }

local function hurried(url)
  local scheme = url:match "^(%a+)s?:"
  scheme = scheme == "amqps" and "amqp" or scheme
  if not HURRY[scheme] then return url end
  for _, option in ipairs(SAID[scheme]) do
    if url:find(option, 1, true) then return url end
  end
  return url .. (url:find("?", 1, true) and "&" or "?") .. HURRY[scheme]
end

local function shown(link)
  local url = ffi.string(C.mw_link_url(link))
  for _, option in pairs(HURRY) do
    if url:sub(-#option) == option then return url:sub(1, -#option - 2) end
  end
  return url
end

--- Ends the command when the broker is not there: a person waits, and a script wants to know. One that was reached and
--- lost is waited for by its driver.
---@param link ffi.cdata*
function M.watch(link)
  local since
  task.watch(function()
    local why = C.mw_link_absent(link)
    if why == nil then
      since = nil
      return
    end
    since = since or C.mw_vm_mono(wait.vm)
    if C.mw_link_hopeless(link) or C.mw_vm_mono(wait.vm) - since >= PATIENCE then
      fail.raise(fail.UNAVAILABLE, "%s: the broker cannot be reached: %s", shown(link), ffi.string(why))
    end
  end)
end

-- ---- the project here ----

--- Without an address on the command line or in the environment, the project says where it is.
local function given(values)
  local url = values.broker or os.getenv "BROKER_URL" or from_env_file()
  if not url then
    local connections = here.connections()
    if #connections > 1 then
      local urls = {}
      for i, c in ipairs(connections) do urls[i] = shown(c.link) end
      fail.usage("the project here has several brokers: say which by --broker URL: %s", table.concat(urls, ", "))
    end
    url = connections[1] and connections[1].given
  end
  if not url or url == "" then
    fail.usage "which broker? Say --broker URL, set BROKER_URL, or do this in the folder of a project"
  end
  return M.absolute(url)
end

local function is(link, other) return other == link or M.same(shown(other), shown(link)) end

--- Is a connection of the project to this broker?
---@param self moonwire.Broker
---@param link ffi.cdata*
---@return boolean
function M.is(self, link) return is(self.link, link) end

--- In a project's folder a command treats its channels as the project declares them.
---@param link ffi.cdata*
---@param url string|nil --broker
local function declare(link, url)
  local project = here.project(url)
  if not project then return end
  local failure = ffi.new "mw_failure"
  for _, d in ipairs(project.declared) do
    if is(link, d.channel:link_of()) then
      local settings = ffi.new("mw_setting[?]", #d.settings)
      for i, s in ipairs(d.settings) do settings[i - 1].name, settings[i - 1].value = s.name, s.value end
      local age, count = math.floor((d.retain.age or 0) * 1000), d.retain.count or 0
      if C.mw_vm_declare(link, d.channel.name, age, count, settings, #d.settings, failure) ~= 0 then
        fail.raise(fail.CONFIG, "channel %q: %s", d.channel.name, ffi.string(failure.text))
      end
    end
  end
end

---@class moonwire.Broker
---@field link ffi.cdata*
---@field url string without a password

--- Opens the broker of the command line, or ends the command.
---@param values table with `broker`
---@param options { create: boolean|nil, need: string[]|nil }|nil `need`: of M.CAN
---@return moonwire.Broker
function M.open(values, options)
  options = options or {}
  local url, failure = hurried(given(values)), ffi.new "mw_failure"
  must_outlive(url)
  local link = C.mw_vm_link(wait.vm, url, failure)
  if token.named(url) or link == nil and ffi.string(failure.text):find("OAUTHBEARER needs a token", 1, true) then
    fail.usage("--broker: OAUTHBEARER takes its token from a function of a project, which this command does not have: "
      .. "use another mechanism or listener")
  end
  if link == nil then fail.usage("--broker: %s", ffi.string(failure.text)) end
  local self = { link = link, url = shown(link) }
  for _, what in ipairs(options.need or {}) do M.need(self, what) end
  if not options.create then must_exist(url) end
  C.mw_log_setup(0, WARN) -- that it is connected is no news: the command shows it
  if C.mw_vm_link_open(link, failure) ~= 0 then
    if failure.code == EUSAGE then fail.usage("--broker: %s", ffi.string(failure.text)) end
    fail.raise(fail.UNAVAILABLE, "%s: %s", self.url, ffi.string(failure.text))
  end
  declare(link, values.broker)
  M.watch(link)
  return self
end

local WORDS = {
  delay = "cannot delay messages",
  priority = "knows no priorities",
  browse = "does not let anybody look into a channel",
  remove = "does not let anybody remove single messages",
  groups = "has tools of its own for groups; Moonwire neither lists nor removes them there",
}

--- Ends the command when the broker cannot do it.
---@param self moonwire.Broker
---@param what string of M.CAN
function M.need(self, what)
  if bit.band(C.mw_vm_link_can(self.link), M.CAN[what]) == 0 then
    fail.raise(fail.UNAVAILABLE, "%s: this broker %s", self.url, WORDS[what])
  end
end

--- Checks a channel's name as the project reader does.
---@param name string
---@return string
function M.channel(name)
  if name == "" then fail.usage "the channel's name is empty" end
  if #name > 249 or name:find "[%z\1-\31\127]" then
    fail.usage "a channel's name has at most 249 bytes and no control characters"
  end
  return name
end

return M
