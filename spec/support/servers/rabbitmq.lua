-- rabbitmq.lua - a real rabbitmq-server for specs: one of a version per test run, on free loopback ports, with its own
-- epmd, cookie, folders and certificates; plain and TLS listeners. It starts on first use (10 to 20 s) and ends with
-- the spec process. With MW_RABBITMQ=4 all specs use RabbitMQ 4 instead of the system's.
--
-- Specs look into it and hurt it through eval(): a listener inside the node that evaluates Erlang. rabbitmqctl would do
-- the same, but takes a second of CPU each time, and a spec asks hundreds of times.
local ffi = require "ffi"
local process = require "spec.support.process"
local versions = require "spec.support.servers.rabbitmq_versions"
local wait = require "spec.support.wait"

ffi.cdef [[
int mwt_rabbit_socket(int domain, int type, int protocol) __asm__("socket");
int mwt_rabbit_connect(int fd, const void *addr, unsigned len) __asm__("connect");
int mwt_rabbit_setsockopt(int fd, int level, int name, const void *value, unsigned len) __asm__("setsockopt");
long mwt_rabbit_send(int fd, const void *data, size_t len, int flags) __asm__("send");
long mwt_rabbit_recv(int fd, void *data, size_t len, int flags) __asm__("recv");
int mwt_rabbit_close(int fd) __asm__("close");
]]

local C = ffi.C
local MSG_NOSIGNAL, EINTR = 0x4000, 4
local START_LIMIT = 90

local M = {}

--- Talking to the node ------------------------------------------------------------------------------------------------

-- Answers one expression per connection, as text.
local EVALUATOR = [[
spawn(fun() ->
  {ok, Listener} = gen_tcp:listen(%d, [binary, {packet, 4}, {active, false}, {reuseaddr, true}, {ip, {127,0,0,1}}]),
  Accept = fun Accept() ->
    {ok, Socket} = gen_tcp:accept(Listener),
    Worker = spawn(fun() ->
      receive go -> ok end,
      Answer = try
        {ok, Source} = gen_tcp:recv(Socket, 0),
        {ok, Tokens, _} = erl_scan:string(binary_to_list(Source)),
        {ok, Expressions} = erl_parse:parse_exprs(Tokens),
        {value, Value, _} = erl_eval:exprs(Expressions, []),
        io_lib:format("~0p", [Value])
      catch Class:Reason -> io_lib:format("failed: ~0p ~0p", [Class, Reason]) end,
      gen_tcp:send(Socket, unicode:characters_to_binary(Answer)),
      gen_tcp:close(Socket)
    end),
    gen_tcp:controlling_process(Socket, Worker),
    Worker ! go,
    Accept()
  end,
  Accept()
end).
]]

local function dial(port)
  local fd = C.mwt_rabbit_socket(2, 1, 0) -- AF_INET, SOCK_STREAM
  local limit = ffi.new("int64_t[2]", { 20, 0 })
  C.mwt_rabbit_setsockopt(fd, 1, 20, limit, 16) -- SOL_SOCKET, SO_RCVTIMEO
  local addr = ffi.new("uint8_t[16]", { 0, 0, bit.rshift(port, 8), bit.band(port, 255), 127, 0, 0, 1 })
  ffi.cast("uint16_t *", addr)[0] = 2
  if C.mwt_rabbit_connect(fd, addr, 16) ~= 0 then
    C.mwt_rabbit_close(fd)
    return nil
  end
  return fd
end

local function receive(fd, count)
  local buf, have = ffi.new("char[?]", count), 0
  while have < count do
    local n = tonumber(C.mwt_rabbit_recv(fd, buf + have, count - have, 0))
    if n == 0 or n < 0 and ffi.errno() ~= EINTR then return nil end -- the timer of the loop's turns interrupts
    have = have + math.max(n, 0)
  end
  return ffi.string(buf, count)
end

