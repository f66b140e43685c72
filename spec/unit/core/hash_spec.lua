-- The hash is stored on disk (lanes, dedupe): these numbers must never change, on any machine.
local ffi = require "ffi"
local C = require "spec.unit.core.declare"

local function hash(text) return bit.tohex(C.mw_hash64(text, #text)) end

describe("mw_hash64", function()
  local VECTORS = {
    [""] = "0b95b73eb3c09f37",
    ["a"] = "26c7e3648f0b6391",
    ["customer-1"] = "9e3db788061fbff8",
    ["12345678"] = "0f37fd9b9a7e0081",
    ["123456789012345"] = "e7db563a822cc477",
    ["1234567890123456"] = "991c5468818fc010",
    ["12345678901234567"] = "adcbd32774075b1d",
    ["The quick brown fox jumps over the lazy dog, twice"] = "d93245b92a6c769e",
    ["grüß"] = "047cf40f6db497fb",
    ["\0\0\0"] = "355c3f255cc8580e",
  }

  it("is what it has always been", function()
    for text, expected in pairs(VECTORS) do
      assert.equal(expected, hash(text), ("of %q"):format(text))
    end
  end)

  it("reads every byte, and no byte more", function()
    local base = ("x"):rep(70)
    for len = 0, 70 do
      local text = base:sub(1, len)
      local buffer = ffi.new("char[?]", len + 8, text)
      ffi.fill(buffer + len, 8, 0xff)
      assert.equal(hash(text), bit.tohex(C.mw_hash64(buffer, len)))
      for i = 1, len do
        local changed = text:sub(1, i - 1) .. "y" .. text:sub(i + 1)
        assert.not_equal(hash(text), hash(changed), ("byte %d of %d"):format(i, len))
      end
    end
  end)

  it("tells lengths apart, of zeros too, and is never 0", function()
    local seen = {}
    for len = 0, 200 do
      local h = hash(("\0"):rep(len))
      assert.is_nil(seen[h], "two lengths of zeros have one hash")
      assert.not_equal("0000000000000000", h)
      seen[h] = true
    end
  end)

  it("spreads numbered keys over all bits", function()
    local ones, n = {}, 4096
    for i = 0, 63 do ones[i] = 0 end
    for i = 1, n do
      local key = "customer-" .. i
      local h = C.mw_hash64(key, #key)
      for b = 0, 63 do
        if bit.band(bit.rshift(h, b), 1) ~= 0 then ones[b] = ones[b] + 1 end
      end
    end
    for b = 0, 63 do
      assert.is_true(ones[b] > n * 0.45 and ones[b] < n * 0.55, ("bit %d is set %d times"):format(b, ones[b]))
    end
  end)
end)
