-- The connections to servers in `moonwire status`.
local connections = require "moonwire.cli.process.connections"

local function connection(fields)
  local c = { broker = "redis://db", name = "reader", state = "up", address = "10.0.0.1:6379", since = 75, connects = 2,
    bytes_in = 1500, bytes_out = 10 }
  for name, value in pairs(fields or {}) do c[name] = value end
  return c
end

describe("connections", function()
  it("are those of all processes, with their pids", function()
    local both = { connection(), connection { name = "commands" } }
    local list = connections.each { { pid = 7, reply = { connections = both } },
      { pid = 8, reply = { connections = { connection() } } }, { pid = 9, reply = {} } }
    assert.equal(3, #list)
    assert.same({ 7, "commands" }, { list[2].pid, list[2].name })
    assert.equal(8, list[3].pid)
  end)

  it("are one row each", function()
    local heads, rows = connections.table({ connection(), connection { tls = "TLSv1.3" } }, false)
    assert.same({ "CONNECTION", "FOR", "STATE", "SINCE", "ADDRESS", "UPS", "IN", "OUT", "LAST ERROR" }, heads)
    assert.same({ "redis://db", "reader", "up", "1m15s", "10.0.0.1:6379", "2", "1.5kB", "10B", "-" }, rows[1])
    assert.equal("up, TLSv1.3", rows[2][3])
  end)

  it("tell what went wrong, and nothing that a server could put on a terminal", function()
    local c = connection { pid = 7, state = "waiting", error = "bad \27[31m" }
    c.address = nil
    local heads, rows = connections.table({ c }, true)
    local row = rows[1]
    assert.same({ "PID", "7", "waiting", "-", "bad \\x1b[31m" }, { heads[1], row[1], row[4], row[6], row[10] })
  end)
end)
