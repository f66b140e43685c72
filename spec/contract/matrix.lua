-- matrix.lua - which case was proved on which driver. The contract suite writes build/contract.json and a Markdown
-- table; `moonwire lua spec/contract/matrix.lua --write docs/guarantees.md` puts that table into a page.
local json = require "moonwire.json"

local BEGIN, END = "<!-- matrix:begin -->", "<!-- matrix:end -->"

local M = { drivers = {} }
local Record = {}
Record.__index = Record

local root = os.getenv "MOONWIRE_ROOT" or "."

local function build_path(name) return (os.getenv "MW_BUILD" or root .. "/build") .. "/" .. name end

function M.begin(driver)
  local record = setmetatable({ name = driver.name, version = driver.version(), results = {} }, Record)
  M.drivers[#M.drivers + 1] = record
  return record
end

function Record:passed(case) self.results[case.name] = "passed" end
function Record:failed(case) self.results[case.name] = "failed" end
function Record:not_for(case, reason) self.results[case.name] = "n/a: " .. reason end

local function cell(result)
  if result == "passed" then return "passed" end
  if result == nil then return "not run" end
  return result
end

-- The table, from what contract.json says: { drivers = { { name, version, results } }, cases = { { name, title } } }
function M.markdown(report)
  local lines, head, rule = {}, { "| case |" }, { "| --- |" }
  for _, driver in ipairs(report.drivers) do
    head[#head + 1] = (" %s (%s) |"):format(driver.name, driver.version)
    rule[#rule + 1] = " --- |"
  end
  lines[1], lines[2] = table.concat(head), table.concat(rule)
  for _, case in ipairs(report.cases) do
    local row = { ("| `%s` %s |"):format(case.name, case.title) }
    for _, driver in ipairs(report.drivers) do row[#row + 1] = (" %s |"):format(cell(driver.results[case.name])) end
    lines[#lines + 1] = table.concat(row)
  end
  return table.concat(lines, "\n") .. "\n"
end

local function slurp(path)
  local file = io.open(path, "rb")
  if not file then return nil end
  local text = file:read "*a"
  file:close()
  return text
end

local function spill(path, text)
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
end

function M.write()
  local report = { drivers = {}, cases = {} }
  for _, case in ipairs(require("spec.contract.cases").list) do
    report.cases[#report.cases + 1] = { name = case.name, title = case.title }
  end
  for i, d in ipairs(M.drivers) do report.drivers[i] = { name = d.name, version = d.version, results = d.results } end
  spill(build_path "contract.json", json.encode(report) .. "\n")
  spill(os.getenv "MW_MATRIX" or build_path "contract-matrix.md", M.markdown(report))
end

-- The names of the cases in a page's table; nil when the page has no markers.
function M.names_in(text)
  local first, last = text:find(BEGIN, 1, true)
  local stop = last and text:find(END, last, true)
  if not first or not stop then return nil end
  local names = {}
  for name in text:sub(last, stop):gmatch "\n| `([^`]+)`" do names[#names + 1] = name end
  return names
end

-- The page with its table replaced; nil when it has no markers.
function M.replace(text, table_text)
  local _, last = text:find(BEGIN, 1, true)
  local stop = last and text:find(END, last, true)
  if not stop then return nil end
  return text:sub(1, last) .. "\n" .. table_text .. text:sub(stop)
end

local function main(argv)
  if argv[1] ~= "--write" or not argv[2] then
    io.stderr:write "usage: moonwire lua spec/contract/matrix.lua --write PAGE\n"
    return 64
  end
  local text = slurp(build_path "contract.json")
  local page = slurp(argv[2])
  if not text or not page then
    io.stderr:write(not text and "matrix: no build/contract.json: run ./dev test contract first\n"
      or "matrix: cannot read " .. argv[2] .. "\n")
    return 1
  end
  local new = M.replace(page, M.markdown(json.decode(text)))
  if not new then
    io.stderr:write("matrix: ", argv[2], " has no ", BEGIN, " … ", END, "\n")
    return 1
  end
  spill(argv[2], new)
  return 0
end

if arg and arg[0] and arg[0]:match "matrix%.lua$" then return main(arg) end
return M
