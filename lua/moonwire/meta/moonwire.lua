---@meta moonwire
-- luacheck: ignore 211 212 241
-- What editors know about `local mw = require "moonwire"` (LuaLS). Never run. docs/lua-api.md says the same in words.

---@class moonwire
local mw = {}

-- ---- moonwire.lua: the project ----

---@class moonwire.Connection
local Connection = {}

--- A named place on this connection: a queue, stream or topic.
---@param name string at most 249 bytes, no control characters
---@param options? moonwire.ChannelOptions
---@return moonwire.Channel
function Connection:channel(name, options) end

--- An exchange of RabbitMQ, as a target of mw.publish with `routing_key`.
---@param name string
---@param options? { mandatory?: boolean } false: a message that no queue takes is no error
---@return moonwire.Exchange
function Connection:exchange(name, options) end

--- What must exist at the broker; `moonwire topology plan | apply` compares and makes it.
---@param given moonwire.Topology
function Connection:topology(given) end

---@class moonwire.Exchange
---@field name string

---@class moonwire.Topology
---@field topics? table<string, moonwire.KafkaTopic>
---@field exchanges? table<string, moonwire.RabbitExchange>
---@field queues? table<string, moonwire.RabbitQueue>
---@field bindings? moonwire.RabbitBinding[]

---@class moonwire.RabbitExchange
---@field type? "direct"|"topic"|"fanout"|"headers"|"x-consistent-hash" default "topic"
---@field durable? boolean default true
---@field auto_delete? boolean
---@field internal? boolean
---@field alternate? string the exchange for what this one cannot route
---@field arguments? table<string, string|number|boolean>

---@class moonwire.RabbitChannelOptions
---@field type? "classic"|"quorum"|"stream"
---@field ttl? moonwire.Seconds of messages
---@field expires? moonwire.Seconds of the unused queue
---@field max_length? integer
---@field max_bytes? integer
---@field overflow? "drop-head"|"reject-publish"|"reject-publish-dlx"
---@field max_priority? integer
---@field dead_exchange? string
---@field dead_key? string
---@field delivery_limit? integer
---@field single_active? boolean
---@field durable? boolean default true
---@field exclusive? boolean its reader's connection's own
---@field auto_delete? boolean
---@field lazy? boolean

---@class moonwire.RabbitQueue: moonwire.RabbitChannelOptions
---@field arguments? table<string, string|number|boolean>

---@class moonwire.RabbitBinding
---@field exchange string
---@field queue? string
---@field to_exchange? string
---@field key? string with * and #
---@field match? "all"|"any"|"all-with-x"|"any-with-x" of `headers`
---@field headers? table<string, string|number|boolean>
---@field arguments? table<string, string|number|boolean>

---@class moonwire.KafkaTopic
---@field partitions? integer default: any number; 1 for a new topic
---@field replication? integer default: the broker's
---@field retention? moonwire.Seconds
---@field compact? boolean
---@field config? table<string, string|number|boolean> other properties of the topic

---@class moonwire.ChannelOptions: moonwire.RabbitChannelOptions
---@field retain? moonwire.Retain keep messages that every group has handled
---@field body_field? string Redis: the field with the body; default "body"
---@field trim? { acked?: boolean, count?: integer } Redis: what goes from the stream
---@field delete? boolean Redis: a message goes with its ack

---@class moonwire.Retain
---@field age? number seconds
---@field count? integer

---@class moonwire.Channel
---@field name string

---@alias moonwire.Seconds number

---@class moonwire.Retry
---@field attempts? integer tries in all; default 5, or one more than a backoff list has items
---@field backoff? "exponential"|"fixed"|moonwire.Seconds[] default "exponential"
---@field base? moonwire.Seconds the first delay; default 1
---@field cap? moonwire.Seconds the longest delay; default 60
---@field jitter? number 0 to 1, both sides; default 0.2
---@field max_age? moonwire.Seconds give up on messages older than this
---@field topics? moonwire.Seconds[] Kafka: retry through topics, one per delay, instead of holding the lane
---@field classes? table<string, "dead"|moonwire.RetryClass> by class of error; built in: invalid, outage

---@class moonwire.RetryClass
---@field attempts? integer
---@field backoff? "exponential"|"fixed"|moonwire.Seconds[]
---@field base? moonwire.Seconds
---@field cap? moonwire.Seconds
---@field jitter? number
---@field max_age? moonwire.Seconds
---@field pause? moonwire.Seconds pause the source instead; attempts are not counted

---@class moonwire.Dedupe
---@field ttl? moonwire.Seconds how long a handled key is remembered; default 600
---@field key? string|fun(msg: moonwire.Message): any default: the message's id
---@field store? "memory"|string|moonwire.Connection default: the pipeline's own connection

