-- The JSON codec: what it accepts and refuses, what comes out, what the errors say. Everything runs twice, with
-- the JIT compiler on and off. MW_JSON_CORE names the shared object when the codec is not built in.

local ffi = require "ffi"

if not pcall(ffi.sizeof, "struct mw_json_value") then -- the library may have declared it; functions may come twice
  ffi.cdef [[
    struct mw_json_value {
      int32_t type; uint32_t count, node, len; const char *text; double number; int64_t integer;
    };
  ]]
end
ffi.cdef [[
  struct mw_json_doc;
  struct mw_json_doc *mw_json_new(void);
  void mw_json_free(struct mw_json_doc *doc);
  int mw_json_parse(struct mw_json_doc *doc, const char *text, size_t len);
  const char *mw_json_error(const struct mw_json_doc *doc);
  size_t mw_json_memory(const struct mw_json_doc *doc);
  int mw_json_find(const struct mw_json_doc *doc, const char *path, size_t path_len, struct mw_json_value *out);
  int mw_json_find_in(const struct mw_json_doc *doc, uint32_t node, const char *path, size_t path_len,
                      struct mw_json_value *out);
]]

local C = ffi.C
local shared = os.getenv "MW_JSON_CORE"
if shared then
  C = ffi.load(shared, true)
  package.preload["moonwire.json.core"] = assert(package.loadlib(shared, "luaopen_moonwire_json_core"))
  package.path = "lua/?.lua;" .. package.path
end
local json = require "moonwire.json"
local core = require "moonwire.json.core"

local function accepts(text)
  local value, err = json.decode(text)
  assert(value ~= nil, ("refused %q: %s"):format(text, tostring(err)))
  return value
end

local function refuses(text, why)
  local value, err = json.decode(text)
  assert(value == nil, ("accepted %q"):format(text))
  assert.is_string(err)
  if why then
    assert(err:find(why, 1, true), ("%q for %q, expected %q"):format(err, text, why))
  end
end

local ACCEPTED = {
  "[]", "{}", "[[]   ]", '[""]', '"x"', "null", "true", "false", "0", "-0", "-1", " [1]", "[2] ", "\t\n\r {}",
  "[1,null,null,2]", "[-0.0]", "[0e+1]", "[0e1]", "[1E22]", "[1E-2]", "[1E+2]", "[123e45]", "[123.456e78]",
  "[1e-2]", "[0.1]", "[123.456789]", "[-123]", "[1e-400]",
  "[-0.0000000000000000000000000000000000000000000000000000000000000000000000000001]",
  '{"a":"b"}', '{"":0}', '{"a":{}}', '{"a":[]}', '{"foo\\u0000bar": 42}', '{\n"a": "b"\n}',
  '["\\u0060\\u012a\\u12AB"]', '["\\ud801\\udc37"]', '["\\uDBFF\\uDFFF"]', '["\\"\\\\\\/\\b\\f\\n\\r\\t"]',
  '["\\\\u0000"]', '["\\u0000"]', '["\\uFFFF"]', '["\127"]', '["a/*b*/c"]', '["\226\130\172\240\157\132\158"]',
  '["\244\143\191\191"]', '["\237\159\191"]', '["\238\128\128"]', '["\194\128"]', '["\224\160\128"]',
  '["\240\144\128\128"]', '["\226\128\168"]', ("[%s]"):format(("1,"):rep(999) .. "1"),
}

