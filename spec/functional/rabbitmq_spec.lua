-- RabbitMQ as a user meets it: the demo, options right and wrong, what the commands say. Attacks: spec/faults.
local cli = require "spec.functional.cli.support"
local process = require "spec.support.process"

describe("examples/rabbitmq/demo", function()
  it("tells its stories on a broker of its own, and ends it", function()
    local result = process.run { { cli.root .. "/examples/rabbitmq/demo" },
                                 env = { MOONWIRE = cli.binary, BROKER_URL = false }, timeout = 200 }
    local out = result.stdout
    assert.equal(0, result.code, out .. result.stderr)
    local function told(heading) return out:match("\n" .. heading .. "[^\n]*\n(.-)\n\n") or out end
    local notes = {}
    for order, service in told("Which service"):gmatch "order (%d), %S+ +(%a+)" do
      notes[#notes + 1] = order .. " " .. service
    end
    assert.same({ "1 audit", "1 welcome", "2 audit", "2 urgent", "2 welcome", "3 audit" }, notes)
    local tasks = {}
    for task in told("Tasks"):gmatch '"task":"(.-)"' do tasks[#tasks + 1] = task end
    assert.same({ "urgent 1", "urgent 2", "later 1", "later 2", "later 3" }, tasks)
    assert.matches("cat.png", told "Images")
    assert.matches("cannot read tiff", told "moonwire dlq ls")
    local letter = out:match "moonwire dlq show.*$"
    assert.matches("gave up after 3 attempts", letter)
    assert.matches("first error  [^\n]*no such amount", letter)
    assert.is_nil(letter:find("x-first-death", 1, true), letter)
    local port = out:match "on port (%d+)"
    local found = process.run { "sh", "-c", "ps ax -o args | grep -c '[m]oonwire-demo-" .. port .. "'" }
    assert.equal("0", (found.stdout:match "%d+"))
  end)

  it("says what is missing", function()
    local result = process.run { { cli.root .. "/examples/rabbitmq/demo" },
                                 env = { MOONWIRE = cli.binary, BROKER_URL = false, RABBITMQ_SERVER = "/nowhere" } }
    assert.equal(69, result.code)
    assert.matches("apt%-get install .*rabbitmq%-server", result.stderr)
    assert.matches("BROKER_URL", result.stderr)
  end)
end)