local function ask(port, expression)
  local fd = dial(port)
  if not fd then return nil, "nobody listens" end
  local n = #expression
  local frame = string.char(bit.rshift(n, 24), bit.band(bit.rshift(n, 16), 255), bit.band(bit.rshift(n, 8), 255),
    bit.band(n, 255)) .. expression
  C.mwt_rabbit_send(fd, frame, #frame, MSG_NOSIGNAL)
  local head = receive(fd, 4)
  local answer
  if head then
    local a, b, c, d = head:byte(1, 4)
    answer = receive(fd, ((a * 256 + b) * 256 + c) * 256 + d)
  end
  C.mwt_rabbit_close(fd)
  if not answer then return nil, "no answer" end
  return answer
end

local Server = {}
Server.__index = Server

-- Evaluates Erlang inside the node; the value as text. An exception there is an error here.
function Server:eval(expression)
  local answer, err = ask(self.eval_port, expression .. ".")
  if not answer then error("rabbitmq: " .. err, 2) end
  if answer:find "^failed: " then error("rabbitmq: " .. answer, 2) end
  return answer
end

local function binary(text) return "<<" .. table.concat({ text:byte(1, -1) }, ",") .. ">>" end

local MINE = [[
  Wanted = %s,
  Tier = fun(Name) -> binary:match(Name, <<"mw.delay.">>) == {0, 9} andalso
    binary:longest_common_suffix([Name, <<".", Wanted/binary>>]) == byte_size(Wanted) + 1 end,
  Queues = fun() -> [{element(4, amqqueue:get_name(Q)), Q} || Q <- rabbit_amqqueue:list(%s)] end,
]]

local function sum(self, vhost, channel, of)
  return tonumber(self:eval((MINE .. [[
    Count = fun(Q) -> case amqqueue:get_type(Q) of
      rabbit_quorum_queue -> %% its figures of `info` are seconds old; one that is just being made has none
        Look = fun Look(Left) -> case ra:local_query(amqqueue:get_pid(Q), fun rabbit_fifo:overview/1) of
          {ok, {_, #{num_messages := N}}, _} -> N;
          _ when Left > 0 -> timer:sleep(20), Look(Left - 1)
        end end,
        Look(100);
      _ -> [{_, R}, {_, U}] = rabbit_amqqueue:info(Q, [messages_ready, messages_unacknowledged]), R + U
    end end,
    Sum = fun() -> lists:sum([Count(Q) || {Name, Q} <- Queues(), %s]) end,
    case Sum() of 0 -> Sum(); N -> N end %% one may have gone from a queue that comes later to one that was counted
    ]]):format(binary(channel), binary(vhost), of)))
end

-- Messages of a channel that are not settled, at this moment: ready and handed out, in its queue and in the queues
-- where its delayed messages wait.
function Server:unsettled(vhost, channel)
  return sum(self, vhost, channel, "Name == Wanted orelse Tier(Name)")
end

-- Likewise, in this queue alone.
function Server:count(vhost, queue) return sum(self, vhost, queue, "Name == Wanted") end

-- The names of the queues where its delayed messages wait.
function Server:tiers(vhost, channel)
  local names = {}
  local answer = self:eval((MINE .. "[binary_to_list(Name) || {Name, _} <- Queues(), Tier(Name)]")
    :format(binary(channel), binary(vhost)))
  for name in answer:gmatch '"(.-)"' do names[#names + 1] = name end
  return names
end

local FIND = "rabbit_amqqueue:lookup(rabbit_misc:r(%s, queue, %s))"

function Server:queue_exists(vhost, name)
  return self:eval(("element(1, " .. FIND .. ")"):format(binary(vhost), binary(name))) == "ok"
end

-- An argument that a queue was declared with: text, a number, or nil.
function Server:argument(vhost, queue, name)
  local answer = self:eval(("{ok, Q} = " .. FIND .. [=[, case lists:keyfind(%s, 1, amqqueue:get_arguments(Q)) of
    {_, longstr, Text} -> binary_to_list(Text); {_, _, Value} -> Value; false -> none end]=]):format(binary(vhost),
    binary(queue), binary(name)))
  if answer == "none" then return nil end
  return tonumber(answer) or answer:match '^"(.*)"$'
end

-- Sets a variable of the node's; its old value.
function Server:setting(name, value)
  return tonumber(self:eval(("{ok, Old} = application:get_env(rabbit, %s), application:set_env(rabbit, %s, %d), Old")
    :format(name, name, value)))
end

-- Begins to make a queue, after so many milliseconds. Streams and quorum queues take long: meanwhile they can be found
-- and not used.
function Server:make_after(ms, vhost, name, type)
  self:eval(([[spawn(fun() -> timer:sleep(%d), rabbit_amqqueue:declare(rabbit_misc:r(%s, queue, %s), true, false,
    [{<<"x-queue-type">>, longstr, <<"%s">>}], none, <<"spec">>) end)]]):format(ms, binary(vhost), binary(name), type))
end

-- As soon as it has so many messages.
function Server:delete_queue_with(count, vhost, name)
  self:eval(([[{ok, Q} = ]] .. FIND .. [[, spawn(fun() ->
    Wait = fun Wait() -> case rabbit_amqqueue:info(Q, [messages]) of
      [{_, N}] when N >= %d -> ok;
      _ -> timer:sleep(1), Wait()
    end end,
    Wait(),
    rabbit_amqqueue:delete(Q, false, false, <<"spec">>) end)]]):format(binary(vhost), binary(name), count))
end

-- A quorum queue that does not answer, as one does that has no leader.
function Server:suspend_queue(vhost, name)
  self:eval(("{ok, Q} = " .. FIND .. ", {Process, _} = amqqueue:get_pid(Q), sys:suspend(Process)"):format(binary(vhost),
    binary(name)))
end

function Server:delete_queue(vhost, name)
  self:eval(("{ok, Q} = " .. FIND .. ", rabbit_amqqueue:delete(Q, false, false, <<\"spec\">>)"):format(binary(vhost),
    binary(name)))
end

function Server:declare(vhost, name, arguments)
  self:eval(("rabbit_amqqueue:declare(rabbit_misc:r(%s, queue, %s), true, false, %s, none, <<\"spec\">>)"):format(
    binary(vhost), binary(name), arguments or "[]"))
end

-- Queues whose names match the pattern are full, until this is called with false.
function Server:full(vhost, pattern, on)
  self:eval(on and ([[rabbit_policy:set(%s, <<"full">>, %s,
    [{<<"max-length">>, 0}], 0, <<"queues">>, <<"spec">>)]])
    :format(binary(vhost), binary(pattern)) or ("rabbit_policy:delete(%s, <<\"full\">>, <<\"spec\">>)")
    :format(binary(vhost)))
end

-- How many messages stand in a stream.
function Server:stream_length(vhost, name)
  return tonumber(self:eval(("case " .. FIND .. [=[ of
    {ok, Q} ->
      Name = amqqueue:get_name(Q),
      lists:max([0 | [maps:get(offset, Counters) + 1
        || {{osiris_writer, Of}, Counters} <- maps:to_list(osiris_counters:overview()), Of == Name]]);
    _ -> 0 end]=]):format(binary(vhost), binary(name))))
end

-- A vhost of its own for one case: nothing of another one can disturb it.
function Server:vhost(name)
  self:eval(([[rabbit_vhost:add(%s, <<"spec">>),
    rabbit_auth_backend_internal:set_permissions(<<"guest">>, %s, <<".*">>, <<".*">>, <<".*">>, <<"spec">>)]])
    :format(binary(name), binary(name)))
end

function Server:drop_vhost(name) self:eval(("catch rabbit_vhost:delete(%s, <<\"spec\">>)"):format(binary(name))) end

function Server:version() return (self:eval "rabbit_misc:version()"):match '"(.-)"' end

function Server:close_connections()
  return tonumber(self:eval [[length([rabbit_networking:close_connection(P, "closed by a spec")
    || P <- rabbit_networking:connections()])]])
end

-- A memory alarm, until it is cleared: publishing connections are blocked.
function Server:alarm(on)
  self:eval(("vm_memory_monitor:set_vm_memory_high_watermark(%s), %s"):format(on and "0.0" or "0.4",
    on and "rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []})"
      or "rabbit_alarm:clear_alarm({resource_limit, memory, node()})"))
end

--- Certificates -------------------------------------------------------------------------------------------------------

local function openssl(dir, ...)
  local result = process.run { { "openssl", ... }, cwd = dir }
  if result.code ~= 0 then error("openssl: " .. result.stderr, 0) end
end

local function certificate(dir, name, common_name, extension)
  local file = assert(io.open(dir .. "/" .. name .. ".ext", "w"))
  file:write(extension)
  file:close()
  openssl(dir, "req", "-newkey", "rsa:2048", "-nodes", "-keyout", name .. ".key", "-out", name .. ".csr", "-subj",
    "/CN=" .. common_name)
  openssl(dir, "x509", "-req", "-in", name .. ".csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days",
    "2", "-out", name .. ".crt", "-extfile", name .. ".ext")
end

local function certificates(dir)
  openssl(dir, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.crt", "-days", "2",
    "-subj", "/CN=moonwire spec authority")
  certificate(dir, "server", "localhost", "subjectAltName=DNS:localhost,IP:127.0.0.1\n")
  certificate(dir, "client", "certified", "extendedKeyUsage=clientAuth\n")
end

--- Starting and stopping ----------------------------------------------------------------------------------------------

local CONFIG = [[
listeners.tcp.1 = 127.0.0.1:%d
listeners.ssl.1 = 127.0.0.1:%d
ssl_options.cacertfile = %s/ca.crt
ssl_options.certfile = %s/server.crt
ssl_options.keyfile = %s/server.key
ssl_options.verify = verify_peer
ssl_options.fail_if_no_peer_cert = false
ssl_cert_login_from = common_name
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = EXTERNAL
vm_memory_high_watermark.absolute = 1500MB
disk_free_limit.absolute = 10MB
max_message_size = 134217728
heartbeat = 60
log.file.level = warning
]]

local function write(path, text)
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
end

local ARGUMENTS = '+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none -start_epmd false -eval file:eval("%s/evaluator")'

local function environment(self)
  local dir = self.dir
  local env = {
    HOME = dir, RABBITMQ_NODENAME = self.node, RABBITMQ_NODE_IP_ADDRESS = "127.0.0.1", RABBITMQ_NODE_PORT = self.port,
    RABBITMQ_DIST_PORT = self.dist_port, RABBITMQ_MNESIA_BASE = dir .. "/mnesia", RABBITMQ_LOG_BASE = dir .. "/log",
    RABBITMQ_ENABLED_PLUGINS_FILE = dir .. "/plugins", RABBITMQ_CONFIG_FILE = dir .. "/rabbitmq.conf",
    RABBITMQ_PID_FILE = dir .. "/pid", ERL_EPMD_PORT = self.epmd_port, ERL_EPMD_ADDRESS = "127.0.0.1",
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS = ARGUMENTS:format(dir), LANG = "C.UTF-8",
    RUNNING_UNDER_SYSTEMD = 1, -- the script becomes the node: it dies with us, and its pid is the child's
  }
  for name, value in pairs(self.home.env) do env[name] = value end
  return env
end

-- rabbitmqctl against this server, for what eval() should not imitate.
function Server:ctl(...)
  return process.run { { self.home.bin .. "/rabbitmqctl", "-q", ... }, env = environment(self), timeout = 60 }
end

function Server:start()
  local log = self.dir .. "/out"
  self.epmd = process.spawn { { "epmd", "-port", self.epmd_port, "-address", "127.0.0.1" }, stdout = log, stderr = log }
  self.child = process.spawn { { self.home.bin .. "/rabbitmq-server" }, env = environment(self), stdout = log,
    stderr = log }
  wait.until_(function()
    if not self.child:alive() then error "it ended" end
    return ask(self.eval_port, "rabbit:is_running().") == "true" and ask(self.eval_port,
      "length(rabbit_networking:active_listeners()) >= 2.") == "true"
  end, START_LIMIT, "rabbitmq-server; its output is in " .. log)
end

function Server:stop(sig)
  self.child:kill(sig or "TERM")
  if select(2, self.child:wait(60)) == "timeout" then error("rabbitmq-server does not end", 2) end
  self.epmd:stop(5)
end

function Server:signal(sig) self.child:kill(sig) end

local function new_once(home)
  local dir = process.tmpdir()
  local self = setmetatable({ home = home, dir = dir, port = process.free_port(), tls_port = process.free_port(),
                              dist_port = process.free_port(), epmd_port = process.free_port(),
                              eval_port = process.free_port() }, Server)
  self.node = ("mw%d@localhost"):format(self.port)
  certificates(dir)
  write(dir .. "/rabbitmq.conf", CONFIG:format(self.port, self.tls_port, dir, dir, dir))
  write(dir .. "/plugins", "[rabbitmq_auth_mechanism_ssl,rabbitmq_consistent_hash_exchange].\n")
  write(dir .. "/evaluator", EVALUATOR:format(self.eval_port))
  self:start()
  self:eval [[rabbit_auth_backend_internal:add_user(<<"certified">>, <<"unused">>, <<"spec">>),
    rabbit_auth_backend_internal:add_user(<<"reader">>, <<"reader">>, <<"spec">>)]]
  return self
end

-- Other runs start servers at the same time, and one of them may be faster at a port: then again, on other ports.
local function new(home)
  for _ = 1, 2 do
    local ok, server = pcall(new_once, home)
    if ok then return server end
    io.stderr:write("NOTE: rabbitmq-server did not start, and is tried again: ", tostring(server), "\n")
  end
  return new_once(home)
end

local function wanted(version) return versions.which(version or os.getenv "MW_RABBITMQ" or "system") end

function M.same(one, other) return versions.which(one) == versions.which(other) end

-- Where a server of that version is, or of the one that specs use; nil and why there is none.
function M.home(version) return versions.find(wanted(version)) end

-- The server of this test run, the system's or the one of version "4". busted reloads modules between spec files, so it
-- stands in the registry.
function M.get(version)
  version = wanted(version)
  local registry, name = debug.getregistry(), "moonwire.spec.rabbitmq " .. version
  local server = registry[name]
  if not server or not server.child:alive() then -- a spec file before this one may have ended what it started
    local home, why = versions.find(version)
    server = new(home or error(why, 0))
    registry[name] = server
  end
  return setmetatable(server, Server)
end

function M.url(server, vhost, options)
  return ("amqp://guest:guest@127.0.0.1:%d/%s%s"):format(server.port, vhost or "", options or "")
end

function M.tls_url(server, vhost, options)
  return ("amqps://guest:guest@localhost:%d/%s?ca=%s/ca.crt%s"):format(server.tls_port, vhost or "", server.dir,
    options or "")
end

return M
