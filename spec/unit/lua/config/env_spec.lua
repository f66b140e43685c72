-- `.env` files: what they may hold, what is said about the rest, and who wins.
local env = require "moonwire.internal.config.env"

describe("env.parse", function()
  local LINES = {
    ["A=1"] = "1", ["A="] = "", ["  A = x y  "] = "x y", ["export A=1"] = "1", ["  export   A = 1"] = "1",
    ["A=a#b"] = "a#b", ["A=a #b"] = "a", ["A=# none"] = "", ["A=   # none"] = "", ["A=b=c"] = "b=c",
    ["A=http://u:p@h/?x=1&y=2#z"] = "http://u:p@h/?x=1&y=2#z",
    ["A='single # $X \\n'"] = "single # $X \\n", ['A="double # quoted"'] = "double # quoted",
    ['A="a\\nb\\tc\\\\d\\"e\\$f\\q"'] = 'a\nb\tc\\d"e$f\\q', ['A="x" # say "hi"'] = "x", ["A='x'   # it's"] = "x",
    ['A=""'] = "", ["A=''"] = "", ["A=it's"] = "it's", ['A="it\'s"'] = "it's", ["A='say \"x\"'"] = 'say "x"',
    ["A=1\r"] = "1", ['A="x"\r'] = "x", ["A=grün"] = "grün", ['A="ends with \\\\"'] = "ends with \\",
  }

  it("reads values plain and quoted, with comments and export", function()
    for line, expected in pairs(LINES) do
      local values, err = env.parse(line .. "\n", ".env")
      assert.is_nil(err, line)
      assert.same({ A = expected }, values, line)
    end
  end)

  it("reads many lines; the last one of a name wins, no newline is needed at the end", function()
    assert.same({ A = "3", _b2 = "2" }, env.parse("# head\n\nA=1\n   \n  # more\n_b2=2\r\nA=3", ".env"))
    assert.same({}, env.parse("", ".env"))
  end)

  it("names the line of what it cannot read", function()
    for text, expected in pairs {
      ["A=1\nnonsense\n"] = '.env:2: expected NAME=value, got "nonsense"',
        ["1A=x"] = '.env:1: expected NAME=value, got "1A=x"',
      ["A B=1"] = '.env:1: expected NAME=value, got "A B=1"', ["=1"] = '.env:1: expected NAME=value, got "=1"',
      ['\n\nA="open'] = ".env:3: the quote is not closed", ["A='open\nB=1'"] = ".env:1: the quote is not closed",
      ['A="x\\"'] = ".env:1: the quote is not closed", ['A="x"y'] = '.env:1: unexpected "y" after the closing quote',
      ["A='x'#y"] = '.env:1: unexpected "#y" after the closing quote',
    } do
      local values, err = env.parse(text, ".env")
      assert.is_nil(values, text)
      assert.equal(expected, err)
    end
  end)
end)

describe("env.reader", function()
  it("asks the overrides, the environment, the file and the default, in that order", function()
    local read, seen = env.reader({ HOME = "file", ONLY_FILE = "f", BOTH = "f" }, { BOTH = "o" })
    assert.equal(os.getenv "HOME", read "HOME")
    assert.equal("f", read("ONLY_FILE", "d"))
    assert.equal("o", read "BOTH")
    assert.equal("d", read("MW_SPEC_UNSET", "d"))
    assert.same({ HOME = os.getenv "HOME", ONLY_FILE = "f", BOTH = "o", MW_SPEC_UNSET = "d" }, seen)
  end)

  it("wants what has no default", function()
    local read = env.reader {}
    assert.has_error(function() read "MW_SPEC_UNSET" end)
    local _, err = pcall(read, "MW_SPEC_UNSET")
    assert.matches("mw.env: MW_SPEC_UNSET is not set, and there is no default", err, 1, true)
    assert.matches("the name must be a string", select(2, pcall(read, 1)), 1, true)
  end)
end)
