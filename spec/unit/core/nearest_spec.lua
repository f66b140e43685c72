-- The C and the Lua "did you mean" must agree on what is near.
local ffi = require "ffi"
local C = require "spec.unit.core.declare"
local in_lua = require "moonwire.internal.nearest"

local function in_c(word, list)
  local names = ffi.new("const char *[?]", #list + 1)
  for i, name in ipairs(list) do names[i - 1] = name end
  local found = C.mw_nearest(word, names)
  return found ~= nil and ffi.string(found) or nil
end

local WORDS = { "embedded", "memory", "memory-offset", "redis", "rediss", "amqp", "kafka" }

for which, nearest in pairs { C = in_c, Lua = in_lua } do
  describe("nearest in " .. which, function()
    it("finds the word that was meant", function()
      for word, expected in pairs {
        redis = "redis", reids = "redis", memroy = "memory", embeded = "embedded", kafak = "kafka", amq = "amqp",
          rediss = "rediss",
        ["memory-ofset"] = "memory-offset",
      } do
        assert.equal(expected, nearest(word, WORDS), word)
      end
    end)

    it("names nothing when half of it is wrong", function()
      for _, word in ipairs { "postgres", "x", "", "http", ("redis"):rep(20), ("a"):rep(1000) } do
        assert.is_nil(nearest(word, WORDS), word)
      end
      assert.is_nil(nearest("redis", {}))
    end)

    it("takes the first of two that are as near", function() assert.equal("ab", nearest("ax", { "ab", "ac" })) end)

    it("counts swapped neighbours once", function()
      assert.equal("ab", nearest("ba", { "ab" }))
      assert.is_nil(nearest("bxa", { "ayb" }))
    end)
  end)
end

describe("nearest", function()
  it("is the same in both for random words", function()
    math.randomseed(7)
    local function word(most)
      local letters = {}
      for i = 1, math.random(1, most) do letters[i] = string.char(96 + math.random(1, 5)) end
      return table.concat(letters)
    end
    for _ = 1, 3000 do
      local list = {}
      for i = 1, 6 do list[i] = word(9) end
      local w = word(9)
      assert.equal(in_c(w, list), in_lua(w, list), w .. " of " .. table.concat(list, " "))
    end
  end)

  it("does not mind capitals where people write settings", function()
    assert.equal("retry", in_lua("Retry", { "retry" }))
  end)
end)
