-- The world of user scripts: what is in it, what is not, and what accidents it turns into errors.
local process = require "spec.support.process"
local sandbox = require "moonwire.internal.config.sandbox"

local dir

local function write(path, text)
  local file = assert(io.open(dir .. "/" .. path, "wb"))
  file:write(text)
  file:close()
end

local given = { answer = 42 }
local function new() return sandbox.new(dir, function(name) return name == "given" and given or nil end) end

local function run(text, box)
  local chunk, err = (box or new()).compile(text, "test.lua")
  if not chunk then return nil, err end
  local ok, a, b = pcall(chunk)
  if not ok then return nil, a end
  return a, b
end

local function refuses(expected, text, box)
  local value, err = run(text, box)
  assert.is_nil(value)
  assert.matches(expected, tostring(err), 1, true)
end

describe("the sandbox", function()
  setup(function()
    dir = process.tmpdir()
    assert(process.run({ "mkdir", "-p", dir .. "/handlers/sub", dir .. "/lua" }).code == 0)
  end)
  teardown(function() process.cleanup() end)

  it("has standard Lua", function()
    assert.equal("b,a", (run [[local t = { "b", "a" }; return table.concat(t, ",") ]]))
    assert.equal(3, (run "return select('#', unpack { 1, 2, 3 })"))
    assert.equal("AB", (run "return ('ab'):upper()"))
    assert.equal(6, (run [[
      local next_one = coroutine.wrap(function() for i = 1, 3 do coroutine.yield(i) end end)
      return next_one() + next_one() + next_one()
    ]]))
    assert.equal(1, (run "return bit.band(3, 1)"))
    assert.equal("table", (run "return type(_G)"))
    assert.is_true((run "return _G.string == string and rawequal(_G, _G._G)"))
    assert.is_number((run "return collectgarbage 'count'"))
  end)

  for _, name in ipairs {
    "ffi", "package", "jit", "loadfile", "dofile", "setfenv", "getfenv", "module", "newproxy", "arg", "gcinfo",
  } do
    it("has no " .. name, function() refuses(('undefined variable "%s"'):format(name), "return " .. name) end)
  end

  for _, name in ipairs { "os.execute", "os.exit", "os.setlocale", "io.popen", "io.output", "io.input",
    "string.dump", "debug.getinfo", "debug.sethook", "debug.getregistry" } do
    it("has no " .. name, function() assert.is_nil((run(("return %s and 'there' or nil"):format(name)))) end)
  end

  it("has debug.traceback, for xpcall", function()
    local ok, trace = run "return xpcall(function() error 'oops' end, debug.traceback)"
    assert.is_false(ok)
    assert.matches("test.lua:1: oops\nstack traceback:\n", trace, 1, true)
  end)

  it("cannot be asked to stop the collector", function()
    refuses('collectgarbage: only "count" is possible here', "return collectgarbage 'stop'")
  end)

  it("makes an error of a global by accident, read or written", function()
    refuses('undefined variable "prnit"; did you mean "print"?', "prnit 'x'")
    refuses('"total" would become a global: write `local total`', "total = 1")
    refuses('"f" would become a global', "function f() end")
    refuses('test.lua:2: "x" would become a global', "local y\nx = y")
    assert.equal("nil", (run "return type(rawget(_G, 'nothing'))"))
  end)

  it("guards its own rules", function()
    assert.equal("protected", (run "return getmetatable(_G)"))
    refuses("cannot change a protected metatable", "setmetatable(_G, {})")
  end)

  it("loads text, in this world, and no bytecode", function()
    assert.equal(3, (run "return loadstring('return 1 + 2')()"))
    assert.equal(3, (run "return load('return 1 + 2')()"))
    refuses('undefined variable "ffi"', "return loadstring('return ffi')()")
    refuses('"x" would become a global', "loadstring('x = 1')()")
    assert.matches("unexpected symbol", select(2, run "return loadstring('}')"), 1, true)
    assert.equal("expected source text", select(2, run "return load(function() return 'return 1' end)"))
    local box = new()
    rawset(box.world, "dumped", string.dump and string.dump(function() return 1 end) or "\27LJ")
    assert.equal("chunk: is bytecode; only source text is loaded", select(2, run("return loadstring(dumped)", box)))
    assert.equal("x: is bytecode; only source text is loaded", select(2, run("return load(dumped, 'x')", box)))
    write("binary.lua", "\27LJ\2")
    refuses("binary.lua: is bytecode; only source text is loaded", "return require 'binary'")
    write("script.lua", "#!/usr/bin/moonwire\nreturn 'shebang'")
    assert.equal("shebang", (run "return require 'script'"))
  end)

  it("requires modules of the project, once", function()
    write("handlers/orders.lua", "return { n = 1 }")
    write("handlers/sub/init.lua", "return 'init'")
    write("lua/util.lua", "return 'util'")
    write("quiet.lua", "local x = 1")
    write("falsy.lua", "return false")
    local box = new()
    assert.equal(1, (run("return require('handlers.orders').n", box)))
    assert.is_true((run("return require 'handlers.orders' == require 'handlers.orders'", box)))
    assert.same({ "init", "util", true, 42 }, {
      (run "return require 'handlers.sub'"), (run "return require 'util'"), (run "return require 'quiet'"),
      (run "return require('given').answer"),
    })
    assert.is_false((run "return require 'falsy'"))
    assert.equal("handlers/orders.lua", box.find "handlers.orders")
  end)

  it("says which module is missing, wrong or goes in a circle", function()
    write("one.lua", "return require 'two'")
    write("two.lua", "return require 'one'")
    write("broken.lua", "local x =\n\nreturn }")
    write("raises.lua", "\nerror 'on purpose'")
    write("strays.lua", "global = 1")
    refuses('test.lua:1: module "a.b" not found: there is no a/b.lua in the project', "require 'a.b'")
    refuses('module "one" requires itself, through one.lua', "require 'one'")
    refuses("broken.lua:3: unexpected symbol near 'return'", "require 'broken'")
    refuses("raises.lua:2: on purpose", "require 'raises'")
    refuses('strays.lua:1: "global" would become a global', "require 'strays'")
    for _, name in ipairs { "../x", "a/b", "", "a..b", "/etc/passwd", "a b" } do
      refuses("is not a module name", ("require %q"):format(name))
    end
    refuses("require: expected a module name", "require(5)")
    for _, name in ipairs { "ffi", "debug", "os", "jit", "moonwire.core" } do
      refuses("not found", ("require %q"):format(name))
    end
  end)

  it("can load again what was broken at first", function()
    local box = new()
    write("fixed.lua", "error 'not yet'")
    refuses("not yet", "return require 'fixed'", box)
    write("fixed.lua", "return 'now'")
    assert.equal("now", (run("return require 'fixed'", box)))
  end)
end)