local REFUSED = {
  "", " ", "\0", "[", "]", "{", "}", "[[", "{]", "[}", "[1", "[1,", "[1,]", "[,1]", "[1,,2]", "[,]", "[1 2]",
  '["" ""]', '["a" 1]', "[1]]", "[1]x", "[1],", "1 2", '{"a":1}}', '{"a":1}#', "[x]", "[1:2]", "nul", "tru",
  "fals", "nulll", "truee", "True", "NULL", "[nan]", "[NaN]", "[-NaN]", "[Infinity]", "[-Infinity]", "[inf]",
  "[0x10]", "[0x]", "[1x]", "[+1]", "[++1]", "[01]", "[-01]", "[00]", "[012]", "[1.]", "[.1]", "[-.1]", "[-]",
  "[--1]", "[- 1]", "[1e]", "[1e+]", "[1e-]", "[1eE2]", "[1.e1]", "[1.2.3]", "[0.e1]", "[0e]", "[1_000]",
  "[1e400]", "[-1e400]", "[1a]", "[1\0]", "\239\187\191{}", "[\239\188\145]", "[1e1.5]", "{1:1}", "{a:1}",
  "{'a':1}", '{"a"}', '{"a":}', '{"a" 1}', '{"a":1,}', '{"a":1,,"b":2}', '{,"a":1}', '{"a":1 "b":2}', '{"a",1}',
  '{"a"::1}', '{"a":1', '{"a":', '{"a', '{"a"', "{null:1}", '{"a":1,"b"}', '{"a":1,1}', '"', '"a', "'a'", '"\\',
  '"\\"', '["\\x00"]', '["\\a"]', '["\\U0041"]', '["\\u"]', '["\\u1"]', '["\\u12"]', '["\\u123"]', '["\\u123g"]',
  '["\\u00A"]', '["\\ud800"]', '["\\ud800x"]', '["\\ud800\\u"]', '["\\ud800\\u0041"]', '["\\ud800\\ud800"]',
  '["\\udc00"]', '["\\ud83d\\ude0"]', '["\\\195\169"]', '["a\nb"]', '["a\tb"]', '["\0"]', '["\31"]', '["a\0b"]',
  '["\\n\1"]', '["\128"]', '["\191"]', '["\192\128"]', '["\193\191"]', '["\224\159\191"]', '["\237\160\128"]',
  '["\237\191\191"]', '["\240\143\191\191"]', '["\244\144\128\128"]', '["\245\128\128\128"]', '["\255"]',
  '["\226\130"]', '["\226"]', '"\226\130', '["\240\157\132"]', '["\\n\255"]', '["\195"x]', "[1]//", "/**/[1]",
  "[1/**/]", "[\11]", "[\12]", "[\194\160]", '["a",\n1', '{"a":"b"}/', "<null>", "[<null>]", "*", "[*]", '["\\uD834',
}

