-- mw.log as it reaches stderr.
local process = require "spec.support.process"

local binary = os.getenv "MOONWIRE_BIN" or "build/moonwire"

local function logged(script)
  local path = process.tmpdir() .. "/script.lua"
  local file = assert(io.open(path, "w"))
  file:write('local log = require "moonwire.log"\n', script, '\nrequire("moonwire.internal.cdef").mw_log_flush()')
  file:close()
  local result = process.run { argv = { binary, "lua", path } }
  assert.equal(0, result.code, result.stderr)
  return (result.stderr:gsub("time=%S+ ", ""))
end

describe("mw.log", function()
  teardown(function() process.cleanup() end)

  it("writes one line per event, fields by name", function()
    local lines = logged [[
      log.info("paid", { text = "two words", n = 7, b = true, order = { id = 1 } })
      log.debug "no"
      log.warn "x"
      log.error(5)
    ]]
    assert.equal('level=info msg=paid b=true n=7 order="{\\"id\\":1}" text="two words"\n'
      .. "level=warn msg=x\nlevel=error msg=5\n", lines)
  end)

  it("shows lists by position, and numbers in full", function()
    assert.equal("level=info msg=x 1=a 2=b id=1234567890123456\n",
      logged 'log.info("x", { "a", "b", id = 1234567890123456 })')
  end)

  it("leaves no half line behind an object that cannot be shown", function()
    assert.equal("level=info msg=after\n", logged [[
      local bad = setmetatable({}, { __tostring = function() error "x" end })
      assert(not pcall(log.info, "before", { a = 1, bad = bad }))
      log.info "after"
    ]])
  end)

  it("writes what JSON cannot hold, and does not end at a zero byte", function()
    assert.equal('level=info msg="a\\\\0b" inf=inf low=-inf nan=nan t='
      .. '"a table that cannot be JSON: cannot encode a function at f"\n',
      logged 'log.info("a\\0b", { inf = 1 / 0, low = -1 / 0, nan = 0 / 0, t = { f = print } })')
  end)

  it("lets no field take the place of what the line says itself", function()
    assert.equal("level=info msg=x field_field_level=1 field_level=2 field_msg=m field_worker=9\n", logged
      'log.info("x", { level = 1, field_level = 2, msg = "m", worker = 9 })')
    assert.equal("level=info msg=x 1=a\n", logged 'log.info("x", { "a", ["1"] = "a" })')
  end)

  it("wants a table of fields", function()
    assert.equal("level=info msg=ok\n", logged [[
      local ok, err = pcall(log.info, "x", "fields")
      assert(not ok and err:find("mw.log: the fields must be a table, got string", 1, true), err)
      log.info "ok"
    ]])
  end)
end)
