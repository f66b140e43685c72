-- moonwire status and top, pause and resume: figures of a running project that are true, and a stop that holds.
local clock = require "spec.support.wait"
local process = require "spec.support.process"
local insight = require "spec.functional.insight_support"

describe("status", function()
  local app
  before_each(function() app = insight.start() end)
  after_each(function() app:stop() end)

  local function publish_many(channel, body, n)
    local sent = app.work:run({ "publish", "-b", "embedded:data", channel, "--lines" },
      { stdin = (body .. "\n"):rep(n) })
    assert.equal(0, sent.code, sent.stderr)
  end

  it("measures handlers that wait: p50 and p99 of 20 ms", function()
    publish_many("loose", "0.02", 200)
    local p = app:until_status("loose", "handled", function(p) return p.handled == 200 and p.in_flight == 0 end)
    local slow = os.getenv "MOONWIRE_BIN":find "asan" and 10 or 4
    assert(p.p50 >= 0.0175 and p.p50 < 0.02 * slow, p.p50)
    assert(p.p99 >= p.p50 and p.p99 < 0.02 * slow * 2, p.p99)
    assert(p.rate > 5 and p.rate <= 200, p.rate)
    assert.equal(1, p.generation)
    assert.equal("closed", p.breaker)
    assert.equal(0, p.in_flight_bytes)
    local table_ = app:run("status").stdout
    assert(table_:find("PIPELINE +GEN +RATE +IN FLIGHT"), table_)
    assert(table_:find("loose +1 +[%d.]+/s +0 %(0B%) +0 +0 +0 +%- +0 +%- +0 +200 +0 +%d+ms +%d+ms +1 +ok"), table_)
  end)

  it("counts what is in flight, with its bytes and its age", function()
    app:publish("loose", "1.2", "--id", "slow")
    local p = app:until_status("loose", "running", function(p) return p.running == 1 end)
    assert.equal(1, p.in_flight)
    assert(p.in_flight_bytes > 3 and p.in_flight_bytes < 1000, p.in_flight_bytes)
    assert(p.oldest >= 0 and p.oldest < 20, p.oldest)
    p = app:until_status("loose", "handled", function(q) return q.handled == 1 and q.in_flight == 0 end)
    assert.is_nil(p.oldest)
  end)

  it("sums up two supervisors, and tells them apart with --each", function()
    local second = app.work:spawn { "run" }
    clock.until_(function() return second:stderr():match "msg=started" end, 15, "started")
    publish_many("loose", "0.01", 50)
    clock.until_(function()
      return app:run("status").stdout:find("loose +1 +[%d.]+/s +0 %(0B%) +0 +0 +0 +%- +0 +%- +0 +50 ")
    end, 20, "50 in all")
    local each = app:run("status", "--each").stdout
    local _, rows = each:gsub("\n%d+ +1 +loose", "")
    assert.equal(2, rows, each)
    assert(app:run("pause", ".", "loose").stdout:find(second.pid .. " worker 1: paused: loose", 1, true))
    assert.equal(0, app:run("resume").code)
    assert(app:run("status").stderr:find("2 workers", 1, true))
    assert(app:run("status", "--json").stdout:find('"pids":[', 1, true))
    assert.equal(0, (second:stop(15)))
  end)

  it("top prints frames as lines where there is no terminal, and ends at TERM", function()
    local result = app:run("top", "--count", "2", "--interval", "200ms")
    assert.equal(0, result.code, result.stderr)
    local _, frames = result.stdout:gsub("PIPELINE +GEN", "")
    assert.equal(2, frames)
    assert.is_nil(result.stdout:find("\27", 1, true))
    assert(result.stdout:find "^%d%d:%d%d:%d%dZ  %S+  1 worker  0/s  0 in flight\n")
    local top = app.work:spawn { "top", "--interval", "30" }
    clock.until_(function() return top:stdout():find("PIPELINE", 1, true) end, 15, "a frame")
    assert.equal(0, (top:stop(5)))
    assert.equal(64, app:run("top", "--interval", "0.01").code)
  end)

  -- timeout(1) runs its command in the background, where whoever changes the terminal is stopped
  it("top is not stopped when it runs in the background of a terminal", function()
    if not process.which "script" then return pending "needs script(1)" end
    local command = ("timeout -k 1 5 %s top %s --count 2 --interval 0.1; exit $?"):format(
      os.getenv "MOONWIRE_BIN", app.work.path)
    assert.equal(0, process.run({ { "script", "-qec", command, "/dev/null" }, timeout = 30 }).code)
  end)

  -- script(1) gives it a terminal; what is typed there comes from its standard input.
  it("top draws on a terminal, fits its width, and leaves it as it was when q is pressed", function()
    local binary = os.getenv "MOONWIRE_BIN"
    local command = "stty cols 60 rows 10; " .. binary .. " top --interval 0.2; echo code=$?; stty -a"
    local shown = process.run {
      { "sh", "-c", '(sleep 1.5; printf q; sleep 0.5) | script -qec "$0" /dev/null', command }, cwd = app.work.path,
      timeout = 30,
    }
    local text = shown.stdout
    assert(text:find("\27[?1049h\27[?25l", 1, true), text) -- another screen, no cursor
    local _, frames = text:gsub("\27%[H", "")
    assert.is_true(frames >= 3, frames .. " frames")
    for line in text:match "1049h(.-)\27%[%?25h":gmatch "[^\r\n]+" do
      local bare = line:gsub("\27%[[%d;?]*%a", ""):gsub("[\128-\191]", "") -- characters, not bytes
      assert.is_true(#bare <= 60, #bare .. " wide: " .. bare)
    end
    assert(text:find("PIPELINE", 1, true) and text:find("orders", 1, true), text)
    assert(text:find "\27%[%?25h\27%[%?1049l.*code=0", text) -- back
    assert(text:find "[^-]icanon" and text:find "[^-]echo ", text)
  end)

  it("tells that nobody answers when no worker serves", function()
    app:publish("orders", "0")
    app:until_status("orders", "it to be handled", function(p) return p.handled == 1 end)
    for i = 1, 6 do -- longer pauses each time
      clock.until_(function() return select(2, app.child:stderr():gsub("msg=started", "")) == i end, 30, "start " .. i)
      local pid
      for found in app.child:stderr():gmatch 'msg="worker begins" worker=1 pid=(%d+)' do pid = found end
      process.run { "kill", "-KILL", pid }
    end
    clock.until_(function() return app.child:stderr():find "restart_in=3.2" end, 15, "the last end")
    local shown = app:run "status"
    assert.equal(0, shown.code, shown.stderr)
    assert(shown.stdout:find "orders[^\n]*no worker answers", shown.stdout)
    assert(shown.stdout:find("worker 1: down, starts in", 1, true), shown.stdout)
  end)
end)

describe("pause", function()
  local app
  before_each(function() app = insight.start() end)
  after_each(function() app:stop() end)

  it("lets what runs end, takes nothing more, survives a reload, until resume", function()
    app:publish("orders", "0.5", "--id", "runs")
    app:until_status("orders", "running", function(p) return p.running == 1 end)
    local paused = app:run("pause", ".", "orders")
    assert.equal(0, paused.code, paused.stderr)
    assert.equal("worker 1: paused: orders\n", paused.stdout)
    app:until_status("orders", "ended", function(p) return p.handled == 1 and p.paused end)
    app:publish("orders", "0", "--id", "stays")
    app:publish("loose", "0", "--id", "goes")
    app:until_status("loose", "the other flows", function(p) return p.handled == 1 end)
    assert.equal(0, app:run("reload").code)
    clock.sleep(0.3)
    local p = app:pipeline "orders"
    assert.equal(1, p.handled)
    assert.is_true(p.paused)
    assert.equal(2, p.generation)
    assert(app:run("status").stdout:find "orders[^\n]*paused\n")
    local text = app:explain "stays"
    assert(text:find("Pipeline orders is paused: it takes nothing until `moonwire resume`.", 1, true), text)
    assert.equal(0, app:run("resume").code)
    p = app:until_status("orders", "goes on", function(q) return q.handled == 2 end)
    assert.is_false(p.paused)
  end)

  it("keeps what was fetched already, and drains all the same", function()
    for i = 1, 3 do app:publish("orders", "2", "--id", "k" .. i, "--key", "k") end
    app:until_status("orders", "waiting", function(p) return p.running == 1 and p.waiting == 2 end)
    assert.equal(0, app:run("pause").code)
    app:until_status("orders", "one ended", function(p) return p.handled == 1 end)
    local text = app:explain "k"
    assert(text:find "Message k2 holds it: it is ready for attempt 1", text)
    assert(text:find("is paused", 1, true), text)
    assert.equal(0, (app.child:stop(15)))
    app.child = app.work:spawn { "run" }
    app:until_status("orders", "goes on after a restart", function(p) return p.handled == 2 end)
  end)

  it("changes nothing when a name is wrong", function()
    local result = app:run("pause", ".", "orders", "odrers")
    assert.equal(1, result.code)
    assert(result.stderr:find('there is no pipeline "odrers"; there is: orders, loose', 1, true), result.stderr)
    assert.is_false(app:pipeline "orders".paused)
  end)
end)
