-- The page that promises the guarantees lists the cases that exist, and no others.
local cases = require "spec.contract.cases"
local matrix = require "spec.contract.matrix"

local function slurp(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read "*a"
  file:close()
  return text
end

describe("docs/guarantees.md", function()
  it("lists the contract's cases, as they are now", function()
    local expected = {}
    for i, case in ipairs(cases.list) do expected[i] = case.name end
    assert.same(expected, matrix.names_in(slurp(os.getenv "MOONWIRE_ROOT" .. "/docs/guarantees.md")),
      "moonwire lua spec/contract/matrix.lua --write docs/guarantees.md")
  end)
end)

describe("the matrix", function()
  local report = {
    cases = { { name = "ack", title = "acks" }, { name = "park", title = "parks" } },
    drivers = { { name = "d", version = "D 1.0", results = { ack = "passed", park = "n/a: cannot" } } },
  }
  local table_text = "| case | d (D 1.0) |\n| --- | --- |\n| `ack` acks | passed |\n| `park` parks | n/a: cannot |\n"

  it("is a Markdown table of cases and drivers", function() assert.equal(table_text, matrix.markdown(report)) end)

  it("says when a case was not run", function()
    local text = matrix.markdown { cases = report.cases, drivers = { { name = "e", version = "1", results = {} } } }
    assert.matches("| `ack` acks | not run |", text, 1, true)
  end)

  it("replaces what stands between the markers, and nothing else", function()
    local page = "before\n<!-- matrix:begin -->\nold\n<!-- matrix:end -->\nafter\n"
    local new = matrix.replace(page, table_text)
    assert.equal("before\n<!-- matrix:begin -->\n" .. table_text .. "<!-- matrix:end -->\nafter\n", new)
    assert.same({ "ack", "park" }, matrix.names_in(new))
    assert.equal(new, matrix.replace(new, table_text))
    assert.is_nil(matrix.replace("no markers", table_text))
  end)
end)