for _, compiler in ipairs { "on", "off" } do
  describe("json, compiler " .. compiler, function()
    setup(function()
      jit[compiler]()
    end)
    teardown(function()
      jit.on()
    end)

    describe("decode", function()
      for _, text in ipairs(ACCEPTED) do
        it(("accepts %.60q"):format(text), function()
          local value = accepts(text)
          -- what was accepted survives a round trip
          local again = assert(json.encode(value, { sort = true }))
          assert.equal(again, json.encode(accepts(again), { sort = true }))
        end)
      end
      for _, text in ipairs(REFUSED) do
        it(("refuses %.60q"):format(text), function()
          refuses(text)
        end)
      end

      it("refuses every cut of a document", function()
        local text = '{"a":[1,-2.5e3,"\\u20ac\\ud83d\\ude00 é"],"b":{"c":null,"d":true},"e":false}'
        accepts(text)
        for i = 0, #text - 1 do
          refuses(text:sub(1, i))
        end
      end)

      it("reads values as what they are", function()
        local v = accepts '{"s":"x","n":1.5,"t":true,"f":false,"z":null,"a":[1,[2]],"o":{"k":"v"}}'
        assert.same({ s = "x", n = 1.5, t = true, f = false, z = json.null, a = { 1, { 2 } }, o = { k = "v" } }, v)
      end)

      it("unescapes strings of every length around the vector size", function()
        for n = 0, 70 do
          local plain = ("x"):rep(n)
          assert.equal(plain, accepts('"' .. plain .. '"'))
          assert.equal(plain .. "\n€" .. plain, accepts('"' .. plain .. "\\n\\u20ac" .. plain .. '"'))
          assert.equal(plain .. "é" .. plain, accepts('"' .. plain .. "é" .. plain .. '"'))
          refuses('"' .. plain .. "\1" .. plain .. '"', "control character")
          refuses('"' .. plain .. "\255" .. plain .. '"', "UTF-8")
          refuses('"' .. plain, "end of text inside a string")
        end
        assert.equal("\0\b\f\n\r\t\"\\/\240\157\132\158", accepts [["\u0000\b\f\n\r\t\"\\\/\uD834\uDD1E"]])
      end)

      it("lets the last of duplicate keys win", function()
        assert.equal(2, accepts('{"a":1,"a":2}').a)
        assert.equal(2, accepts('{"a":1,"\\u0061":2}').a)
      end)

      it("keeps every digit of 64-bit integers", function()
        assert.equal("number", type(accepts "9007199254740992"))
        assert.equal(9007199254740993LL, accepts "9007199254740993")
        assert.equal(-9007199254740993LL, accepts "-9007199254740993")
        assert.is_true(ffi.istype("int64_t", accepts "9223372036854775807"))
        assert.is_true(ffi.istype("uint64_t", accepts "9223372036854775808"))
        assert.equal(18446744073709551616, accepts "18446744073709551616")
        assert.equal(-9223372036854775809, accepts "-9223372036854775809")
        for _, text in ipairs {
          "9007199254740993", "-9007199254740993", "9223372036854775807", "-9223372036854775808",
          "9223372036854775808", "18446744073709551615", "9999999999999999999", "1152921504606846976",
        } do
          assert.equal("[" .. text .. "]", json.encode(accepts("[" .. text .. "]")))
        end
      end)

      it("reads doubles to the nearest, as the C library does", function()
        local seed = 7
        local function random(n)
          seed = seed * 16807 % 2147483647
          return seed % n
        end
        for _ = 1, 3000 do
          local text = ("%d.%0" .. random(9) + 1 .. "d%de%d"):format(
            random(100000), random(1000000000), random(1000000), random(60) - 30)
          assert.equal(tonumber(text), accepts(text), text)
        end
        for _, text in ipairs {
          "1.7976931348623157e308", "2.2250738585072014e-308", "4.9e-324", "9007199254740993.0", "0.1e1",
          "9007199254740992.5", "9007199254740993.5", "1.00000000000000011102230246251565404236316680908203125",
          "1.00000000000000011102230246251565404236316680908203124", "8.5e-10", "123456789012345678e-5",
        } do
          assert.equal(tonumber(text), accepts(text), text)
        end
        assert.equal(-math.huge, 1 / accepts "-0")
      end)

      it("limits the depth", function()
        local deep = accepts(("["):rep(512) .. ("]"):rep(512))
        for _ = 1, 511 do
          deep = deep[1]
        end
        assert.same({}, deep)
        refuses(("["):rep(513) .. ("]"):rep(513), "nested too deeply (limit 512) at line 1, column 513")
        refuses(('{"a":'):rep(513), "nested too deeply")
        refuses(("["):rep(200000), "nested too deeply")
      end)

      it("says what is wrong and where", function()
        refuses("", "the text is empty")
        refuses("  ", "unexpected end of text, expected a value at line 1, column 3")
        refuses('{\n  "é": 1,\n  "é": x}', [[expected a value at line 3, column 8, near ' 1,\x0A  "\xC3\xA9": x}']])
        refuses("[1,\n2\n3]", "expected ',' or ']' at line 3, column 1")
        refuses('{"a":1,}', "expected a key (is there a comma too many?) at line 1, column 8")
        refuses("[01]", "must not begin with 0 at line 1, column 2")
        refuses('["\\ud800"]', "lone high surrogate")
        refuses("[1]]", "unexpected text behind the document at line 1, column 4")
        refuses("[1e999]", "number out of range")
      end)

      it("is misused loudly", function()
        for _, bad in ipairs { {}, 12, true } do
          assert.has_error(function() json.decode(bad) end)
        end
        assert.has_error(function() json.decode() end)
        assert.has_error(function() core.decode_at(0, 5) end)
      end)

      it("decodes from an address and never reads past the end", function()
        local body = '{"a":[1,2]}garbage'
        local at = tonumber(ffi.cast("uintptr_t", ffi.cast("const char *", body)))
        assert.same({ a = { 1, 2 } }, core.decode_at(at, 11))
        local value, err = core.decode_at(at, 10)
        assert.is_nil(value)
        assert.truthy(err:find("unexpected end of text", 1, true))
      end)

      it("survives a finalizer that decodes in the middle of a decode", function()
        local ran, wrong = 0, 0
        local function finalizer()
          ran = ran + 1
          if json.decode('["inner"]')[1] ~= "inner" or json.encode { "in" } ~= '["in"]' then wrong = wrong + 1 end
        end
        collectgarbage "collect"
        local pause = collectgarbage("setpause", 10) -- the collector works all the time
        for i = 1, 20000 do
          ffi.gc(ffi.new "int[1]", finalizer)
          local v = json.decode(('{"a":["one%d","two%d",{"b":"three%d"}],"c":"four%d"}'):format(i, i, i, i))
          if v.a[1] ~= "one" .. i or v.a[3].b ~= "three" .. i or v.c ~= "four" .. i then wrong = wrong + 1 end
        end
        collectgarbage("setpause", pause)
        assert.is_true(ran > 0)
        assert.equal(0, wrong)
      end)
    end)

    describe("encode", function()
      local function gives(text, value, options)
        assert.equal(text, json.encode(value, options))
      end
      local function fails(why, value, options)
        local text, err = json.encode(value, options)
        assert.is_nil(text)
        assert.equal(why, err)
      end

      it("writes scalars", function()
        gives("null", json.null)
        gives("true", true)
        gives("1", 1)
        gives("-0", -0.0)
        gives("9007199254740992", 2 ^ 53)
        gives("0.1", 0.1)
        gives("12.34", 12.34)
        gives("-0.00125", -0.00125)
        gives("0.30000000000000004", 0.1 + 0.2)
        gives("1e+300", 1e300)
        gives("5e-324", accepts "5e-324")
        gives([["\u0000\u001f\b\f\n\r\t\"\\/é]] .. '\127"', "\0\31\b\f\n\r\t\"\\/é\127")
        gives("[-5,18446744073709551615]", { -5LL, -1ULL })
      end)

      it("escapes strings of every length around the vector size", function()
        for n = 0, 50 do
          local plain = ("x"):rep(n)
          gives('"' .. plain .. '"', plain)
          gives('"' .. plain .. "\\n" .. plain .. 'é"', plain .. "\n" .. plain .. "é")
          fails("invalid UTF-8 in a string at the top", plain .. "\226\130")
          fails("invalid UTF-8 in a string at the top", plain .. "\n\237\160\128")
        end
      end)

      it("reads back every double it wrote", function()
        local bits = ffi.new "union { double d; uint32_t u[2]; }"
        local seed = 99
        for i = 1, 4000 do
          for half = 0, 1 do
            seed = seed * 16807 % 2147483647
            bits.u[half] = seed * 2 + i % 2
          end
          -- LuaJIT takes a NaN with odd bits for a tagged value, so none may be read through FFI
          local x = bits.u[1] % 0x80000000 < 0x7FF00000 and bits.d or 0
          if i % 3 == 0 then x = seed / 1000 elseif i % 3 == 1 then x = seed * 1e-9 end
          local text = assert(json.encode(x))
          assert(tonumber(text) == x and tonumber(json.decode(text)) == x, text)
        end
      end)

      it("tells arrays from objects", function()
        gives("{}", {})
        gives("[]", json.array())
        gives("{}", json.object())
        gives("[1,2,3]", { 1, 2, 3 })
        gives('{"0":"a","1.5":"c"}', { [0] = "a", [1.5] = "c" }, { sort = true })
        gives('{"1":"a","20":"b","x":1}', json.object { "a", [20] = "b", x = 1 }, { sort = true })
        for _, text in ipairs { "[]", "{}", "[[],{}]", '{"a":[],"b":{}}' } do
          gives(text, json.decode(text), { sort = true })
        end
        local emptied = json.decode "[1]"
        emptied[1] = nil
        gives("[]", emptied)
        local scattered = {}
        for i = 40, 1, -1 do scattered[i] = i end
        assert.same(scattered, json.decode(json.encode(scattered)))
        assert.is_true(json.is_array(json.decode "[]") and json.is_array { 1 } and json.is_array(json.array {}))
        assert.is_false(json.is_array {} or json.is_array { a = 1 } or json.is_array "x"
          or json.is_array(json.object { 1 }))
        assert.has_error(function() json.array(1) end)
      end)

      it("sorts and indents", function()
        local value = { b = 1, a = { 1, {}, { x = json.array() } }, ab = 2, [""] = 3 }
        gives('{"":3,"a":[1,{},{"x":[]}],"ab":2,"b":1}', value, { sort = true })
        gives('{\n  "a": [\n    1,\n    {\n      "b": true\n    }\n  ]\n}', { a = { 1, { b = true } } },
          { pretty = true })
        assert.has_error(function() json.encode(1, 2) end)
        assert.has_error(function() json.encode() end)
      end)

      it("names the path of what it cannot write", function()
        for _, options in ipairs { {}, { sort = true }, { pretty = true } } do
          fails("cannot encode a function at a.2.b\\.c", { a = { 1, { ["b.c"] = print } } }, options)
          fails("cannot encode NaN at 2", { 1, 0 / 0 }, options)
          fails("cannot encode an infinite number at x", { x = -math.huge }, options)
          fails("cannot encode nil (json.null stands for null) at the top", nil, options)
          fails("cannot encode a userdata at f", { f = io.stdout }, options)
          fails("cannot encode a thread at f.1", { f = { coroutine.create(print) } }, options)
          fails("cannot encode cdata other than 64-bit integers at c", { c = ffi.new "int[2]" }, options)
          fails("a sparse array (3 elements, the last at 4) at a", { a = { 1, 2, nil, 4 } }, options)
          fails("a sparse array (1 elements, the last at 1000) at the top", { [1000] = 1 }, options)
          fails("a table with both array elements and other keys at a", { a = { 1, x = 2 } }, options)
          fails("a table with both array elements and other keys at the top", { x = 2, [7] = 1 }, options)
          fails("a table with a boolean as key at o", { o = { [true] = 1 } }, options)
          fails("a table marked as an array has keys that are not array indices at the top",
            json.array { x = 1 }, options)
          fails("invalid UTF-8 in a string at k.1", { k = { "\255" } }, options)
          fails("invalid UTF-8 in a string at ?", { ["\255"] = 1 }, options)
          local cycle = { a = {} }
          cycle.a[1] = { cycle.a }
          fails("a table that contains itself at a.1.1", cycle, options)
        end
      end)

      it("allows the same table twice and limits the depth", function()
        local twice = { 1 }
        gives("[[1],[1]]", { twice, twice })
        local deep = {}
        for _ = 1, 511 do deep = { deep } end
        assert.equal(512 + 512, #json.encode(deep))
        local text, err = json.encode { deep }
        assert.is_nil(text)
        assert.truthy(err:find("nested too deeply (limit 512) at 1.1.1", 1, true))
      end)

      it("works again after a failure, and calls no metamethods", function()
        fails("cannot encode a function at the top", print)
        gives("[1]", { 1 })
        local guarded = setmetatable({ a = 1 }, { __index = error, __pairs = error, __len = error })
        gives('{"a":1}', guarded)
      end)
    end)

    describe("find", function()
      local doc, value
      before_each(function()
        doc, value = ffi.gc(C.mw_json_new(), C.mw_json_free), ffi.new "struct mw_json_value"
      end)
      local function parse(text)
        return C.mw_json_parse(doc, text, #text)
      end
      local function find(path)
        local kind = C.mw_json_find(doc, path, #path, value)
        assert.equal(kind, value.type)
        if kind == 7 then return ffi.string(value.text, value.len) end
        if kind == 4 then return value.number end
        return ({ [0] = "missing", "null", "false", "true", [5] = "int64", [6] = "uint64", [8] = "array",
          [9] = "object" })[kind]
      end

      it("follows keys, indices and escapes", function()
        assert.equal(0, parse [=[{"a":{"b":{"c":"deep"}},"items":[{"sku":"x"},{"sku":"y\n"},[[7]]],"a.b":"dot",
          "a\\b":"slash","":{"":"empty"},"1":"one","n":null,"t":true,"f":false,"big":9007199254740993,
          "huge":18446744073709551615,"d":2,"d":3}]=])
        for path, expected in pairs {
          ["a.b.c"] = "deep", ["items.1.sku"] = "x", ["items.2.sku"] = "y\n", ["items.3.1.1"] = 7, ["a\\.b"] = "dot",
          ["a\\\\b"] = "slash", ["."] = "empty", ["1"] = "one", n = "null", t = "true", f = "false", big = "int64",
          huge = "uint64", d = 3, [""] = "object", items = "array", a = "object",
        } do
          assert.equal(expected, find(path), path)
        end
        for _, path in ipairs {
          "x", "a.x", "a.b.c.d", "items.0", "items.4", "items.01", "items.-1", "items.x", "items.1.sku.1", "items.",
          "items.99999999999999999999", "a.b.", "n.x", "A", "items.4294967297", "..", "a\\.b\\", "items.1 ",
        } do
          assert.equal("missing", find(path), path)
        end
        assert.equal(3, find "items" and value.count)
        find "big"
        assert.equal(9007199254740993LL, value.integer)
        find "huge"
        assert.equal(-1LL, value.integer)
      end)

      it("serves finds from a node and a push, after the text is gone", function()
        local text = ffi.new("char[?]", 64)
        local source = '{"a":{"b":["\\u0078",2]},"c":"d"}'
        ffi.copy(text, source)
        assert.equal(0, C.mw_json_parse(doc, text, #source))
        ffi.fill(text, 64, 0x7B)
        find "a.b"
        local node = value.node
        assert.equal(7, C.mw_json_find_in(doc, node, "1", 1, value))
        local address = tonumber(ffi.cast("uintptr_t", doc))
        assert.same({ "x", 2 }, core.push_doc(address, node))
        assert.same({ a = { b = { "x", 2 } }, c = "d" }, core.push_doc(address))
        assert.is_nil((core.push_doc(address, 1000)))
      end)

      it("holds nothing after an error", function()
        assert.equal(0, parse "[1]")
        assert.equal(-1, parse "[1")
        assert.equal("missing", find "1")
        assert.truthy(ffi.string(C.mw_json_error(doc)):find("unexpected end", 1, true))
        assert.is_nil((core.push_doc(tonumber(ffi.cast("uintptr_t", doc)))))
        assert.equal(0, parse "[1]")
        assert.equal("", ffi.string(C.mw_json_error(doc)))
      end)

      it("keeps its arena between texts and gives it back after a huge one", function()
        parse '{"a":[1,2,3]}'
        local small = C.mw_json_memory(doc)
        for _ = 1, 100 do parse '{"a":[1,2,3]}' end
        assert.equal(small, C.mw_json_memory(doc))
        assert.equal(0, parse("[" .. ("1,"):rep(500000) .. "1]"))
        assert.equal(500001, find "" and value.count)
        local large = C.mw_json_memory(doc)
        parse "[]"
        assert.equal(large, C.mw_json_memory(doc)) -- not at once: another may follow
        for _ = 1, 100 do parse "[]" end
        assert.equal(small, C.mw_json_memory(doc))
      end)
    end)
  end)
end
