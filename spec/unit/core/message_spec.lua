-- Messages and header blocks: what goes in comes out, what is too large or malformed is refused, nothing reads past
-- the end.
local ffi = require "ffi"
local C = require "spec.unit.core.declare"

local failure, view, at = ffi.new "mw_failure", ffi.new "mw_header_view", ffi.new "size_t[1]"
local TEXTS = { "body", "key", "id", "type", "headers" }

local function block(list)
  local h = ffi.gc(ffi.new "mw_headers_out", C.mw_ffi_headers_free)
  for _, pair in ipairs(list) do C.mw_ffi_headers_add(h, pair[1], #pair[1], pair[2], #pair[2]) end
  return h.len > 0 and ffi.string(h.data, h.len) or ""
end

-- The strings stand in `given`, so they live as long as the parts.
local function parts(given)
  local p = ffi.new "mw_parts"
  for _, name in ipairs(TEXTS) do
    if given[name] then p[name], p[name .. "_len"] = given[name], #given[name] end
  end
  p.has_key = given.key ~= nil
  p.priority, p.time_ms = given.priority or 4, given.time_ms or 0
  return p
end

local function read(m)
  local p, found = ffi.new "mw_parts", {}
  C.mw_message_parts(m, p)
  for _, name in ipairs(TEXTS) do found[name] = ffi.string(p[name], p[name .. "_len"]) end
  if not p.has_key then found.key = nil end
  found.priority, found.time_ms = p.priority, tonumber(p.time_ms)
  return found
end

local function check(given) return C.mw_message_check(parts(given), failure) == 0 or ffi.string(failure.text) end

local function header(name_len, value_len, bytes)
  return string.char(name_len % 256, math.floor(name_len / 256), value_len % 256, math.floor(value_len / 256) % 256,
    math.floor(value_len / 65536) % 256, math.floor(value_len / 16777216)) .. bytes
end

local function random_text(most)
  local bytes = {}
  for i = 1, math.random(0, most) do bytes[i] = string.char(math.random(0, 255)) end
  return table.concat(bytes)
end

describe("a message", function()
  it("gives back what was put in, random bytes included", function()
    math.randomseed(11)
    for i = 1, 500 do
      local given = {
        body = random_text(300), id = random_text(255), type = random_text(255), priority = math.random(0, 9),
        time_ms = math.random(0, 2 ^ 41), headers = block { { "a", random_text(50) },
          { ("n"):rep(math.random(1, 255)), "" } },
      }
      if i % 3 > 0 then given.key = random_text(60) end
      local m = ffi.gc(C.mw_message_make(parts(given), failure), C.mw_message_unref)
      assert.is_true(m ~= nil)
      assert.same(given, read(m))
      local bytes = #given.body + #(given.key or "") + #given.id + #given.type + #given.headers
      local size = tonumber(C.mw_message_size(m))
      assert.is_true(size >= bytes and size <= bytes + 64, size .. " for " .. bytes)
    end
  end)

  it("tells a missing key from an empty one", function()
    local without = ffi.gc(C.mw_message_make(parts {}, failure), C.mw_message_unref)
    local empty = ffi.gc(C.mw_message_make(parts { key = "" }, failure), C.mw_message_unref)
    assert.is_nil(read(without).key)
    assert.equal("", read(empty).key)
    assert.is_true(C.mw_message_lane(without) == 0)
    assert.is_true(C.mw_message_lane(empty) == C.mw_hash64("", 0))
    local keyed = ffi.gc(C.mw_message_make(parts { id = "x", key = "k", type = "t" }, failure), C.mw_message_unref)
    assert.is_true(C.mw_message_lane(keyed) == C.mw_hash64("k", 1))
  end)

  it("borrows a body and gives it back with the last reference, once", function()
    jit.off(true, true) -- C calls back into Lua here
    local released = 0
    local release = ffi.cast("void (*)(void *)", function(owner)
      released = released + 1
      assert(owner == ffi.cast("void *", 1234))
    end)
    local given = { body = "theirs", id = "i", key = "k", headers = block { { "a", "b" } } }
    local p = parts(given)
    local m = C.mw_message_borrow(p, release, ffi.cast("void *", 1234))
    local out = ffi.new "mw_parts"
    C.mw_message_parts(m, out)
    assert.is_true(out.body == p.body, "the body was copied")
    assert.same({ body = "theirs", id = "i", key = "k", type = "", headers = given.headers, priority = 4,
      time_ms = 0 }, read(m))
    assert.is_true(C.mw_message_ref(m) == m)
    C.mw_message_unref(m)
    assert.equal(0, released)
    C.mw_message_unref(m)
    assert.equal(1, released)
    C.mw_message_unref(nil)
    release:free()
  end)

  it("reads the rest of an unread message when it is asked for, once, and lets its source go", function()
    jit.off(true, true) -- C calls back into Lua here
    jit.off(read, true) -- and there
    local calls = {}
    local kind = ffi.new "struct spec_unread"
    kind.size = 16
    kind.read = function(owner)
      calls[#calls + 1] = "read " .. ffi.string(ffi.cast("const char *", owner))
      return C.mw_message_make(parts { id = "i", type = "t", headers = block { { "a", "b" } }, priority = 7 }, failure)
    end
    kind.release = function(owner) calls[#calls + 1] = "release " .. ffi.string(ffi.cast("const char *", owner)) end
    local function new(name)
      local owner = ffi.new "void *[1]"
      local m = C.mw_message_new_unread(parts { body = "bytes", key = "k" }, kind, owner)
      ffi.copy(owner[0], name)
      return m
    end

    local m, out = new "first", ffi.new "mw_parts"
    local size = C.mw_message_size(m)
    C.mw_message_known(m, out)
    assert.equal("bytes", ffi.string(out.body, out.body_len))
    assert.equal(0, tonumber(out.id_len))
    assert.same({}, calls)
    local whole = { body = "bytes", key = "k", id = "i", type = "t", headers = block { { "a", "b" } }, priority = 7,
      time_ms = 0 }
    assert.same(whole, read(m))
    assert.same(whole, read(m))
    C.mw_message_read(m)
    assert.same({ "read first", "release first" }, calls)
    assert.is_true(size == C.mw_message_size(m), "what was counted must be given back")
    C.mw_message_unref(m)
    assert.equal(2, #calls)

    m = new "never"
    C.mw_message_unref(m)
    assert.same({ "read first", "release first", "release never" }, calls)
    kind.read:free()
    kind.release:free()
  end)

  it("refuses what is over a limit, and takes what is at it", function()
    assert.is_true(check { id = ("i"):rep(255), type = ("t"):rep(255), key = ("k"):rep(2 ^ 20), priority = 9 })
    assert.equal("id of 256 bytes is over the limit of 255", check { id = ("i"):rep(256) })
    assert.equal("content type of 256 bytes is over the limit of 255", check { type = ("t"):rep(256) })
    assert.equal("key of 1048577 bytes is over the limit of 1048576", check { key = ("k"):rep(2 ^ 20 + 1) })
    assert.equal("priority 10 is over the highest, 9", check { priority = 10 })
    assert.equal("priority 255 is over the highest, 9", check { priority = 255 })
    local p = parts { body = "x" }
    p.body_len = 2 ^ 30
    assert.equal(0, C.mw_message_check(p, failure))
    p.body_len = 2 ^ 30 + 1
    assert.equal(-1, C.mw_message_check(p, failure))
    assert.equal("body of 1073741825 bytes is over the limit of 1073741824", ffi.string(failure.text))
    local fits = block { { "n", ("v"):rep(2 ^ 20 - 7) } }
    assert.is_true(check { headers = fits })
    local over = block { { "n", ("v"):rep(2 ^ 20 - 6) } }
    assert.is_true(check { headers = over }) -- a dead letter has headers of ours on top
    assert.is_true(C.mw_message_make(parts { headers = over }, failure) == nil)
    assert.equal("headers of 1048577 bytes are over the limit of 1048576", ffi.string(failure.text))
    assert.equal("the header block is malformed", check { headers = "x" })
    assert.is_true(C.mw_message_make(parts { priority = 10 }, failure) == nil)
  end)
end)

describe("a header block", function()
  local function walk(text)
    local copy = ffi.new("char[?]", #text) -- exactly as long as it is: ASan sees any step too far
    ffi.copy(copy, text, #text)
    local found = {}
    at[0] = 0
    while C.mw_ffi_headers_next(copy, #text, at, view) do
      found[#found + 1] = { ffi.string(view.name, view.name_len), ffi.string(view.value, view.value_len) }
    end
    return found, C.mw_headers_valid(copy, #text)
  end

  it("is walked in order, the first of a name is found", function()
    local list = { { "a", "1" }, { "b", "" }, { "a", "2" }, { ("n"):rep(255), ("v"):rep(70000) }, { "\0", "\0\0" } }
    local text = block(list)
    local found, valid = walk(text)
    assert.same(list, found)
    assert.is_true(valid)
    assert.is_true(C.mw_headers_find(text, #text, "a", view))
    assert.equal("1", ffi.string(view.value, view.value_len))
    assert.is_false(C.mw_headers_find(text, #text, "A", view))
    assert.is_false(C.mw_headers_find(text, #text, "", view))
    assert.is_false(C.mw_headers_find(nil, 0, "a", view))
  end)

  it("takes names of 1 to 255 bytes", function()
    for len, ok in pairs { [0] = false, [1] = true, [255] = true, [256] = false, [65535] = false } do
      local _, valid = walk(header(len, 1, ("n"):rep(len) .. "v"))
      assert.equal(ok, valid, "a name of " .. len)
    end
    assert.is_true(select(2, walk ""))
  end)

  it("is malformed when it is cut anywhere but between two headers", function()
    local first = header(1, 2, "avv")
    local text = first .. header(2, 3, "bbvvv")
    for len = 0, #text do
      local found, valid = walk(text:sub(1, len))
      local between = len == 0 or len == #first or len == #text
      assert.equal(between, valid, "cut at " .. len)
      assert.equal(len < #first and 0 or len < #text and 1 or 2, #found)
    end
  end)

  it("is malformed when a length is larger than what is left", function()
    for _, text in ipairs {
      header(1, 4294967295, "a"), header(65535, 0, "a"), header(65535, 4294967295, ""), header(2, 0, "a"),
        header(1, 1, "a"),
      header(1, 4294967289, "a" .. ("x"):rep(40)), -- would wrap around 32 bits
    } do
      local found, valid = walk(text)
      assert.is_false(valid)
      assert.equal(0, #found)
    end
  end)

  it("never gives more than it has, whatever the bytes", function()
    math.randomseed(5)
    local valid_ones = 0
    for _ = 1, 20000 do
      local text = random_text(24)
      if math.random(2) == 1 then
        text = header(math.random(0, 3), math.random(0, 3), random_text(8)) .. text:sub(1, math.random(0, 3))
      end
      local found, valid = walk(text)
      local sum = 0
      for _, pair in ipairs(found) do sum = sum + 6 + #pair[1] + #pair[2] end
      assert.is_true(sum <= #text)
      if valid then
        valid_ones = valid_ones + 1
        assert.equal(#text, sum)
        assert.equal(text, block(found))
      end
    end
    assert.is_true(valid_ones > 20)
  end)
end)
