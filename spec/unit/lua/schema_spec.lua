local schema = require "moonwire.schema"
local automaton = require "moonwire.schema.automaton"
local formats = require "moonwire.schema.formats"
local pattern = require "moonwire.schema.pattern"
local values = require "moonwire.schema.values"

local null = newproxy() -- stands in for the decoder's light userdata
local marked = {}
local function array(t) return setmetatable(t, marked) end

-- Runs a body with the JIT on and off: compiled and interpreted code must agree.
local function both_ways(body)
  for _, mode in ipairs { "on", "off" } do
    jit[mode]()
    jit.flush()
    local ok, why = pcall(body)
    jit.on()
    if not ok then error("with the JIT " .. mode .. ": " .. tostring(why), 0) end
  end
end

local function accepts(check, value, what)
  local ok, text = check(value)
  assert(ok == true, ("%s: should accept, but: %s"):format(what, tostring(text)))
end

local function refuses(check, value, what)
  local ok, text, pointer = check(value)
  assert(ok == false, what .. ": should refuse")
  assert.matches("^at .+: .+", text)
  assert.is_nil(text:find("too deep to be checked", 1, true)) -- the two passes disagree
  assert.is_string(pointer)
end

local function holds(s, good, bad)
  local check = assert(schema.compile(s))
  both_ways(function()
    for i = 1, good.n or #good do accepts(check, good[i], "good value " .. i) end
    for i = 1, bad.n or #bad do refuses(check, bad[i], "bad value " .. i) end
  end)
end

local function tells(s, value, text, pointer)
  local ok, got, at = assert(schema.compile(s))(value)
  assert.is_false(ok)
  assert.equal(text, got)
  if pointer then assert.equal(pointer, at) end
end

