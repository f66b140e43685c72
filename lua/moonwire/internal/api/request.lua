--- mw.request and mw.reply. A request carries the headers reply-to and correlation-id; whoever handles it replies to
--- the one with the other. RabbitMQ has a way back of its own (direct reply-to); everywhere else the reply comes
--- through a channel of this process, which is looked into while somebody waits.
local C = require "moonwire.internal.cdef"
local async = require "moonwire.internal.api.async"
local fields = require "moonwire.internal.config.fields"
local fault = require "moonwire.internal.api.fault"
local ffi = require "ffi"
local message = require "moonwire.internal.api.message"
local position = require "moonwire.internal.api.position"
local publish = require "moonwire.internal.api.publish"
local wait = require "moonwire.internal.wait"

local M = {}

local TIMEOUT, POLL, POLL_MOST, PAGE = 30, 0.005, 0.1, 100
local DIRECT = "amq.rabbitmq.reply-to"

local FIELDS = { "id", "body", "headers", "time", "type", "priority" }

--- A copy that outlives the record in C. `data` is decoded on first use.
local function reply_of(record)
  local view, copy = message.view(record), {}
  for _, name in ipairs(FIELDS) do copy[name] = view[name] end
  message.seal(view)
  return setmetatable(copy, {
    __index = function(self, name)
      if name ~= "data" then return nil end
      local value, err = require("moonwire.json").decode(self.body)
      if err then error(fault.new { class = "invalid", text = "the reply is not JSON: " .. err }, 2) end
      rawset(self, "data", value)
      return value
    end,
  })
end

local function fail(channel, text)
  error(fault.new { class = "transient", text = ("request to %s: %s"):format(channel, text) }, 0)
end

--- Through the driver: C has the timer and the match.
local function direct(link, channel, m, timeout)
  local waiter = wait.begin()
  C.mw_vm_request(wait.vm, link, channel, m, timeout * 1000, waiter)
  C.mw_message_unref(m)
  local _, object, err = wait.yield(waiter, function() end)
  if err then fail(channel, err) end
  local record = ffi.cast("struct mw_message *", object)
  local reply = reply_of(record)
  C.mw_message_unref(record)
  return reply
end

--- One reply channel for each link of this process, and who waits there. Whoever looks finds the others' replies too.
local boxes = {}

local function box_of(link)
  local id = tostring(ffi.cast("intptr_t", link))
  boxes[id] = boxes[id] or { name = "mw.reply." .. publish.uuid(), found = {}, waiting = 0 }
  return boxes[id]
end

local function look(link, box)
  local waiter = wait.begin()
  C.mw_vm_browse(wait.vm, link, box.name, position.space(), PAGE, false, waiter)
  local _, object, err = wait.yield(waiter, function() end)
  if err then return end
  local found = ffi.cast("struct mw_browsing *", object)
  local places, place, due = {}, position.space(), ffi.new "double[1]"
  for i = 0, tonumber(C.mw_browsing_count(found)) - 1 do
    local reply = reply_of(C.mw_browsing_entry(found, i, place, due))
    box.found[reply.headers["correlation-id"] or ""] = reply
    places[#places + 1] = position.read(place[0])
  end
  C.mw_browsing_free(found)
  if #places == 0 then return end
  waiter = wait.begin()
  C.mw_vm_remove(wait.vm, link, box.name, position.array(places), #places, nil, nil, 0, waiter)
  wait.yield(waiter, function() end)
end

local function through_channel(link, channel, box, id, timeout)
  local deadline, pause = C.mw_vm_now(wait.vm) + timeout, POLL
  while true do
    look(link, box)
    local reply = box.found[id]
    if reply then
      box.found[id] = nil
      return reply
    end
    if C.mw_vm_now(wait.vm) >= deadline then fail(channel, "no reply in time") end
    async.sleep(pause)
    pause = math.min(pause * 1.5, POLL_MOST)
  end
end

local function has_direct(link) return ffi.string(C.mw_link_url(link)):find "^amqps?:" ~= nil end

--- Publishes now and waits for the reply.
---@param target moonwire.Channel|moonwire.Exchange|string
---@param body any
---@param options table|nil those of mw.publish, and timeout in seconds (30)
---@return moonwire.Reply
function M.request(target, body, options)
  local task = publish.root_task()
  if not task or task.delivery == nil then error("mw.request: only inside a handler", 2) end
  wait.ready "mw.request"
  if options ~= nil and type(options) ~= "table" then error("mw.request: the options must be a table", 2) end
  local given = {}
  for name, value in pairs(options or {}) do
    if not publish.knows_option(name) and name ~= "timeout" then
      error("mw.request: " .. publish.unknown_option_text(name, "timeout"), 2)
    end
    given[name] = value
  end
  local timeout = given.timeout or TIMEOUT
  if type(timeout) ~= "number" or timeout <= 0 or timeout > 86400 then
    error("mw.request: timeout must be seconds, more than 0", 2)
  end
  given.timeout, given.now, given.of = nil, nil, nil
  local link, channel = publish.resolve(target, task, given)
  if type(channel) == "table" then channel = channel[1] end
  local box = not has_direct(link) and box_of(link) or nil
  given.correlation_id = publish.uuid()
  given.reply_to = box and box.name or DIRECT
  local prepared = assert(publish.with_properties(given))
  prepared.routing_key = nil
  local m, err = publish.message(body, prepared)
  if not m then error("mw.request: " .. err, 2) end
  if not box then return direct(link, channel, m, timeout) end
  local ok, why = publish.now(link, channel, m)
  if not ok then fail(channel, why) end
  return through_channel(link, channel, box, given.correlation_id, timeout)
end

--- Where a reply goes. RabbitMQ: through the default exchange, which makes no queue; without one the reply is dropped.
--- Direct ways back are the broker's own and never "routed".
local function way_back(link, to)
  if not has_direct(link) then return to end
  local address = (to:find "^amq%." and "\3" or "\1") .. "\2" .. to
  return { connection = { link = link }, addresses = function() return { address } end }
end

--- Replies to the message that is being handled. The reply leaves with the ack, like every publish.
---@param body any
---@param options table|nil those of mw.publish
function M.reply(body, options)
  local task = publish.root_task()
  if not task or task.delivery == nil then error("mw.reply: only inside a handler", 2) end
  if task.batch then error("mw.reply: not in handle_batch: publish to msg.reply_to of each message", 2) end
  local view = message.wrap(task.delivery, 1, {})
  local headers = view.headers
  message.seal(view)
  local to, id = headers["reply-to"], headers["correlation-id"]
  if not to or to == "" then error("mw.reply: the message asks for no reply: it has no header reply-to", 2) end
  local given = {}
  for k, v in pairs(options or {}) do given[k] = v end
  given.correlation_id = given.correlation_id or id
  if given.routing_key ~= nil then error("mw.reply: routing_key is for exchanges", 2) end
  if not fields.is_name(to) then error("mw.reply: the header reply-to is no name of a channel", 2) end
  publish.publish(way_back(task.pipeline.link, to), body, given)
end

return M
