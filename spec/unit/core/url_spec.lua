-- Broker addresses: all shapes, escapes, options, and what is said about bad ones.
local ffi = require "ffi"
local C = require "spec.unit.core.declare"

local failure = ffi.new "mw_failure"

local function parse(text)
  local u = ffi.gc(ffi.new "struct spec_url", C.mw_url_free)
  if C.mw_url_parse(u, text, failure) ~= 0 then return nil, ffi.string(failure.text) end
  return u
end

local function parts(text)
  local u = assert(parse(text))
  local options = {}
  for i = 0, u.option_count - 1 do
    options[i + 1] = ffi.string(u.options[i].name) .. "=" .. ffi.string(u.options[i].value)
  end
  local found = {}
  for _, name in ipairs { "scheme", "user", "password", "hosts", "path" } do
    local value = ffi.string(u[name])
    if value ~= "" then found[name] = value end
  end
  if #options > 0 then found.options = options end
  return found
end

local function list(names)
  local array = ffi.new("const char *[?]", #names + 1)
  for i, name in ipairs(names) do array[i - 1] = name end
  return array
end

describe("a broker URL", function()
  local SHAPES = {
    ["memory:"] = { scheme = "memory" },
    ["memory:x"] = { scheme = "memory", path = "x" },
    ["embedded:data/dir"] = { scheme = "embedded", path = "data/dir" },
    ["embedded:/var/lib/x"] = { scheme = "embedded", path = "/var/lib/x" },
    ["embedded:./a b"] = { scheme = "embedded", path = "./a b" },
    ["redis://h"] = { scheme = "redis", hosts = "h" },
    ["redis://h:6379/0"] = { scheme = "redis", hosts = "h:6379", path = "0" },
    ["redis://u@h"] = { scheme = "redis", user = "u", hosts = "h" },
    ["redis://:p@h"] = { scheme = "redis", password = "p", hosts = "h" },
    ["amqp://u:p@h:1,i:2,j/v/w"] = { scheme = "amqp", user = "u", password = "p", hosts = "h:1,i:2,j", path = "v/w" },
    ["amqp://u:p:q@r@h/"] = { scheme = "amqp", user = "u", password = "p:q@r", hosts = "h" },
    ["amqp://h/a@b"] = { scheme = "amqp", hosts = "h", path = "a@b" },
    ["amqp://[::1]:5672/x"] = { scheme = "amqp", hosts = "[::1]:5672", path = "x" },
    ["amqp+tls2://h"] = { scheme = "amqp+tls2", hosts = "h" },
    ["s:///only/path"] = { scheme = "s", path = "only/path" },
    ["s://"] = { scheme = "s" },
    ["amqp://u%40x:p%3A%2f@h/%2F?a%20b=c%26d"] = {
      scheme = "amqp", user = "u@x", password = "p:/", hosts = "h", path = "/", options = { "a b=c&d" },
    },
    ["memory:?a=1&&b=&c=x=y&"] = { scheme = "memory", options = { "a=1", "b=", "c=x=y" } },
    ["memory:x?"] = { scheme = "memory", path = "x" },
    ["memory:gr%C3%BC%c3%9f"] = { scheme = "memory", path = "grüß" },
  }

  it("is taken apart", function()
    for text, expected in pairs(SHAPES) do assert.same(expected, parts(text), text) end
  end)

  it("must begin with a scheme", function()
    for _, text in ipairs { "", ":", "data", "data/dir", "://h", "Redis://h", "re dis:x", "/x:y" } do
      local u, err = parse(text)
      assert.is_nil(u, text)
      local shown = text:match "^[^:]*" -- what follows may hold a password
      assert.equal(('"%s" is not a broker URL: it must begin with a scheme, such as embedded:data'):format(shown), err)
    end
  end)

  it("refuses bad escapes wherever they stand, and the NUL byte", function()
    for text, shown in pairs {
      ["memory:%"] = "%", ["memory:%4"] = "%4", ["memory:%zz"] = "%zz", ["memory:a%00b"] = "%00",
      ["memory:?a=%1"] = "%1", ["memory:?%q=1"] = "%q",
    } do
      local u, err = parse(text)
      assert.is_nil(u, text)
      assert.equal(('bad percent escape at "%s"'):format(shown), err)
    end
  end)

  it("refuses options that are none, and too many", function()
    assert.equal('option "a" is not name=value', select(2, parse "memory:?a"))
    assert.equal('option "=1" is not name=value', select(2, parse "memory:?x=2&=1"))
    local many = {}
    for i = 1, 32 do many[i] = ("o%d=%d"):format(i, i) end
    local u = assert(parse("memory:?" .. table.concat(many, "&")))
    assert.equal("32", ffi.string(C.mw_url_option(u, "o32")))
    assert.is_true(C.mw_url_option(u, "o33") == nil)
    many[33] = "o33=1"
    assert.equal("more than 32 options", select(2, parse("memory:?" .. table.concat(many, "&"))))
  end)

  it("is shown without its secrets", function()
    for text, expected in pairs {
      ["memory:"] = "memory:",
      ["memory:x?a=1"] = "memory:x?a=1",
      ["embedded:/var/a//u:p@x?size=1GB"] = "embedded:/var/a//u:p@x?size=1GB", -- a folder
      ["redis://h"] = "redis://h",
      ["redis://hunter2@h/0"] = "redis://h/0",
      ["redis://:hunter2@h:1,i:2/0"] = "redis://h:1,i:2/0",
      ["redis://me:hunter2@h"] = "redis://me@h",
      ["redis://me:@h"] = "redis://me@h",
      ["redis://me:hun:ter@2@h"] = "redis://me@h",
      ["redis://hunter2@h?db=1"] = "redis://h?db=1",
      ["redis+unix://:hunter2@/run/s.sock?db=1"] = "redis+unix:///run/s.sock?db=1",
      ["redis://h?sentinel=m&sentinel_password=hunter2"] = "redis://h?sentinel=m&sentinel_password=",
      ["amqps://me:hunter2@h:1,i/v@w?heartbeat=5"] = "amqps://me@h:1,i/v@w?heartbeat=5",
      ["amqp://%68unter2@h/v"] = "amqp://h/v",
      ["kafka://me:hunter2@h/p?sasl.password=hunter2&ssl.key.password=hunter2&acks=all"] =
        "kafka://me@h/p?sasl.password=&ssl.key.password=&acks=all",
      ["kafka://h?ssl.key.pem=hunter2&ssl.keystore.password=hunter2&ssl.ca.location=/ca"] =
        "kafka://h?ssl.key.pem=&ssl.keystore.password=&ssl.ca.location=/ca",
      ["kafka://h?sasl.oauthbearer.config=hunter2&sasl.oauthbearer.client.secret=hunter2"] =
        "kafka://h?sasl.oauthbearer.config=&sasl.oauthbearer.client.secret=",
      ["kafka://h?sasl.Pass%77ord=hunter2&token=hunter2"] = "kafka://h?sasl.Pass%77ord=&token=",
      ["kafka://h?sasl.username=me@corp&key=/k.pem"] = "kafka://h?sasl.username=me@corp&key=/k.pem",
      ["kafka://h?password=a=b&x=1"] = "kafka://h?password=&x=1",
      ["redis://:hun?ter2@h"] = "redis://:hun?", -- which is refused
    } do
      local shown = ffi.gc(C.mw_url_shown(text), C.mwt_free)
      assert.equal(expected, ffi.string(shown), text)
    end
  end)

  it("tells nothing of a password that cannot be read", function()
    for text, expected in pairs {
      ["redis://:hunter2/x@h"] = "a / is written %2F",
      ["amqp://me:hunter2/x@h/v"] = "a / is written %2F",
      ["redis://:a?hunter2@h"] = "a ? is written %3F",
      ["redis://:hunter2%@h"] = "a % is written %25",
      ["redis://h?sentinel_password=%hunter2"] = "a % is written %25",
      ["hunter2@h"] = '"..." is not a broker URL',
    } do
      local u, err = parse(text)
      assert.is_nil(u, text)
      assert.truthy(err:find(expected, 1, true), err)
      assert.falsy(err:find("hun", 1, true), err)
    end
  end)

  it("survives random bytes", function()
    math.randomseed(3)
    local alphabet = { "a", ":", "/", "//", "@", "?", "&", "=", "%", "%41", "%zz", ",", ".", "\255", "[", " " }
    local good = 0
    for _ = 1, 5000 do
      local text = {}
      for i = 1, math.random(0, 14) do text[i] = alphabet[math.random(#alphabet)] end
      text = (math.random(3) > 1 and "m:" or "") .. table.concat(text)
      local u, err = parse(text)
      if u then good = good + 1 else assert.is_true(#err > 0) end
    end
    assert.is_true(good > 500)
  end)
end)

describe("options of a URL", function()
  local function size(value, min, max)
    local out = ffi.new("uint64_t[1]", 7)
    local code = C.mw_url_size(assert(parse("m:?s=" .. value)), "s", min or 0, max or 2 ^ 50, out, failure)
    if code ~= 0 then return nil, ffi.string(failure.text) end
    return tonumber(out[0])
  end

  it("are sizes, 1024-based", function()
    for text, expected in pairs {
      ["0"] = 0, ["17"] = 17, ["17B"] = 17, ["2KB"] = 2048, ["3mb"] = 3 * 2 ^ 20, ["16GB"] = 2 ^ 34, ["1Tb"] = 2 ^ 40,
    } do
      assert.equal(expected, size(text), text)
    end
  end)

  it("are refused as sizes", function()
    for _, text in ipairs { "", "x", "-1", "+1", "%201", "1.5GB", "1PB", "1K", "99999999999999999999",
      "17592186044416TB", "1 GB" } do
      local value, err = size(text)
      assert.is_nil(value, text)
      assert.matches("^option s=.*: expected a size from 0B to 1024TB, such as 512MB$", err)
    end
    assert.is_nil(size("9", 10, 20))
    assert.equal(10, size("10", 10, 20))
    assert.equal(20, size("20", 10, 20))
    assert.is_nil(size("21", 10, 20))
  end)

  local function number(value, min, max)
    local out = ffi.new("int64_t[1]", 7)
    local code = C.mw_url_number(assert(parse("m:?n=" .. value)), "n", min, max, out, failure)
    if code ~= 0 then return nil, ffi.string(failure.text) end
    return tonumber(out[0])
  end

  it("are whole numbers", function()
    assert.equal(-5, number("-5", -5, 5))
    assert.equal(5, number("5", -5, 5))
    for _, text in ipairs { "", "6", "-6", "5x", "1e3", "0x1", "99999999999999999999999" } do
      local value, err = number(text, -5, 5)
      assert.is_nil(value, text)
      assert.equal(("option n=%s: expected a whole number from -5 to 5"):format(text), err)
    end
  end)

  it("leave the default when they are absent", function()
    local u, out, signed = assert(parse "m:?other=1"), ffi.new("uint64_t[1]", 7), ffi.new("int64_t[1]", 8)
    assert.equal(0, C.mw_url_size(u, "s", 10, 20, out, failure))
    assert.equal(0, C.mw_url_number(u, "n", 10, 20, signed, failure))
    assert.equal(7, tonumber(out[0]))
    assert.equal(8, tonumber(signed[0]))
  end)

  it("are known, or the nearest right name is told", function()
    local function only(text, known)
      if C.mw_url_only(assert(parse(text)), list(known), failure) == 0 then return true end
      return ffi.string(failure.text)
    end
    assert.is_true(only("m:", {}))
    assert.is_true(only("m:?size=1&sync=2", { "sync", "size" }))
    assert.equal('unknown option "sise" in the URL; did you mean "size"?', only("m:?sise=1", { "sync", "size" }))
    assert.equal('unknown option "quux" in the URL; known are sync, size', only("m:?quux=1", { "sync", "size" }))
    assert.equal('unknown option "a" in the URL: this driver takes none', only("m:?a=1", {}))
  end)
end)
