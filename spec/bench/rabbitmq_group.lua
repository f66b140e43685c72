--- RabbitMQ, against rabbitmq-c, on one real server. `env` has what run.lua shares: add, run, note, heading, options,
--- here.
local bench, env = ...

local raw = bench.build .. "/bench/raw_rabbitmq"

local function queue(server, vhost, name)
  server:eval(([[case rabbit_amqqueue:lookup(rabbit_misc:r(<<"%s">>, queue, <<"%s">>)) of
    {ok, Q} -> rabbit_amqqueue:delete(Q, false, false, <<"bench">>); _ -> none end]]):format(vhost, name))
end

local function ours(url, n, kind, folder, body)
  os.execute(("rm -rf '%s/p'; mkdir '%s/p'"):format(folder, folder))
  return env.run(("'%s' lua '%srabbitmq.lua' '%s' %d %s '%s/p' %d"):format(bench.moonwire, env.here, url, n, kind,
    folder, body or 0))
end

local function ratios(size, what, n, got)
  local wall, cpu = bench.median(got.ours.wall), bench.median(got.ours.cpu)
  local raw_wall, raw_cpu = bench.median(got.raw.wall), bench.median(got.raw.cpu)
  local speed, cost = raw_wall / wall, cpu / raw_cpu
  local name = ("%d B, %s"):format(size, what)
  env.add { group = "rabbitmq", name = name .. ": messages", unit = "/s", ours = n / wall, baseline = n / raw_wall,
            ratio = speed, target = ">= 0.90 of raw", ok = speed >= 0.9 }
  env.add { group = "rabbitmq", name = name .. ": CPU per million", unit = " s", ours = cpu / n * 1e6,
            baseline = raw_cpu / n * 1e6, ratio = cost, target = "<= 1.00 of raw", ok = cost <= 1 }
end

--- Raw and ours take turns: what one publishes the other consumes, and the other way round.
local function throughput(server, url, folder, size)
  local n, rounds = env.options.quick and 30000 or 60000, env.options.quick and 2 or 3
  local put = { raw = { wall = {}, cpu = {} }, ours = { wall = {}, cpu = {} } }
  local take = { raw = { wall = {}, cpu = {} }, ours = { wall = {}, cpu = {} } }
  for i = 1, rounds do
    for _, who in ipairs { "raw", "ours" } do
      queue(server, "/", "in")
      local p = who == "raw" and env.run(("'%s' publish %d / %d %d"):format(raw, server.port, n, size))
        or ours(url, n, "publish", folder, size)
      put[who].wall[i], put[who].cpu[i] = p.wall, p.cpu
      local other = who == "raw" and "ours" or "raw"
      local t = other == "raw" and env.run(("'%s' consume %d / %d"):format(raw, server.port, n))
        or ours(url, n, "consume", folder)
      take[other].wall[i], take[other].cpu[i] = t.wall, t.cpu
    end
  end
  ratios(size, "consume and ack", n, take)
  ratios(size, "publish, confirmed", n, put)
end

local function latency(server, url, folder)
  local rate, n = 500, env.options.quick and 1000 or 3000
  local function measure(consumer)
    queue(server, "/", "in")
    queue(server, "/", "out")
    os.execute(("rm -rf '%s/p'; mkdir '%s/p'"):format(folder, folder))
    os.execute(("'%s' publish %d / 1 20 > /dev/null; %s > '%s/echo' 2>&1 & sleep 1"):format(raw, server.port, consumer,
      folder))
    return env.run(("'%s' latency %d / %d %d"):format(raw, server.port, n, rate))
  end
  local floor = measure(("'%s' echo %d / %d"):format(raw, server.port, n + 1))
  local got = measure(("'%s' lua '%srabbitmq.lua' '%s' %d echo '%s/p'"):format(bench.moonwire, env.here, url, n + 1,
    folder))
  for _, which in ipairs { "p50", "p99" } do
    env.add { group = "rabbitmq", name = ("consume, publish, ack at %d/s: %s"):format(rate, which), unit = " ms",
              ours = got[which] * 1000, baseline = floor[which] * 1000, ratio = got[which] / floor[which] }
  end
end

return function()
  local found = bench.capture "command -v epmd" and io.open(raw)
  if not found then
    env.note "SKIPPED: rabbitmq, because the server or its C library is missing (rabbitmq-server, librabbitmq-dev)"
    return
  end
  found:close()
  env.heading "rabbitmq: consume -> handler -> ack, and confirmed publishing on loopback, against rabbitmq-c"
  bench.with_folder(function(folder)
    package.path = env.here .. "../../?.lua;" .. package.path
    local server = require("spec.support.servers.rabbitmq").get()
    local url = ("amqp://guest:guest@127.0.0.1:%d"):format(server.port)
    local ok, err = pcall(function()
      throughput(server, url, folder, 100)
      throughput(server, url, folder, 1024)
      latency(server, url, folder)
    end)
    server:stop()
    if not ok then error(err, 0) end
  end)
end
