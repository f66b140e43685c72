-- The dictionary behind mw.shared and mw.metrics: kinds, times to live, and random operations against a Lua table.
local ffi = require "ffi"
local C = require "spec.unit.core.declare"

local number, text, len = ffi.new "double[1]", ffi.new "const char *[1]", ffi.new "size_t[1]"

local count = 0
local function fresh()
  count = count + 1
  return C.mw_dict_named("dict_spec " .. count)
end

local function get(d, key, now)
  local kind = C.mw_dict_get(d, key, #key, now or 0, number, text, len)
  if kind == 0 then return nil end
  kind = string.char(kind)
  if kind == "n" then return number[0] end
  if kind == "b" then return number[0] ~= 0 end
  return ffi.string(text[0], len[0])
end

local function set(d, key, value, expires)
  if type(value) == "number" then
    C.mw_dict_set_number(d, key, #key, value, expires or 0)
  elseif type(value) == "boolean" then
    C.mw_dict_set_bool(d, key, #key, value, expires or 0)
  else
    C.mw_dict_set_string(d, key, #key, value, #value, expires or 0)
  end
end

describe("mw_dict", function()
  it("is one per name", function()
    local a, b = fresh(), fresh()
    set(a, "k", 1)
    assert.is_nil(get(b, "k"))
    assert.is_true(C.mw_dict_named("dict_spec " .. count) == b)
  end)

  it("keeps every kind, and one takes the place of another", function()
    local d = fresh()
    for _, value in ipairs { 1.5, "text", true, "", false, "a\0b", 0, ("x"):rep(100000), -1e308 } do
      set(d, "k", value)
      assert.equal(value, get(d, "k"))
      assert.equal(1, C.mw_dict_count(d))
    end
    set(d, "", "the empty key")
    set(d, "k\0", "another key")
    assert.equal("the empty key", get(d, "")) -- keys are bytes
    assert.equal(-1e308, get(d, "k"))
    assert.equal(3, C.mw_dict_count(d))
  end)

  it("copies what it is given", function()
    local d, key, value = fresh(), ffi.new("char[3]", "key"), ffi.new("char[5]", "value")
    C.mw_dict_set_string(d, key, 3, value, 5, 0)
    ffi.fill(key, 3)
    ffi.fill(value, 5)
    assert.equal("value", get(d, "key"))
  end)

  it("forgets what is over its time, at that time", function()
    local d = fresh()
    set(d, "k", "v", 1000)
    assert.equal("v", get(d, "k", 999))
    assert.is_nil(get(d, "k", 1000))
    assert.equal(0, C.mw_dict_count(d))
    assert.is_nil(get(d, "k", 0), "gone is gone")
    set(d, "k", "v", 1000)
    set(d, "k", "w") -- a new value has its own time: none
    assert.equal("w", get(d, "k", 2 ^ 40))
  end)

  it("adds: from the start, keeping the time to live, anew after it", function()
    local d = fresh()
    local function add(by, start, now) return C.mw_dict_add(d, "n", 1, by, start, now) end
    assert.equal(11, add(1, 10, 0))
    assert.equal(13.5, add(2.5, 99, 0))
    set(d, "n", 5, 1000)
    assert.equal(6, add(1, 0, 999))
    assert.is_nil(get(d, "n", 1000))
    assert.equal(101, add(1, 100, 1000))
    assert.equal(101, get(d, "n", 2 ^ 40), "what is counted anew does not inherit the old time")
    set(d, "n", 7, 1000)
    assert.equal(1, add(1, 0, 5000))
  end)

  it("behaves like a table under random operations", function()
    math.randomseed(23)
    local d, model, now = fresh(), {}, 1
    local function live(key)
      local e = model[key]
      if e and e.expires ~= 0 and e.expires <= now then model[key], e = nil, nil end
      return e
    end
    for step = 1, 30000 do
      local key = "key" .. math.random(1, 200)
      local what = math.random(6)
      now = now + math.random(0, 2)
      if what <= 2 then
        local value = ({ step, tostring(step), step % 2 == 0 })[math.random(3)]
        local expires = math.random(2) == 1 and 0 or now + math.random(1, 300)
        set(d, key, value, expires)
        model[key] = { value = value, expires = expires }
      elseif what == 3 then
        assert.equal(model[key] ~= nil, C.mw_dict_remove(d, key, #key))
        model[key] = nil
      elseif what == 4 then
        local e = live(key)
        if not e or type(e.value) ~= "number" then e = { value = 3, expires = 0 } end
        e.value = e.value + 2
        model[key] = e
        assert.equal(e.value, C.mw_dict_add(d, key, #key, 2, 3, now))
      else
        local e = live(key)
        assert.equal(e and e.value, get(d, key, now))
      end
    end
    local expected, walked, cursor, key = 0, 0, ffi.new "uint32_t[1]", ffi.new "const char *[1]"
    for _ in pairs(model) do expected = expected + 1 end
    while C.mw_dict_next(d, cursor, key, len) do
      walked = walked + 1
      assert.is_table(model[ffi.string(key[0], len[0])])
    end
    assert.equal(expected, walked)
    assert.equal(expected, C.mw_dict_count(d))
  end)
end)
