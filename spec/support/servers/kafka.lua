-- kafka.lua - a real Kafka broker for specs: KRaft mode, one node, free loopback ports, a folder of its own. Its jars
-- come by their Maven coordinates and stay in ~/.cache/moonwire. Without Java, Maven or a way to Maven Central it is
-- librdkafka's mock cluster inside this process, and `kind` says so.
local client = require "spec.support.servers.kafka_client"
local process = require "spec.support.process"
local wait = require "spec.support.wait"

local M = {}
local Server = {}
Server.__index = Server

M.version = os.getenv "MW_KAFKA_VERSION" or "3.9.1"
M.newest = "4.3.1" -- the contract is proved on both

local POM = [[
<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion>
<groupId>moonwire</groupId><artifactId>kafka-for-specs</artifactId><version>1</version>
<dependencies>
<dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>%s</version></dependency>
<dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
</dependencies>
</project>
]]

local PROPERTIES = [[
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:%d
listeners=%s
advertised.listeners=%s
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs=%s/data
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=500
message.max.bytes=33554432
replica.fetch.max.bytes=33554432
num.network.threads=2
num.io.threads=2
log.cleaner.dedupe.buffer.size=2097152
log.cleaner.backoff.ms=200
log.retention.check.interval.ms=1000
log.initial.task.delay.ms=200
controlled.shutdown.enable=false
%s
]]

local JAVA = { "-Xms64m", "-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
               "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn" }

local function exists(path)
  local file = io.open(path)
  if file then file:close() end
  return file ~= nil
end

local function spill(path, text)
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
end

--- The folder of the jars; nil and why not.
function M.jars(version)
  local cache = (os.getenv "XDG_CACHE_HOME" or os.getenv "HOME" .. "/.cache") .. "/moonwire"
  local dir = ("%s/kafka-%s"):format(cache, version)
  if exists(dir .. "/complete") then return dir end
  if not process.which "mvn" then return nil, "no mvn to fetch the broker's jars" end
  local work = process.tmpdir()
  spill(work .. "/pom.xml", POM:format(version))
  local fetched = process.run { { "mvn", "-B", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime",
    "-DoutputDirectory=" .. work .. "/jars" }, cwd = work, timeout = 300 }
  if fetched.code ~= 0 then return nil, "mvn: " .. (fetched.stdout .. fetched.stderr):sub(1, 500) end
  spill(work .. "/jars/complete", version .. "\n")
  process.run { "mkdir", "-p", cache }
  process.run { "mv", "-T", work .. "/jars", dir } -- fails when another run was faster: then theirs is there
  return exists(dir .. "/complete") and dir or nil, "cannot write " .. dir
end

local function java(self, arguments)
  local argv = { "java" }
  for _, a in ipairs(JAVA) do argv[#argv + 1] = a end
  for _, a in ipairs(self.java or {}) do argv[#argv + 1] = a end
  argv[#argv + 1] = "-cp"
  argv[#argv + 1] = self.jars .. "/*"
  for _, a in ipairs(arguments) do argv[#argv + 1] = a end
  return argv
end

--- Starts (again), on the same ports and data; returns when it answers.
function Server:start()
  if self.mock then return end
  local log = self.dir .. "/log"
  self.child = process.spawn { java(self, { "kafka.Kafka", self.dir .. "/server.properties" }), stdout = log,
    stderr = log }
  wait.until_(function()
    assert(self.child:alive(), "the broker ended")
    return client.answers(self.bootstrap)
  end, 60, "Kafka to answer on " .. self.bootstrap .. ", see " .. log)
end

function Server:stop(signal)
  if not self.child then return end
  self.child:kill(signal or "TERM")
  local _, why = self.child:wait(20)
  if why == "timeout" then
    self.child:kill "KILL"
    self.child:wait(5)
  end
  self.child = nil
end

local function listeners(self)
  local secure = self.secure and (",SASL_SSL://127.0.0.1:%d"):format(self.secure.port) or ""
  local sasl = self.sasl and (",SASL_PLAINTEXT://127.0.0.1:%d"):format(self.sasl.port) or ""
  local public = ("PLAINTEXT://%s%s%s"):format(self.bootstrap, secure, sasl)
  return public .. (",CONTROLLER://127.0.0.1:%d"):format(self.controller), public
end

local function real(options)
  if os.getenv "MW_KAFKA" == "mock" then return nil, "MW_KAFKA=mock" end
  if not process.which "java" then return nil, "no java" end
  local version = options.version or M.version
  local jars, why = M.jars(version)
  if not jars then return nil, why end
  local self = setmetatable({ jars = jars, dir = process.tmpdir(), controller = process.free_port(),
    bootstrap = "127.0.0.1:" .. process.free_port(), kind = "Kafka " .. version,
    secure = options.secure, sasl = options.sasl, java = options.java }, Server)
  local inner, public = listeners(self)
  spill(self.dir .. "/server.properties",
    PROPERTIES:format(self.controller, inner, public, self.dir, options.properties or ""))
  local argv = java(self, { "kafka.tools.StorageTool", "format", "-t", "bW9vbndpcmUtc3BlY3MtMQ", "-c",
    self.dir .. "/server.properties" })
  for _, credential in ipairs(options.scram or {}) do
    argv[#argv + 1] = "--add-scram"
    argv[#argv + 1] = credential
  end
  local format = process.run { argv, timeout = 60 }
  if format.code ~= 0 then error("StorageTool: " .. format.stdout .. format.stderr, 0) end
  self:start()
  return self
end

--- A broker of one's own:
--- { version = text, properties = text, secure = { port = }, sasl = { port = }, scram = { … }, java = { … } };
--- nil, why not.
function M.new(options) return real(options or {}) end

-- The one of its version that all specs of this process share; it outlives busted's reloading of modules.
function M.shared(version)
  local registry, name = debug.getregistry(), "moonwire.spec.kafka " .. (version or M.version)
  local server = registry[name]
  if server and (server.mock or server.child and server.child:alive()) then return server end
  local why
  server, why = real { version = version }
  if not server then
    io.stderr:write("NOTE: no Kafka broker (", why, "); librdkafka's mock cluster stands in for it\n")
    local mock = client.mock_cluster()
    server = setmetatable({ mock = mock, bootstrap = mock.bootstrap, kind = "librdkafka's mock cluster" }, Server)
  end
  registry[name] = server
  return server
end

return M
