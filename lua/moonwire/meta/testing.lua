---@meta moonwire.testing
-- luacheck: ignore 211 212 241
-- What editors know about `require "moonwire.testing"` (LuaLS). Never run. docs/testing.md says the same in words.

local testing = {}

---@class moonwire.TestOptions
---@field dir? string the project's folder; default: the one above the spec
---@field env? table<string, string> for mw.env, over the environment and .env
---@field log? "debug"|"info"|"warn"|"error"|"silent" the least level that is logged; default silent

---@class moonwire.TestMessage a message that stands in a channel
---@field id string
---@field body string
---@field data any the body, decoded
---@field key string|nil
---@field headers table<string, string>
---@field type string
---@field priority integer
---@field time number seconds since 1970
---@field due number|nil when a delayed one is due

---@class moonwire.TestApp
local App = {}

--- Starts the project. Every connection of it becomes a memory broker that belongs to this call alone.
---@param options? moonwire.TestOptions
---@return moonwire.TestApp
function testing.start(options) end

--- Publishes a message; the broker has it when this returns.
---@param channel string
---@param body any
---@param options? moonwire.PublishOptions
function App:publish(channel, body, options) end

--- Runs until nothing is left to do, retries and delays included.
---@param seconds? number default 10
function App:settle(seconds) end

--- Runs until fn() is true, and returns what it returned.
---@param fn fun(): any
---@param seconds? number default 10
---@param what? string for the error
function App:wait(fn, seconds, what) end

--- How many messages of the pipeline were handled.
---@param pipeline string
---@return integer
function App:handled(pipeline) end

--- The counters of a pipeline.
---@param pipeline string
---@return table<string, number>
function App:status(pipeline) end

--- Dead letters: of a pipeline, or of a dead-letter channel.
---@param name string
---@return moonwire.TestMessage[]
function App:dead(name) end

--- What was published to a channel that no pipeline of the project reads.
---@param channel string
---@return moonwire.TestMessage[]
function App:published(channel) end

--- What stands in a channel now, oldest first.
---@param channel string
---@return moonwire.TestMessage[]
function App:messages(channel) end

--- Makes the brokers misbehave: so many times, or with `delay_ms` for every answer.
---@param what "fail_publish"|"fail_settle"|"lose_ack"|"duplicate"|"reorder"|"delay_ms"
---@param amount number
function App:fault(what, amount) end

--- The broker takes back what is being handled, as when a connection is lost.
function App:cut() end

--- Ends the worker as a crash would, and starts it again on the same brokers.
function App:crash() end

--- Ends the app; handlers that still run may finish within a second.
function App:stop() end

return testing