---@class moonwire.Buffer
---@field count? integer messages in flight; default max(1024, 4 * concurrency)
---@field bytes? integer default 64 MiB

---@class moonwire.Batch
---@field size? integer the largest batch; default 100
---@field wait? moonwire.Seconds how long a batch may gather; default 0.05

---@alias moonwire.Verdicts table<integer|moonwire.Message, moonwire.Verdict> by message, or by its place in the list

---@class moonwire.Handler
---@field handle? fun(msg: moonwire.Message): moonwire.Verdict|boolean|nil, string?
---@field handle_batch? fun(msgs: moonwire.Message[]): moonwire.Verdict|moonwire.Verdicts|nil
---@field schema? string|table path of a JSON Schema, or the schema itself
---@field name? string
---@field description? string

---@class moonwire.Pipeline
---@field from moonwire.Channel
---@field handler string|moonwire.Handler|fun(msg: moonwire.Message): moonwire.Verdict|boolean|nil, string?
---@field options? table given to a handler that takes options
---@field order? "key"|"source"|"none" default "key"
---@field key? string|fun(msg: moonwire.Message): any the lane, where it is not the message's key
---@field concurrency? integer handlers in flight; default 64
---@field timeout? moonwire.Seconds of a handler that waits; default 30
---@field retry? moonwire.Retry
---@field dead? moonwire.Channel|string default: the channel's name + ".dead"
---@field on_dead? "continue"|"hold_key"|"dead_key" default "continue"
---@field dedupe? boolean|moonwire.Dedupe
---@field group? string default: the pipeline's name
---@field start? "oldest"|"newest"|{ time?: number, offset?: integer } where a new group begins; default "oldest"
---@field exactly_once? boolean Kafka: outputs and commit in one transaction; default false
---@field buffer? moonwire.Buffer
---@field batch? moonwire.Batch needs handle_batch
---@field lease? moonwire.Seconds how long a silent consumer keeps what it has; default 30

---@class moonwire.Token
---@field token string
---@field expires number seconds since 1970
---@field principal? string
---@field extensions? table<string, string> names of letters only

--- A broker, by its URL: `embedded:FOLDER`, `kafka://HOST:PORT` or `memory:NAME`. Only in moonwire.lua.
---@param url string
---@param options? table<string, string|number|boolean|fun(): moonwire.Token> the same as options in the URL;
---  `token`, for Kafka with OAUTHBEARER, is a function
---@return moonwire.Connection
function mw.connect(url, options) end

--- Declares a pipeline: `mw.pipeline "orders" { from = …, handler = … }`. Only in moonwire.lua.
---@param name string letters, digits, _ - . and at most 100 of them
---@return fun(settings: moonwire.Pipeline)
function mw.pipeline(name) end

---@class moonwire.Settings
---@field drain? moonwire.Seconds how long a drain may take; default 25
---@field workers? integer how many worker processes `moonwire run` keeps running; default 1
---@field crash_attempts? integer how many workers a message may kill before it is a dead letter; default 3
---@field watchdog? boolean whether handlers that compute past their timeout are broken; default true
---@field gate? "none"|"spec" whether a reload runs the project's specs first; default "none"
---@field gate_limit? moonwire.Seconds how long these may take; default 60
---@field memory? integer|string how much a process's Lua may hold, in bytes or as "256MB"; default "1GB"

--- Settings of the process. Only in moonwire.lua.
---@param settings moonwire.Settings
function mw.settings(settings) end

--- A variable from the environment or from `.env`. Without a default it must be set.
---@param name string
---@param default? string
---@return string
function mw.env(name, default) end

-- ---- messages and verdicts ----

---@class moonwire.Message
---@field id string
---@field body string the bytes as they came
---@field data any the body, decoded on first use (JSON)
---@field key string|nil
---@field headers table<string, string>
---@field attempt integer 1 for the first
---@field time number when it was published, seconds since 1970
---@field type string content type, "" when unknown
---@field priority integer 0 to 9, 4 when nobody said
---@field channel string
---@field pipeline string
---@field reply_to string|nil the channel that a reply is wanted on, see mw.reply
---@field correlation_id string|nil
local Message = {}

--- A few fields out of a JSON body, without decoding the rest.
---@param ... string paths: `"customer.id"`, `"items.1.sku"` (array positions from 1)
---@return any ... nil where there is nothing
function Message:get(...) end

---@param name string
---@return string|nil
function Message:header(name) end

---@class moonwire.Verdict
---@class moonwire.Fault