describe("schema", function()
  local old_null, old_is_array = schema.null, schema.is_array

  before_each(function()
    schema.null = null
    schema.is_array = function(t) return getmetatable(t) == marked end
  end)

  after_each(function()
    schema.null, schema.is_array = old_null, old_is_array
  end)

  describe("type", function()
    local samples = {
      string = "a", number = 1.5, integer = 3, boolean = false, null = null,
      object = { a = 1 }, array = { 1 },
    }
    for name in pairs(samples) do
      it("knows " .. name, function()
        local bad = {}
        for other, value in pairs(samples) do
          if other ~= name and not (name == "number" and other == "integer") then bad[#bad + 1] = value end
        end
        holds({ type = name }, { samples[name] }, bad)
      end)
    end

    it("takes a list", function()
      holds({ type = { "string", "null" } }, { "a", null }, { 1, true, { 1 }, { a = 1 } })
      holds({ type = { "integer", "number" } }, { 1, 1.5, 1LL }, { "1" })
    end)

    it("counts whole numbers and 64-bit integers as integers", function()
      holds({ type = "integer" }, { 1.0, -0, 2 ^ 60, 5LL, 18446744073709551615ULL }, { 1.5, "1", 1 / 0, 0 / 0 })
    end)

    it("takes an empty table for both, unless it is marked an array", function()
      holds({ type = "object" }, { {} }, { array {} })
      holds({ type = "array" }, { {}, array {}, array { 1 } }, { { a = 1 } })
    end)

    it("takes nil at the top for null", function()
      holds({ type = "null" }, { n = 1 }, { 0 })
      holds({ type = "string" }, {}, { n = 1 })
    end)

    it("does without a decoder's null and marks", function()
      schema.null, schema.is_array = nil, nil
      holds({ type = { "null", "array" } }, { n = 2, nil, {} }, { "a", 5LL })
    end)
  end)

  it("checks enum", function()
    holds({ enum = { "a", 1, false, null } }, { "a", 1, 1.0, 1LL, false, null }, { "b", 2, 2LL, true, { a = 1 } })
    holds({ enum = { { a = { 1, 2 } }, "x" } }, { { a = { 1, 2 } }, "x" }, { { a = { 1 } }, { a = { 1, 2 }, b = 1 } })
  end)

  it("checks const deeply", function()
    holds({ const = { a = { 1, { b = null } } } }, { { a = { 1, { b = null } } } }, { { a = { 1, {} } }, {}, "a" })
    holds({ const = "x\n\0001" }, { "x\n\0001" }, { "x", 1LL, null })
    holds({ const = false }, { false }, { true, 0, null })
    holds({ const = 2.5 }, { 2.5 }, { 2LL, 2, "2.5" })
    holds({ const = null }, { null }, { false, 0, 5LL })
    holds({ const = 9007199254740993LL }, { 9007199254740993LL }, { 9007199254740992, 9007199254740992LL })
  end)

  it("checks limits", function()
    holds({ minimum = 1.5 }, { 1.5, 2, 2LL, "text", null }, { 1, 1LL, -3 })
    holds({ maximum = 3 }, { 3, 3LL, -1ULL % 3ULL }, { 3.1, 4LL, 18446744073709551615ULL })
    holds({ exclusiveMinimum = -2 }, { -1.9, 0LL }, { -2, -2LL, -3 })
    holds({ exclusiveMaximum = 3 }, { 2.9, 2LL }, { 3, 3LL })
  end)

  it("compares 64-bit integers without losing digits", function()
    holds({ maximum = 2 ^ 53 }, { 9007199254740992LL }, { 9007199254740993LL, 9007199254740993ULL })
    holds({ minimum = 9007199254740993LL }, { 9007199254740993LL, 2 ^ 54 }, { 9007199254740992LL, 2 ^ 53 })
    holds({ exclusiveMaximum = 2 ^ 63 }, { 9223372036854775807LL }, { 9223372036854775808ULL })
    assert.equal(-1, values.compare(-1LL, 1ULL))
    assert.equal(1, values.compare(1ULL, -1LL))
  end)

  it("checks multipleOf, forgiving binary fractions", function()
    holds({ multipleOf = 2 }, { 4, 0, -6, 4LL, "x" }, { 3, 3LL, 1.5 })
    holds({ multipleOf = 0.01 }, { 19.99, 0.07, 4.35, 1e6 + 0.01, 3LL }, { 0.005, 19.995 })
    holds({ multipleOf = 0.0001 }, { 0.0075 }, { 0.00751 })
    holds({ multipleOf = 0.5 }, { 1e308 }, { 0.3 })
    holds({ multipleOf = 3 }, { 9007199254740993LL }, { 9007199254740994LL })
  end)

  it("counts lengths in code points", function()
    holds({ minLength = 2 }, { "ab", "éé", "💩💩", 1 }, { "a", "é", "💩", "" })
    holds({ maxLength = 2 }, { "ab", "éé", "💩💩", "", null }, { "abc", "ééé", "💩💩💩" })
  end)

  it("checks pattern anywhere in the text", function()
    holds({ pattern = "b+" }, { "abc", "b", 12 }, { "ac", "" })
    holds({ pattern = "^a*$" }, { "", "aaa" }, { "ab" })
  end)

  it("checks items", function()
    holds({ items = { type = "integer" } }, { {}, { 1, 2 }, "x", { a = "b" } }, { { 1, "x" } })
    holds({ items = false }, { {}, "x" }, { { 1 } })
    holds({ items = { { type = "string" }, { type = "number" } } },
      { { "a", 1 }, { "a" }, {}, { "a", 1, true } }, { { 1 }, { "a", "b" } })
    holds({ items = { {}, {} }, additionalItems = { type = "boolean" } }, { { 1, 2, true } }, { { 1, 2, 3 } })
    holds({ items = { {} }, additionalItems = false }, { { 1 } }, { { 1, 2 } })
    holds({ items = {}, additionalItems = false }, { { 1, 2 } }, {})
    holds({ prefixItems = { { type = "string" } }, items = { type = "number" } },
      { { "a", 1 } }, { { 1 }, { "a", "b" } })
    holds({ prefixItems = { true }, items = false }, { { "a" } }, { { "a", 1 } })
  end)

  it("checks contains and its counts", function()
    local five = { const = 5 }
    holds({ contains = five }, { { 1, 5 }, "x" }, { { 1 }, array {} })
    holds({ contains = five, minContains = 2 }, { { 5, 5 } }, { { 5 } })
    holds({ contains = five, maxContains = 1 }, { { 5 } }, { { 5, 5 }, { 1 } })
    holds({ contains = five, minContains = 0 }, { { 1 }, array {} }, {})
  end)

  it("checks the number of items", function()
    holds({ minItems = 1 }, { { 1 }, "x", { a = 1 } }, { array {}, {} })
    holds({ maxItems = 1 }, { { 1 }, {}, "xx" }, { { 1, 2 } })
  end)

  it("checks uniqueItems", function()
    local long, doubled, objects = {}, {}, {}
    for i = 1, 50 do
      long[i], doubled[i], objects[i] = i, i, { id = i, tags = { "a" } }
    end
    doubled[51] = 7LL
    local twice = { unpack(objects) }
    twice[51] = { tags = { "a" }, id = 9.0 }
    holds({ uniqueItems = true },
      { { 1, "1", true, null, { 1 }, { a = 1 } }, {}, { { a = 1 }, { a = 2 } }, long, objects, { 1, false, 0 }, "aa" },
      { { 1, 1 }, { 1, 1LL }, { { a = { 1 } }, { a = { 1 } } }, { null, null }, doubled, twice })
    holds({ uniqueItems = false }, { { 1, 1 } }, {})
  end)

  it("checks properties and required", function()
    holds({ properties = { a = { type = "string" }, b = false } }, { { a = "x" }, { c = 1 }, {}, { 1 }, 5 },
      { { a = 1 }, { a = null }, { b = 1 } })
    holds({ required = { "a" } }, { { a = null }, { a = false }, { 1 }, "x" }, { { b = 1 }, {} })
    holds({ properties = { ["a\"\n\0001]]"] = { type = "number" } } }, { {} }, { { ["a\"\n\0001]]"] = "x" } })
  end)

  it("checks additionalProperties and patternProperties", function()
    holds({ properties = { a = true }, additionalProperties = false }, { { a = 1 }, {}, { 1 } }, { { b = 1 } })
    holds({ additionalProperties = { type = "number" } }, { { a = 1 } }, { { a = "x" } })
    holds({ patternProperties = { ["^n"] = { type = "number" } } }, { { n1 = 1, x = "y" } }, { { n1 = "x" } })
    holds({ patternProperties = { ["^n"] = true }, properties = { a = {} }, additionalProperties = false },
      { { n = 1, a = 2 } }, { { n = 1, b = 2 } })
    holds({ patternProperties = { ["^n"] = false } }, { { a = 1 } }, { { n = 1 } })
  end)

  it("checks propertyNames and the number of properties", function()
    holds({ propertyNames = { maxLength = 2 } }, { { ab = 1 }, {}, "long text" }, { { abc = 1 } })
    holds({ propertyNames = false }, { {}, 1 }, { { a = 1 } })
    holds({ minProperties = 2 }, { { a = 1, b = 2 }, { 1 } }, { { a = 1 } })
    holds({ maxProperties = 1 }, { { a = 1 }, {} }, { { a = 1, b = 2 } })
  end)

  it("checks dependencies in all spellings", function()
    holds({ dependencies = { a = { "b" } } }, { { a = 1, b = 1 }, { b = 1 }, {}, "a" }, { { a = 1 } })
    holds({ dependencies = { a = { required = { "b" } }, c = false } },
      { { a = 1, b = 1 }, {} }, { { a = 1 }, { c = 1 } })
    holds({ dependentRequired = { a = { "b", "c" } } }, { { a = 1, b = 1, c = 1 } }, { { a = 1, b = 1 } })
    holds({ dependentSchemas = { a = { maxProperties = 1 } } }, { { a = 1 } }, { { a = 1, b = 2 } })
  end)

  it("checks if, then, else", function()
    local s = { ["if"] = { minimum = 10 }, ["then"] = { multipleOf = 10 }, ["else"] = { multipleOf = 2 } }
    holds(s, { 20, 4 }, { 15, 3 })
    holds({ ["if"] = { const = 1 }, ["then"] = false }, { 2 }, { 1 })
    holds({ ["if"] = { const = 1 }, ["else"] = { const = 2 } }, { 1, 2 }, { 3 })
    holds({ ["then"] = false }, { 1 }, {})
  end)

  it("combines schemas", function()
    local s, n = { type = "string" }, { type = "number" }
    holds({ allOf = { { minimum = 2 }, { maximum = 4 } } }, { 3 }, { 1, 5 })
    holds({ anyOf = { s, n } }, { "a", 1 }, { true, null })
    holds({ oneOf = { { type = "integer" }, { minimum = 2 } } }, { 1, 2.5 }, { 3, 1.5 })
    holds({ ["not"] = s }, { 1 }, { "a" })
    holds({ anyOf = { false, true } }, { 1 }, {})
    holds({ oneOf = { true, true } }, {}, { 1 })
  end)

  it("takes boolean and empty schemas", function()
    holds(true, { 1, "a" }, {})
    holds({}, { 1, null, {} }, {})
    holds(false, {}, { 1, null })
  end)

  it("ignores annotations, unknown formats and keywords of others", function()
    holds({
      default = 1, title = "t", description = "d", ["$comment"] = "c", examples = { 1 }, readOnly = true,
      format = "colour", ["x-type"] = 1, note = "n", when = 1, example = 2, id = "x", nullable = true,
    }, { 1, "a" }, {})
  end)

  describe("format", function()
    local vectors = {
      ["date"] = { { "2024-02-29" }, { "2023-02-29", "2023-13-01", "2023-1-01", "", "2024-02-290", "2100-02-29" } },
      ["time"] = {
        { "08:30:06Z", "23:59:60Z", "08:30:06.28z", "08:30:06+00:20", "15:59:60-08:00" },
        { "22:59:60Z", "08:30:06", "24:00:00Z", "08:30:06.Z", "08:30:06+24:00", "01:02:03Z+00:30" },
      },
      ["date-time"] = {
        { "1963-06-19T08:30:06.283185Z", "1998-12-31T23:59:60Z", "1963-06-19t08:30:06+01:00" },
        { "1998-12-31T23:58:60Z", "1990-02-31T15:59:59-08:00", "1963-06-19 08:30:06Z", "2013-350T01:01:01", "" },
      },
      ["email"] = {
        { "joe.bloggs@example.com", "te~st@a", '"joe @b"@example.com', "j@[127.0.0.1]", "j@[IPv6:::1]" },
        { "2962", ".t@a.b", "t.@a.b", "t..t@a.b", "j@a=b.c", "j@[127.0.0.300]", "@a", "a@", "", "a b@c.d" },
      },
      ["uuid"] = {
        { "2EB8AA08-AA98-11EA-b4aa-73b441d16380" },
        { "2eb8aa08-aa98-11ea-b4aa-73b441d1638", "2eb8aa08aa9811eab4aa73b441d16380xxxx",
          "2eb8aa08-aa98-11ea-b4ga-73b441d16380" },
      },
      ["uri"] = {
        { "http://a.b/?c=d#e", "ldap://[2001:db8::7]/c=GB?x?one", "mailto:a@b.c", "urn:a:b", "http://u:p@h:80/%20",
          "file:///etc/x", "tel:+1-816" },
        { "//a.b/", "/abc", "\\\\W\\f", "abc", "http:// a.com", "a,b:c", "https://[@a.b/", "http://a/<>",
          "http://a/%zz", "http://a:x/", "http://é", "a:#b#c", "1a:b", "" },
      },
      ["ipv4"] = { { "192.168.0.1", "0.0.0.0" }, { "1.2.3.4.5", "256.1.1.1", "1.2", "087.1.1.1", "", "1..2.3" } },
      ["ipv6"] = {
        { "::1", "::", "1::d6:192.168.0.1", "1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7::" },
        { "", ":", "12345::", "::laptop", ":2:3:4:5:6:7:8", "1:2:3:4:5:6:7:", "1::d6::42", "1:2:3:4:5:::8", "1",
          "fe80::a%eth1", "127.0.0.1", "1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9" },
      },
      ["hostname"] = {
        { "www.example.com", "a", "1host", ("a"):rep(63) },
        { "", "-a", "a-", "a_b", "a..b", "a.", ("a"):rep(64), ("a."):rep(127) .. "b", "é.com" },
      },
    }
    for name, vector in pairs(vectors) do
      it("knows " .. name, function()
        assert.is_function(formats[name])
        holds({ format = name }, vector[1], vector[2])
        holds({ format = name }, { 12, null, { 1 } }, {})
      end)
    end
  end)

  describe("$ref", function()
    it("follows local paths", function()
      local word = { type = "string" }
      holds({ properties = { a = { ["$ref"] = "#/definitions/w" } }, definitions = { w = word } },
        { { a = "x" } }, { { a = 1 } })
      holds({ ["$ref"] = "#/$defs/w", ["$defs"] = { w = word } }, { "x" }, { 1 })
      holds({ items = { { ["$ref"] = "#/items/1" }, word } }, { { "a", "b" } }, { { 1 } })
      holds({ ["$ref"] = "#/definitions/a~1b%25~0", definitions = { ["a/b%~"] = word } }, { "x" }, { 1 })
      holds({ ["$id"] = "http://a/b.json", ["$ref"] = "http://a/b.json#/$defs/w", ["$defs"] = { w = word } },
        { "x" }, { 1 })
      holds({ ["$ref"] = "#/$defs/no", ["$defs"] = { no = false } }, {}, { 1 })
    end)

    it("obeys its siblings, unless the schema names a draft that hides them", function()
      local s = { ["$ref"] = "#/definitions/w", maxLength = 2, definitions = { w = { type = "string" } } }
      holds(s, { "ab" }, { "abc", 1 })
      s["$schema"] = "http://json-schema.org/draft-07/schema#"
      holds(s, { "ab", "abc" }, { 1 })
    end)

    it("may refer to itself on smaller values", function()
      local again = { ["$ref"] = "#" }
      local tree = { type = "object", required = { "v" }, properties = { l = again, r = again } }
      holds(tree, { { v = 1, l = { v = 2, r = { v = 3 } } } }, { { v = 1, l = { v = 2, r = {} } } })
      tells(tree, { v = 1, l = { v = 2, r = { x = 1 } } }, 'at /l/r: required property "v" is missing', "/l/r")
    end)

    local circles = {
      { ["$ref"] = "#" },
      { allOf = { { ["$ref"] = "#" } } },
      { ["not"] = { anyOf = { { ["$ref"] = "#" } } } },
      { dependencies = { a = { ["$ref"] = "#" } } },
      {
        ["$ref"] = "#/definitions/a",
        definitions = { a = { ["$ref"] = "#/definitions/b" }, b = { ["$ref"] = "#/definitions/a" } },
      },
    }
    for i, s in ipairs(circles) do
      it("refuses circle " .. i, function()
        local check, why = schema.compile(s)
        assert.is_nil(check)
        assert.matches("^at /.*circle", why)
      end)
    end

    it("follows 512 levels and refuses more, without overflow", function()
      local check = assert(schema.compile {
        anyOf = { { type = "string" }, { allOf = { { ["$ref"] = "#/definitions/o" } } } },
        definitions = { o = { type = "object", properties = { c = { ["$ref"] = "#" } } } },
      })
      local function deep(n)
        local t = "leaf"
        for _ = 1, n do t = { c = t } end
        return t
      end
      both_ways(function()
        assert.is_true(check(deep(512)))
        for _, n in ipairs { 513, 100000 } do refuses(check, deep(n), n .. " levels") end
        coroutine.wrap(function() accepts(check, deep(512), "in a coroutine") end)()
      end)
      local loop = {}
      loop.c = loop
      refuses(check, loop, "a table that contains itself")
    end)
  end)

  describe("errors in the schema", function()
    local function wrong(s, text)
      local check, why = schema.compile(s)
      assert.is_nil(check)
      assert.equal(text, why)
    end

    it("name the file, the place and the keyword meant", function()
      local _, why = schema.compile({ properties = { a = { tpye = "string" } } }, { name = "schemas/order.json" })
      assert.equal('schemas/order.json: at /properties/a/tpye: unknown keyword "tpye"; did you mean "type"?', why)
    end)

    it("find misspellings, and leave property names alone", function()
      for word, meant in pairs {
        minlength = "minLength", requierd = "required", addtionalProperties = "additionalProperties",
        item = "items", anyof = "anyOf", ["$def"] = "$defs", patternPropertys = "patternProperties",
      } do
        wrong({ [word] = {} }, ('at /%s: unknown keyword "%s"; did you mean "%s"?'):format(word, word, meant))
      end
      assert(schema.compile { properties = { tpye = true, requierd = true } })
    end)

    it("say what a keyword must hold", function()
      wrong({ type = "strin" }, 'at /type: unknown type "strin"; did you mean "string"?')
      wrong({ type = {} }, "at /type: must be the name of a type, or a list of them")
      wrong({ minLength = -1 }, "at /minLength: must be a whole number, 0 or more")
      wrong({ minimum = "1" }, "at /minimum: must be a number")
      wrong({ exclusiveMinimum = true },
        "at /exclusiveMinimum: must be a number (true and false are draft-04's way of writing it)")
      wrong({ multipleOf = 0 }, "at /multipleOf: must be a number above 0")
      wrong({ uniqueItems = 1 }, "at /uniqueItems: must be true or false")
      wrong({ required = true }, "at /required: must be a list of property names")
      wrong({ enum = {} }, "at /enum: must be a list of at least one value")
      wrong({ anyOf = {} }, "at /anyOf: must be a list of at least one schema")
      wrong({ properties = { ["a/b"] = 1 } }, "at /properties/a~1b: must be a schema: an object, true or false")
      wrong({ properties = { 1 } }, "at /properties: must be an object")
      wrong({ definitions = { x = { allOf = { true, { minItems = 0.5 } } } } },
        "at /definitions/x/allOf/1/minItems: must be a whole number, 0 or more")
    end)

    it("refuse what cannot be followed", function()
      wrong({ ["$ref"] = "other.json" }, 'at /$ref: reference to "other.json" is remote; copy that schema under '
        .. '"definitions" and refer to it as "#/definitions/<name>"')
      wrong({ items = { ["$ref"] = "#/definitions/x" } },
        'at /items/$ref: reference to "#/definitions/x" leads nowhere in this schema')
      wrong({ ["$ref"] = "#x" }, 'at /$ref: reference to the anchor "#x" is not supported; use its path, "#/..."')
      wrong({ unevaluatedProperties = false }, 'at /unevaluatedProperties: "unevaluatedProperties" is not supported')
    end)

    it("name bad patterns", function()
      wrong({ pattern = "(?=a)" }, 'at /pattern: pattern "(?=a)": lookahead is not supported')
      local _, why = schema.compile { patternProperties = { ["["] = true } }
      assert.equal('at /patternProperties/[: pattern "[": character class without a closing ]', why)
    end)

    it("are raised for misuse", function()
      assert.error_matches(function() schema.compile("x") end, "expected a table or a boolean, got string")
    end)
  end)

  it("takes objects of thousands of properties", function()
    local huge = { properties = {} }
    for i = 1, 5000 do huge.properties["p" .. i] = { type = "string", minLength = 2, maxLength = 9 } end
    holds(huge, { { p1 = "ab", p5000 = "cd" }, 5 }, { { p1 = 1 }, { p5000 = "x" } })
    tells(huge, { p4999 = 1 }, "at /p4999: expected string, got number", "/p4999")
  end)

  it("answers with text when one function would grow too large", function()
    local one_of = { oneOf = {} }
    for i = 1, 70000 do one_of.oneOf[i] = { const = i } end
    local check, why = schema.compile(one_of, { name = "huge.json" })
    assert.is_nil(check)
    assert.matches("^huge.json: too large to compile: ", why)
  end)

  describe("failures", function()
    it("say what was expected, and where", function()
      local order = {
        type = "object", required = { "id" },
        properties = {
          customer = { properties = { email = { type = "string" } }, additionalProperties = false },
          lines = { type = "array", items = { properties = { ["a/b~"] = { minimum = 1 } } } },
        },
      }
      tells(order, { id = 1, customer = { email = 5 } },
        "at /customer/email: expected string, got number", "/customer/email")
      tells(order, { id = 1, customer = { emial = "x" } },
        'at /customer/emial: property is not allowed (did you mean "email"?)', "/customer/emial")
      tells(order, { id = 1, lines = { {}, { ["a/b~"] = 0 } } }, "at /lines/1/a~1b~0: expected at least 1, got 0",
        "/lines/1/a~1b~0")
      tells(order, { x = 1 }, 'at the top level: required property "id" is missing', "")
      tells(order, { 1 }, "at the top level: expected object, got array", "")
    end)

    it("read well for each keyword", function()
      tells({ type = { "integer", "null" } }, 1.5, "at the top level: expected integer or null, got 1.5")
      tells({ enum = { "a", 1, null } }, "b", 'at the top level: expected one of "a", 1, null, got "b"')
      tells({ const = "x" }, 5LL, 'at the top level: expected "x", got 5')
      tells({ exclusiveMaximum = 3 }, 3, "at the top level: expected less than 3, got 3")
      tells({ multipleOf = 0.1 }, 0.25, "at the top level: expected a multiple of 0.1, got 0.25")
      tells({ minLength = 1 }, "", "at the top level: expected at least 1 character, got 0")
      tells({ pattern = "^\\d%s$" }, 'a"\n', 'at the top level: "a\\"\\u000a" does not match pattern ^\\d%s$')
      tells({ format = "email" }, "a", 'at the top level: "a" is not a valid email')
      tells({ maxItems = 1 }, { 1, 2 }, "at the top level: expected at most 1 item, got 2")
      tells({ uniqueItems = true }, { 1, 2, 1 }, "at the top level: item 2 repeats an earlier one")
      tells({ contains = { const = 1 } }, { 2 },
        'at the top level: expected at least 1 item matching "contains", got 0')
      tells({ propertyNames = { maxLength = 1 } }, { ab = 1 },
        "at /ab: property name: expected at most 1 character, got 2", "/ab")
      tells({ minProperties = 2 }, { a = 1 }, "at the top level: expected at least 2 properties, got 1")
      tells({ dependentRequired = { a = { "b" } } }, { a = 1 },
        'at the top level: property "b" is required when "a" is present')
      tells({ ["not"] = {} }, 1, 'at the top level: matches the schema under "not", and must not')
      tells({ oneOf = { true, {} } }, 1, 'at the top level: matches more than one of the 2 alternatives under "oneOf"')
    end)

    it("name the alternative that came nearest", function()
      tells({ anyOf = { { type = "string" }, { type = "object", properties = { a = { type = "number" } } } } },
        { a = "x" }, 'at the top level: matches none of the 2 alternatives under "anyOf"; '
          .. 'the nearest: at /a: expected number, got string')
    end)

    it("come up to five at a time on request", function()
      local check = assert(schema.compile { items = { type = "string" } })
      local ok, text, pointer = check({ 1, "a", 2 }, { all = true })
      assert.is_false(ok)
      assert.equal("at /0: expected string, got number\nat /2: expected string, got number", text)
      assert.equal("/0", pointer)
      local _, many = check({ 1, 2, 3, 4, 5, 6, 7 }, { all = true })
      assert.equal(5, select(2, many:gsub("at /", "")))
    end)

    it("keep hostile values short and on one line", function()
      local check = assert(schema.compile { additionalProperties = { const = 1 } })
      local _, text, pointer = check { ["a\nb" .. ("x"):rep(1000)] = ("é"):rep(1000) }
      assert.is_nil(text:find("\n"))
      assert.is_true(#text < 500)
      assert.equal(1004, #pointer)
    end)
  end)

  it("makes no garbage when a value passes", function()
    local check = assert(schema.compile {
      type = "object", additionalProperties = false, required = { "id" },
      properties = {
        id = { type = "string", format = "uuid" }, at = { format = "date-time" }, n = { type = "integer", minimum = 1 },
        tags = { type = "array", uniqueItems = true, items = { pattern = "^[a-z]+$", maxLength = 5 } },
        who = { anyOf = { { type = "null" }, { ["$ref"] = "#/$defs/p" } } }, site = { format = "uri" },
      },
      ["$defs"] = { p = { properties = { mail = { format = "email" } } } },
    })
    local value = {
      id = "2eb8aa08-aa98-11ea-b4aa-73b441d16380", at = "2024-05-01T10:00:00Z", n = 5LL, tags = { "a", "b" },
      who = { mail = "a@b.c" }, site = "http://a.b/c?d",
    }
    jit.off()
    finally(function() jit.on() end)
    assert.is_true(check(value))
    collectgarbage()
    collectgarbage("stop")
    -- The runtime itself allocates now and then (a trace, a stack), so the quietest of three rounds counts:
    -- a check that allocates does so in every one.
    local least = math.huge
    for _ = 1, 3 do
      local before = collectgarbage("count")
      for _ = 1, 10000 do check(value) end
      least = math.min(least, collectgarbage("count") - before)
    end
    collectgarbage("restart")
    assert.equal(0, least)
  end)

  it("checks a realistic order in a few microseconds", function()
    local word = { type = "string", minLength = 1, maxLength = 80 }
    local address = { type = "object", required = { "street", "city" }, properties = { street = word, city = word } }
    local line = {
      type = "object", required = { "sku", "quantity", "price" },
      properties = {
        sku = { type = "string", pattern = "^[a-z0-9-]+$" }, quantity = { type = "integer", minimum = 1 },
        price = { type = "number", exclusiveMinimum = 0 }, title = word,
      },
    }
    local check = assert(schema.compile {
      type = "object", required = { "id", "number", "total", "items" }, additionalProperties = false,
      properties = {
        id = { type = "string", format = "uuid" }, number = { type = "string", pattern = "^[A-Z]{3}-\\d{6}$" },
        created = { type = "string", format = "date-time" }, currency = { enum = { "EUR", "USD", "GBP" } },
        total = { type = "number", minimum = 0 }, tax = { type = "number" }, status = { enum = { "new", "paid" } },
        email = { type = "string", format = "email" }, phone = { type = { "string", "null" } }, note = word,
        shipping = { ["$ref"] = "#/definitions/address" }, billing = { ["$ref"] = "#/definitions/address" },
        priority = { type = "integer", maximum = 9 }, gift = { type = "boolean" },
        items = { type = "array", minItems = 1, items = line },
      },
      definitions = { address = address },
    })
    local order = {
      id = "2eb8aa08-aa98-11ea-b4aa-73b441d16380", number = "ORD-123456", created = "2024-05-01T10:00:00Z",
      currency = "EUR", total = 120.5, tax = 19.1, status = "new", email = "ada@example.com", phone = null,
      note = "ring",
      shipping = { street = "Main 1", city = "Zürich" }, billing = { street = "Main 1", city = "Zürich" },
      priority = 3, gift = false, items = {},
    }
    for i = 1, 5 do order.items[i] = { sku = "item-" .. i, quantity = i, price = 9.99, title = "Thing " .. i } end
    assert.is_true(check(order))
    for _ = 1, 2000 do check(order) end
    local start, rounds = os.clock(), 20000
    for _ = 1, rounds do check(order) end
    local each = (os.clock() - start) / rounds * 1e6
    print(("schema: an order of 15 fields and 5 items is checked in %.2f us"):format(each))
    assert.is_true(each < 50, "took " .. each .. " us") -- generous: CI machines are slow and shared
  end)
end)

describe("schema.pattern", function()
  local function matches(text, good, bad)
    local re = assert(pattern.compile(text))
    both_ways(function()
      for _, s in ipairs(good) do assert(automaton.match(re, s) == true, text .. " should match " .. s) end
      for _, s in ipairs(bad) do assert(automaton.match(re, s) == false, text .. " should not match " .. s) end
    end)
  end

  it("knows literals, alternatives and groups", function()
    matches("abc", { "xabcx" }, { "ab", "" })
    matches("^(ab|c)d$", { "abd", "cd" }, { "abc", "d" })
    matches("^(?:a|)(?<name>b)$", { "ab", "b" }, { "a" })
    matches("", { "", "a" }, {})
    matches("a|^$", { "", "xa" }, { "b" })
    matches("^a\\.b\\/c\\-d$", { "a.b/c-d" }, { "axb/c-d" })
    matches("x{,3}]}", { "x{,3}]}" }, { "xxx" })
  end)

  it("knows quantifiers, greedy and lazy alike", function()
    matches("^a*b+c?$", { "b", "aabbc" }, { "a", "bcc" })
    matches("^a{2}$", { "aa" }, { "a", "aaa" })
    matches("^a{2,}$", { "aa", "aaaa" }, { "a" })
    matches("^(ab){1,2}?$", { "ab", "abab" }, { "", "ababab" })
    matches("^a{0}b*?$", { "", "bb" }, { "a" })
    matches("^(a*)*$", { "", "aaa" }, { "b" })
  end)

  it("knows classes and escapes", function()
    matches("^[a-c\\d_-]+$", { "a-1_", "c" }, { "d", "" })
    matches("^[^a-c]$", { "d", "é", "💩" }, { "a", "dd" })
    matches("^[\\]\\\\^]$", { "]", "\\", "^" }, { "a" })
    matches("^\\d\\D\\w\\W\\s\\S$", { "1a_- x" }, { "aa_- x" })
    matches("^\\s$", { " ", "\t", "\194\160", "\226\128\168" }, { "a" })
    matches("^\\t\\x41\\u00e9\\u{1F4A9}\\uD83D\\uDCA9\\cA$", { "\tAé💩💩\1" }, { "" })
    matches("[]", {}, { "", "a" })
    matches("^[^]$", { "\n", "é" }, { "" })
  end)

  it("reads text in code points", function()
    matches("^.$", { "a", "é", "💩" }, { "ab", "\n", "\226\128\168" })
    matches("^[à-ü]+$", { "éè" }, { "e" })
    matches("^..$", { "\255\255" }, { "\255" })
  end)

  it("knows anchors and word boundaries", function()
    matches("^a$", { "a" }, { "a\n", "\na" })
    matches("\\bfoo\\b", { "a foo b", "foo" }, { "afoo", "foo_" })
    matches("\\Boo", { "foo" }, { "oo" })
    matches("a^b|c$d", {}, { "ab", "cd" })
    matches("(^a|b)c", { "ac", "xbc" }, { "xac" })
  end)

  it("refuses what it cannot do, by name", function()
    for text, why in pairs {
      ["(?=a)"] = "lookahead is not supported", ["(?!a)"] = "lookahead is not supported",
      ["(?<=a)"] = "lookbehind is not supported", ["(a)\\1"] = "back-reference \\1 is not supported",
      ["\\p{L}"] = "Unicode property \\p is not supported; write the range of characters",
      ["a{1,100000}"] = "repeat count over 1000 is not supported; use minLength and maxLength",
      ["((a{100}){100}){100}"] = "too large: its repeats expand to over 4000 states",
      ["a**"] = "nothing to repeat at character 3", ["*a"] = "nothing to repeat before * at character 1",
      ["a{3,2}"] = "repeat counts out of order in {3,2}", ["(a"] = "group without a closing )",
      ["a)"] = "unmatched )", ["[a"] = "character class without a closing ]",
      ["[b-a]"] = "range out of order in a character class", ["\\q"] = "unknown escape \\q",
      ["a\\"] = "ends in a backslash", ["\\u12"] = "bad hexadecimal escape at character 3",
    } do
      local re, got = pattern.compile(text)
      assert.is_nil(re)
      assert.equal(why, got)
    end
    assert.is_nil((pattern.compile(("("):rep(5000) .. (")"):rep(5000))))
  end)

  it("stays linear on patterns that make others hang", function()
    for _, text in ipairs {
      "(a+)+$", "^(a|a)*$", "(a*)*b", "^(([a-z])+.)+[A-Z]([a-z])+$", "((((){1000}){1000}){1000}){1000}x",
    } do
      local re = assert(pattern.compile(text))
      both_ways(function()
        local start = os.clock()
        assert.is_false(automaton.match(re, ("a"):rep(100000) .. "!"))
        assert.is_true(os.clock() - start < 1, text)
      end)
    end
  end)

  it("bounds what it remembers", function()
    local re = assert(pattern.compile("(a|b)*a(a|b){14}c"))
    local text, seed = {}, 1
    for i = 1, 20000 do
      seed = (seed * 16807) % 2147483647
      text[i] = seed % 2 == 0 and "a" or "b"
    end
    assert.is_false(automaton.match(re, table.concat(text)))
    assert.is_true(re.cached <= 20100)
    assert.is_true(automaton.match(re, table.concat(text) .. "a" .. ("b"):rep(14) .. "c"))
  end)
end)
