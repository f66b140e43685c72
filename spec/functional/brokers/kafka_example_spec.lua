-- examples/kafka as a user meets it: orders that are confirmed, retried through topics and dead, and parcels in order.
local cli = require "spec.functional.cli.support"
local kafka = require "spec.support.servers.kafka"
local process = require "spec.support.process"

describe("examples/kafka/demo", function()
  if kafka.shared().mock then
    it("needs a real broker", function() pending "no Kafka broker here" end)
    return
  end

  it("tells its stories on a broker of its own, and ends it", function()
    local work = process.tmpdir()
    local result = process.run { { cli.root .. "/examples/kafka/demo" }, timeout = 200,
                                 env = { MOONWIRE = cli.binary, BROKER_URL = false, TMPDIR = work } }
    local out = result.stdout
    assert.equal(0, result.code, out .. result.stderr)
    local function told(heading) return (out .. "\n\n"):match("\n== " .. heading .. "[^\n]*\n(.-)\n\n") or out end
    assert.matches("order.created.v1.retry.3s%s+created", told "moonwire topology apply")
    local run = told "moonwire run"
    for attempt, wait in ipairs { 1, 3 } do
      local line = '"failed, will retry" pipeline=orders [^\n]*key=bob attempt=%d next_in=%d '
      assert.matches(line:format(attempt, wait), run)
    end
    assert.matches('"failed, will retry" pipeline=parcels [^\n]*key=p1 attempt=1 ', run)
    local confirmed = told "moonwire tail"
    for _, field in ipairs { 'bob +{[^\n]*"attempt":3', 'bob +{[^\n]*"item":"kettle"', 'ann +{[^\n]*"attempt":1' } do
      assert.matches(field, confirmed)
    end
    assert.is_nil(confirmed:find("unicorn", 1, true), confirmed)
    assert.matches("business +1 +cleo +no such item: unicorn", told "moonwire dlq ls")
    local left = process.run { "sh", "-c", "ps ax -o args | grep -c '[k]afka.Kafka " .. work .. "'" }
    assert.equal("0", (left.stdout:match "%d+"))
  end)

  it("keeps the scans of a parcel in order on the broker it is given", function()
    local url = ("kafka://%s/example-%d."):format(kafka.shared().bootstrap, math.random(1e9))
    local result = process.run { { cli.root .. "/examples/kafka/demo" }, timeout = 200,
                                 env = { MOONWIRE = cli.binary, BROKER_URL = url } }
    assert.equal(0, result.code, result.stdout .. result.stderr)
    local tail = process.run { { cli.binary, "tail", "parcel.state.v1", "--no-follow", "--broker", url } }
    local places = {}
    for place in tail.stdout:gmatch '"place":"(%a+)"' do places[#places + 1] = place end
    assert.same({ "warehouse", "customs", "depot", "door" }, places)
  end)
end)