---@class moonwire.RetryOptions
---@field after? moonwire.Seconds instead of the policy's delay
---@field reason? string
---@field class? string default "transient"

--- Try again: by the policy of the class, or after so many seconds.
---@param options? moonwire.RetryOptions|string options, or the reason
---@return moonwire.Verdict
function mw.retry(options) end

--- Give up now: the message becomes a dead letter.
---@param reason string
---@param class? string default "rejected"
---@return moonwire.Verdict
function mw.reject(reason, class) end

--- Done with it without having handled it: acked, counted, logged.
---@param reason string
---@return moonwire.Verdict
function mw.drop(reason) end

--- An error with a class, for `error(mw.error("outage", "stock service is down"))`.
---@param class string
---@param text string
---@param after? moonwire.Seconds
---@return moonwire.Fault
function mw.error(class, text, after) end

-- ---- publishing ----

---@class moonwire.PublishOptions
---@field key? string|number
---@field headers? table<string, string|number|boolean>
---@field id? string default: a new UUID
---@field delay? moonwire.Seconds
---@field priority? integer 0 to 9; default 4
---@field type? string content type
---@field now? boolean send at once and wait for the confirm, whatever becomes of the handler
---@field of? moonwire.Message in handle_batch: the message whose ack it goes with
---@field correlation_id? string
---@field reply_to? string the channel that a reply is wanted on
---@field ttl? moonwire.Seconds RabbitMQ: dropped, or dead-lettered by the broker, when it waited longer
---@field routing_key? string for an exchange of RabbitMQ

--- Sends a message. It leaves with the ack of the message being handled; when the handler fails, it is not sent.
---@param channel moonwire.Channel|moonwire.Exchange|string a channel, or a name on the pipeline's own connection
---@param body any a string as it is, anything else as JSON
---@param options? moonwire.PublishOptions
function mw.publish(channel, body, options) end

---@class moonwire.RequestOptions: moonwire.PublishOptions
---@field timeout? moonwire.Seconds default 30

---@class moonwire.Reply
---@field body string
---@field data any the body, decoded on first use (JSON)
---@field headers table<string, string>
---@field id string
---@field type string
---@field time number
---@field priority integer

--- Publishes now and waits for the reply; none in time is an error of class transient.
---@param channel moonwire.Channel|moonwire.Exchange|string
---@param body any
---@param options? moonwire.RequestOptions
---@return moonwire.Reply
function mw.request(channel, body, options) end

--- Replies to the message that is being handled, with its ack.
---@param body any
---@param options? moonwire.PublishOptions
function mw.reply(body, options) end

-- ---- waiting, time, ids ----

--- Waits without holding up anybody else.
---@param seconds moonwire.Seconds
function mw.sleep(seconds) end

--- Runs functions side by side and waits for all. The first error ends the others and is raised.
---@param functions (fun(): any)[]
---@return any ... the first result of each, in order
function mw.all(functions) end

--- Seconds since 1970, with milliseconds.
---@return number
function mw.now() end

--- A new UUID, version 7: later ones sort behind earlier ones.
---@return string
function mw.uuid() end

---@type string
mw.version = ""

-- ---- log, metrics, shared, json ----

---@class moonwire.log
mw.log = {}
---@param text string
---@param fields? table<string, any>
function mw.log.debug(text, fields) end
---@param text string
---@param fields? table<string, any>
function mw.log.info(text, fields) end
---@param text string
---@param fields? table<string, any>
function mw.log.warn(text, fields) end
---@param text string
---@param fields? table<string, any>
function mw.log.error(text, fields) end

---@class moonwire.metrics
mw.metrics = {}
--- Adds to a counter.
---@param name string letters, digits and _
---@param by? number default 1
---@param labels? table<string, string|number>
function mw.metrics.count(name, by, labels) end
--- Sets a gauge.
---@param name string
---@param value number
---@param labels? table<string, string|number>
function mw.metrics.gauge(name, value, labels) end
---@return table<string, number> # `name{label="value"}` -> number
function mw.metrics.all() end

---@class moonwire.shared
mw.shared = {}
---@param key string
---@return string|number|boolean|nil
function mw.shared.get(key) end
---@param key string
---@param value string|number|boolean|nil nil removes it
---@param ttl? moonwire.Seconds
function mw.shared.set(key, value, ttl) end
--- Adds to a number and returns the sum.
---@param key string
---@param by? number default 1
---@param start? number where a missing one begins; default 0
---@return number
function mw.shared.incr(key, by, start) end
---@param key string
---@return boolean # was there one
function mw.shared.delete(key) end

