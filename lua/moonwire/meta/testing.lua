---@meta moonwire.testing
-- luacheck: ignore 211 212 241
-- What editors know about `require "moonwire.testing"` (LuaLS). Never run. docs/testing.md says the same in words.

local testing = {}

---@class moonwire.TestOptions
---@field dir? string the project's folder; default: the one above the spec
---@field env? table<string, string> for mw.env, over the environment and .env
---@field log? "debug"|"info"|"warn"|"error"|"silent" the least level that is logged; default silent
---@field clock? "virtual"|"real" default virtual
---@field now? number the time at which the virtual clock begins, seconds since 1970; default: the real time

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

---@class moonwire.TestRetry a retry that was scheduled
---@field id string
---@field attempt integer the one that failed
---@field at number when, in seconds since the start
---@field delay number seconds until the next one
---@field error string
---@field class string

---@class moonwire.TestLine a line of the log
---@field at number seconds since the start
---@field level "debug"|"info"|"warn"|"error"
---@field text string
---@field fields table<string, string|number>
---@field project boolean written by mw.log, not by the runtime

---@class moonwire.TestRequest an HTTP request of the project
---@field method string
---@field url string
---@field headers table<string, string> names in any case
---@field body string
---@field data any the body, decoded

---@class moonwire.TestReply
---@field status? integer default 200
---@field headers? table<string, string>
---@field body? string|table a table goes as JSON
---@field delay? number seconds until it comes
---@field error? string no answer: this failure
---@field kind? "timeout"|"connect"|"dns"|"tls"|"too_large"|"other" of that failure
---@field timeout? boolean never answered

---@alias moonwire.TestAnswer moonwire.TestReply|integer|string
---@alias moonwire.TestAnswerer fun(request: moonwire.TestRequest): moonwire.TestAnswer
---@alias moonwire.TestAnswers table<string, moonwire.TestAnswer|moonwire.TestAnswerer|moonwire.TestAnswer[]>

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

--- Runs until nothing is left to do, and lets time pass for retries and delays.
---@param seconds? number on the app's clock; default 30 days, or 10 s on the real one
function App:settle(seconds) end

--- Lets so much time pass, timer by timer.
---@param seconds number
function App:advance(seconds) end

--- Runs what can happen without time passing.
function App:run() end

--- Seconds since the start, on the app's clock.
---@return number
function App:now() end

--- What is left to do, as text; nil when nothing is.
---@return string|nil
function App:left() end

--- Every retry of a pipeline that was scheduled, in order.
---@param pipeline string
---@return moonwire.TestRetry[]
function App:retries(pipeline) end

--- What the project logged with mw.log; with `all = true` the runtime's lines too.
---@param options? { all: boolean }
---@return moonwire.TestLine[]
function App:logs(options) end

--- Answers the project's HTTP requests from now on; nil: they go out again.
---@param answers moonwire.TestAnswerer|moonwire.TestAnswers|nil
function App:http(answers) end

--- The requests that were answered.
---@return moonwire.TestRequest[]
function App:requests() end

--- Answers the project's Redis commands (mw.redis) from now on; nil: they go out again.
---@param answers (fun(command: string[]): any)|table<string, any>|nil
function App:redis(answers) end

--- The Redis commands that were answered.
---@return string[][]
function App:commands() end

--- Runs until fn() is true, and returns what it returned. Time passes as far as that needs.
---@param fn fun(): any
---@param seconds? number on the app's clock; default 30 days, or 10 s on the real one
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
---@param what "fail_publish"|"fail_settle"|"lose_ack"|"hold_ack"|"duplicate"|"reorder"|"delay_ms"
---@param amount number
function App:fault(what, amount) end

--- The broker takes back what is being handled, as when a connection is lost.
function App:cut() end

--- The brokers deliver again what is being handled: the same as cut.
function App:redeliver() end

--- The next messages are delivered twice.
---@param count? integer default 1
function App:duplicate(count) end

--- The next batches are delivered in the wrong order.
---@param count? integer default 1
function App:reorder(count) end

--- Ends the worker as a crash would, and starts it again on the same brokers; "before_ack": when a handler has ended
--- and its ack is on the way.
---@param when? "now"|"before_ack"
function App:crash(when) end

--- Ends the app; handlers that still run may finish within a second.
function App:stop() end

-- ---- what busted's assert knows once an app was started ----

---@class luassert
local assertions = {}

--- The pipeline handled so many messages.
---@param app moonwire.TestApp
---@param pipeline string
---@param count? integer default 1
function assertions.handled(app, pipeline, count) end

--- There is such a dead letter; a number: there are so many.
---@param app moonwire.TestApp
---@param name string a pipeline or a channel of dead letters
---@param expected? table|integer
function assertions.dead(app, name, expected) end

--- The pipeline's retries were scheduled after these delays; a number: there were so many.
---@param app moonwire.TestApp
---@param pipeline string
---@param delays? number[]|integer
---@param tolerance? number a share; default 0.2
function assertions.retried(app, pipeline, delays, tolerance) end

--- A list: exactly these bodies; another table: one of them is this; a number: there are so many.
---@param app moonwire.TestApp
---@param channel string
---@param expected? any
function assertions.published(app, channel, expected) end

--- Nothing is left to do.
---@param app moonwire.TestApp
function assertions.settled(app) end

return testing