---@class moonwire.json
---@field null userdata stands for null, where nil cannot
mw.json = {}
---@param text string
---@return any value, string? error
function mw.json.decode(text) end
---@param value any
---@param options? { sort: boolean?, pretty: boolean? }
---@return string? text, string? error
function mw.json.encode(value, options) end
--- Marks a table, so that an empty one is written as [].
---@param t? table
---@return table
function mw.json.array(t) end
--- Marks a table, so that an empty one is written as {}.
---@param t? table
---@return table
function mw.json.object(t) end
---@param t table
---@return boolean
function mw.json.is_array(t) end

-- ---- HTTP ----

---@class moonwire.http.Options
---@field headers? table<string, string|number|string[]>|string[] name -> value, or lines "Name: value"
---@field query? table<string, string|number|boolean|table> added to the URL
---@field body? string|table a string as it is, a table as JSON
---@field json? any the body, encoded as JSON
---@field form? table<string, string|number|boolean|table> the body, as a web form
---@field timeout? moonwire.Seconds for the whole request; default 30
---@field connect_timeout? moonwire.Seconds default 10
---@field follow? boolean follow redirects, 5 at most; default false
---@field max_bytes? integer the largest response body; default 16 MiB
---@field auth? { user: string, password: string? } basic authentication
---@field bearer? string
---@field ca? string file of CA certificates
---@field cert? string file of the client certificate
---@field key? string file of its private key
---@field insecure? boolean accept any certificate
---@field env_proxy? boolean use http_proxy and friends; default false
---@field raise? boolean false: a failure returns nil, text, kind

---@class moonwire.http.Request : moonwire.http.Options
---@field url string
---@field method? string default "GET"

---@class moonwire.http.Reply
---@field status integer
---@field ok boolean the status is 2xx
---@field headers table<string, string> looked up in any case
---@field body string
---@field elapsed number seconds
local Reply = {}

--- The body, decoded. Raises when it is not JSON.
---@return any
function Reply:json() end

---@class moonwire.http
mw.http = {}
---@param request moonwire.http.Request
---@return moonwire.http.Reply reply, string? text, string? kind
function mw.http.request(request) end
---@param url string
---@param options? moonwire.http.Options
---@return moonwire.http.Reply reply, string? text, string? kind
function mw.http.get(url, options) end
---@param url string
---@param options? moonwire.http.Options
---@return moonwire.http.Reply reply, string? text, string? kind
function mw.http.head(url, options) end
---@param url string
---@param options? moonwire.http.Options
---@return moonwire.http.Reply reply, string? text, string? kind
function mw.http.delete(url, options) end
---@param url string
---@param body? string|table
---@param options? moonwire.http.Options
---@return moonwire.http.Reply reply, string? text, string? kind
function mw.http.post(url, body, options) end
---@param url string
---@param body? string|table
---@param options? moonwire.http.Options
---@return moonwire.http.Reply reply, string? text, string? kind
function mw.http.put(url, body, options) end
---@param url string
---@param body? string|table
---@param options? moonwire.http.Options
---@return moonwire.http.Reply reply, string? text, string? kind
function mw.http.patch(url, body, options) end


---@class moonwire.redis.Pipeline
local RedisPipeline = {}
---@param name string
---@param ... string|number
function RedisPipeline:call(name, ...) end

--- Any command is a method: `r:get(key)`, `r:hset(key, field, value)`.
---@class moonwire.redis.Connection
---@field get fun(self: moonwire.redis.Connection, key: string): string|nil
---@field set fun(self: moonwire.redis.Connection, key: string, value: string|number, ...: string|number): string|nil
---@field del fun(self: moonwire.redis.Connection, ...: string): integer
---@field incr fun(self: moonwire.redis.Connection, key: string): integer|string
---@field expire fun(self: moonwire.redis.Connection, key: string, seconds: integer): integer
---@field hget fun(self: moonwire.redis.Connection, key: string, field: string): string|nil
---@field hset fun(self: moonwire.redis.Connection, key: string, ...: string|number): integer
---@field [string] fun(self: moonwire.redis.Connection, ...: string|number): any
local RedisConnection = {}
--- Sends a command and waits for its answer: a string, a number, nil, or a list (its length is in `n`). An error is
--- raised.
---@param name string
---@param ... string|number
---@return any
function RedisConnection:call(name, ...) end
--- Sends several commands in one go, and waits for all answers.
---@param fn fun(pipeline: moonwire.redis.Pipeline)
---@return any[]
function RedisConnection:pipeline(fn) end

--- A Redis server, for handlers: `redis://[user:password@]host[:port][/db]`, `rediss://`, `redis+unix://`. The same
--- URL is the same connection; nothing is sent before the first command.
---@param url string
---@return moonwire.redis.Connection
function mw.redis(url) end

return mw
