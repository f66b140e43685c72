-- What the pages say, tried: blocks tagged `lua check` are read as projects, blocks tagged `sh run` are executed, links
-- lead somewhere, and no setting, function or page is left out.
local core = require "moonwire.core"
local process = require "spec.support.process"

local root = os.getenv "MOONWIRE_ROOT" or "."
local binary = os.getenv "MOONWIRE_BIN" or root .. "/build/moonwire"

local function read(path)
  local file = assert(io.open(root .. "/" .. path, "rb"))
  local text = file:read "*a"
  file:close()
  return text
end

local function write(path, text)
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
end

local function exists(path) return process.run({ "test", "-e", path }).code == 0 end

local function pages()
  local found = process.run { "find", "README.md", "docs", "examples", "handlers", "-name", "*.md", cwd = root }
  local list = {}
  for path in found.stdout:gmatch "[^\n]+" do list[#list + 1] = path end
  table.sort(list)
  return list
end

--- The fenced blocks of a page: { tag, line, text }.
local function blocks(path)
  local list, current, number = {}, nil, 0
  for line in (read(path) .. "\n"):gmatch "(.-)\n" do
    number = number + 1
    local tag = line:match "^```(.*)$"
    if current and tag then
      current.text = table.concat(current, "\n") .. "\n"
      list[#list + 1] = current
      current = nil
    elseif tag then
      current = { tag = tag, line = number }
    elseif current then
      current[#current + 1] = line
    end
  end
  assert(not current, path .. ": a block is not closed")
  return list
end

--- The page without its blocks and code words, in which a bracket is only a bracket.
local function prose(path)
  local text, inside = {}, false
  for line in (read(path) .. "\n"):gmatch "(.-)\n" do
    if line:match "^```" then inside = not inside elseif not inside then text[#text + 1] = line end
  end
  return (table.concat(text, "\n"):gsub("`[^`\n]*`", "CODE"))
end

local function anchors(path)
  local set = {}
  for line in (read(path) .. "\n"):gmatch "(.-)\n" do
    local title = line:match "^#+%s+(.-)%s*$"
    if title then set[title:lower():gsub("[^%w%s_-]", ""):gsub("%s", "-")] = true end
  end
  return set
end

-- ---- what is executed ----

local function project_of(text)
  local dir = process.tmpdir()
  if text:find("mw.pipeline", 1, true) then
    write(dir .. "/moonwire.lua", text)
  else -- a handler
    write(dir .. "/block.lua", text)
    write(dir .. "/moonwire.lua", [[
local mw = require "moonwire"
mw.pipeline "block" { from = mw.connect "memory:docs":channel "in", handler = "block" }
]])
  end
  return dir
end

local bin

local function path_with_binary()
  if not bin then
    bin = process.tmpdir()
    assert(process.run({ "ln", "-s", binary, bin .. "/moonwire" }).code == 0)
  end
  return bin .. ":" .. os.getenv "PATH"
end

local RUN = {}
RUN["lua check"] = function(block)
  local app = core.app()
  local ok, problems = app:load { dir = project_of(block.text), check = true }
  app:close()
  if not ok then error(problems, 0) end
end
-- A page is read from its top: its blocks share a folder, and each begins where the one before it ended. A page of an
-- example speaks of a copy of that; others begin with an empty folder.
local places = {}

local function place_for(page)
  local place = places[page]
  if place then return place end
  local dir, example = process.tmpdir(), page:match "^(examples/.*)/README%.md$"
  place = { cwd = dir .. "/it", mark = dir .. "/pwd" }
  if example then
    assert(process.run({ "cp", "-r", root .. "/" .. example, place.cwd }).code == 0)
    assert(process.run({ "rm", "-rf", place.cwd .. "/data" }).code == 0)
  else
    assert(process.run({ "mkdir", place.cwd }).code == 0)
  end
  places[page] = place
  return place
end

RUN["sh run"] = function(block, page)
  local place = place_for(page)
  local result = process.run {
    "bash", "-euo", "pipefail", "-c", block.text .. '\npwd >"$PAGE_MARK"',
    cwd = place.cwd, env = { PATH = path_with_binary(), BROKER_URL = false, PAGE_MARK = place.mark },
    timeout = 60,
  }
  if result.code ~= 0 then
    error(("exit %s\n%s%s"):format(tostring(result.code), result.stdout, result.stderr), 0)
  end
  local mark = assert(io.open(place.mark))
  place.cwd = mark:read "*l"
  mark:close()
end

for _, page in ipairs(pages()) do
  describe(page, function()
    for _, block in ipairs(blocks(page)) do
      local run = RUN[block.tag]
      if run then
        it(("line %d: %s"):format(block.line, block.tag), function() run(block, page) end)
      end
    end

    it("has links that lead somewhere", function()
      local folder = page:match "^(.*/)" or ""
      for target in prose(page):gmatch "%]%(([^)%s]+)%)" do
        if not target:find "^%a+:" then
          local file, anchor = target:match "^([^#]*)#?(.*)$"
          local path = file == "" and page or folder .. file
          assert(exists(root .. "/" .. path), ("%s: there is no %s"):format(page, target))
          assert(anchor == "" or anchors(path)[anchor], ("%s: there is no heading for %s"):format(page, target))
        end
      end
    end)

    it("names no path of the machine it was written on", function()
      assert.is_nil(read(page):match "/work/[%w-]+" or read(page):match "/home/%w+")
    end)
  end)
end

describe("README.md", function()
  it("names verbs that ./dev has", function()
    local help = read "dev"
    for verb in read("README.md"):gmatch "%./dev (%l+)" do
      assert(help:find("\n  " .. verb .. "[ %[]") or help:find("[| ]" .. verb .. " [|)]"), "./dev " .. verb)
    end
  end)
end)

describe("docs/README.md", function()
  it("lists every page", function()
    local index = read "docs/README.md"
    for _, page in ipairs(pages()) do
      local name = page:match "^docs/(.*)$"
      if name and name ~= "README.md" then assert(index:find("(" .. name .. ")", 1, true), name .. " is not listed") end
    end
  end)
end)

-- ---- settings: docs/configuration.md against the tables that check them ----

--- The literal table behind `local NAME = {` in a source file.
local function rules_in(path, name)
  local text = read(path):match("local " .. name .. " = (%b{})")
  assert(text, ("%s has no table %s any more: tell this spec where the rules are"):format(path, name))
  return assert(loadstring("return " .. text))()
end

local function section(page, title)
  local text, level = "", nil
  for line in (read(page) .. "\n"):gmatch "(.-)\n" do
    local marks, found = line:match "^(#+)%s+(.-)%s*$"
    if found == title then
      level = #marks
    elseif level and marks then
      break -- at any heading: a subsection has rows of its own
    elseif level then
      text = text .. line .. "\n"
    end
  end
  assert(level, ("%s has no section %q"):format(page, title))
  return text
end

local function rows(text)
  local all = {}
  for field, kind, default, meaning in text:gmatch "\n| `([%w_]+)` | ([^\n]-) | ([^\n]-) | ([^\n]-) |" do
    all[field] = { kind = kind, default = default, meaning = meaning }
  end
  return all
end

local function shown(default)
  if type(default) == "string" then return ('"%s"'):format(default) end
  return type(default) == "number" and ("%.14g"):format(default) or tostring(default)
end

describe("docs/configuration.md", function()
  local CONFIG = "lua/moonwire/internal/config/"
  local PROJECT, POLICY, CHANNELS = CONFIG .. "project.lua", CONFIG .. "policy.lua", CONFIG .. "channels.lua"
  local retry = rules_in(POLICY, "RULES")
  local top, class = { classes = {} }, rules_in(POLICY, "CLASS")
  for name, rule in pairs(retry) do
    top[name], class[name] = rule, { kind = rule.kind, of = rule.of }
  end
  for title, rules in pairs {
    Pipelines = rules_in(PROJECT, "PIPELINE"), buffer = rules_in(PROJECT, "BUFFER"),
    batch = rules_in(PROJECT, "BATCH"), dedupe = rules_in(PROJECT, "DEDUPE"), retain = rules_in(CHANNELS, "RETAIN"),
    Settings = rules_in(PROJECT, "SETTINGS"),
    Channels = { retain = {} }, retry = top, ["retry.classes"] = class,
  } do
    it(("has a row for every field of %s, and none for others"):format(title), function()
      local documented = rows(section("docs/configuration.md", title))
      for field, rule in pairs(rules) do
        local row = documented[field]
        assert(row, ("%s: there is no row for %s"):format(title, field))
        if rule.required then assert.equal("required", row.default) end
        if rule.default ~= nil then
          assert(row.default:find(shown(rule.default), 1, true), ("%s.%s: the default is %s, the page says %s"):format(
            title, field, shown(rule.default), row.default))
        end
        for _, choice in ipairs(rule.of or {}) do
          assert(row.kind:find('"' .. choice .. '"', 1, true), ("%s.%s: %q is missing"):format(title, field, choice))
        end
      end
      for field in pairs(documented) do assert(rules[field], ("%s: %s does not exist"):format(title, field)) end
    end)
  end
end)

describe("What is refused", function()
  local HANDLERS = { one = "function() end", batch = "{ handle_batch = function() end }" }

  local function refused(url, settings, handler)
    local text = ([[
local mw = require "moonwire"
local broker = mw.connect %q
mw.pipeline "p" { from = broker:channel "in", handler = %s, %s }
]]):format(url, HANDLERS[handler or "one"], settings)
    local app = core.app()
    local ok, why = app:load { dir = project_of(text), check = true }
    app:close()
    assert(not ok, settings .. " was not refused")
    return why
  end

  for _, case in ipairs {
    { 'on_dead = "hold_key", order = "none"', "on_dead holds keys" },
    { 'on_dead = "dead_key", key = "a"', "go by the message's own key" },
    { 'on_dead = "hold_key"', "need a broker that can park messages", url = "memory-offset:docs" },
    { 'order = "source"', "would get one message at a time", handler = "batch" },
    { 'key = "a", order = "none"', 'key needs order = "key"' },
    { "batch = { size = 2 }", "batch needs a handler with handle_batch" },
    { "dead = false", "dead = false would lose messages" },
    { 'dead = "in"', "dead letters would go back into the channel they came from" },
    { 'dedupe = { store = "nowhere:x" }', "dedupe.store" },
    { "retires = {}", 'unknown field "retires"; did you mean "retry"?' },
    { "concurrency = 0", "concurrency must be a whole number from 1" },
    { 'timeout = "30"', "timeout must be seconds" },
  } do
    it(case[1] .. (case.handler and ", " .. case.handler or ""), function()
      local why = refused(case.url or "memory:docs", case[1], case.handler)
      assert(why:find(case[2], 1, true), why)
      assert(why:find "^moonwire.lua:3: ", why)
    end)
  end
end)

describe("docs/guarantees.md", function()
  local known = {}
  for _, case in ipairs(require("spec.contract.cases").list) do known[case.name] = true end

  it("names cases that exist", function()
    local count = 0
    for list in read("docs/guarantees.md"):gmatch "\nCases: ([^\n]+)" do
      for name in list:gmatch "`([%w-]+)`" do
        assert(known[name], name .. " is no case")
        count = count + 1
      end
    end
    assert(count > 10)
  end)

  it("and so does the table in README.md", function()
    local count = 0
    for list in read("README.md"):gmatch "%[([%w, -]+)%]%(spec/contract/cases%.lua%)" do
      for name in list:gmatch "[%w-]+" do
        assert(known[name], name .. " is no case")
        count = count + 1
      end
    end
    assert(count > 10)
  end)
end)

-- ---- the API: docs/lua-api.md and the annotations against what is there ----

local PROJECT_ONLY = { "connect", "pipeline", "settings", "env" } -- put into mw when a project is read

local function public_names()
  local names = {}
  for name in pairs(require "moonwire") do names[#names + 1] = name end
  local have = {}
  for _, name in ipairs(names) do have[name] = true end
  for _, name in ipairs(PROJECT_ONLY) do
    if not have[name] then names[#names + 1] = name end
  end
  table.sort(names)
  return names
end

describe("docs/lua-api.md", function()
  local text = read "docs/lua-api.md"
  local annotations = read "lua/moonwire/meta/moonwire.lua"

  it("has a heading for every public name, and the annotations know it", function()
    for _, name in ipairs(public_names()) do
      assert(text:find("\n### mw." .. name .. "\n", 1, true), "no heading for mw." .. name)
      assert(annotations:find("mw%." .. name .. "%f[^%w_]"), "no annotation for mw." .. name)
    end
  end)

  it("has no heading for what does not exist", function()
    local have = {}
    for _, name in ipairs(public_names()) do have[name] = true end
    for name in text:gmatch "\n### mw%.([%w_]+)\n" do assert(have[name], "mw." .. name .. " does not exist") end
  end)

  it("names every function of the tables in mw", function()
    for _, name in ipairs { "log", "metrics", "shared", "json" } do
      for fn in pairs(require("moonwire")[name]) do
        assert(text:find("%f[%w_]" .. fn .. "%f[^%w_]"), ("mw.%s.%s is not on the page"):format(name, fn))
        assert(annotations:find(("mw.%s.%s("):format(name, fn), 1, true) or fn == "null",
          ("mw.%s.%s has no annotation"):format(name, fn))
      end
    end
  end)

  it("has a heading for every field of a message", function()
    local source = read "lua/moonwire/internal/api/message.lua"
    for name in source:match("local FIELDS = (%b{})"):gmatch '"([%w_]+)"' do
      assert(text:find("\n### msg." .. name .. "\n", 1, true), "no heading for msg." .. name)
      assert(annotations:find("---@field " .. name .. " ", 1, true), "no annotation for msg." .. name)
    end
    for name in source:gmatch "function methods%.([%w_]+)" do
      assert(text:find("\n### msg:" .. name .. "\n", 1, true), "no heading for msg:" .. name)
      assert(annotations:find("Message:" .. name .. "(", 1, true), "no annotation for msg:" .. name)
    end
  end)

  it("names every option of mw.publish", function()
    for name in read("lua/moonwire/internal/api/publish.lua"):match("local OPTIONS = (%b{})"):gmatch '"([%w_]+)"' do
      assert(section("docs/lua-api.md", "mw.publish"):find("| `" .. name .. "` |", 1, true), name)
    end
  end)

  it("has a heading for every ready-made handler", function()
    local found = process.run { "find", "handlers", "-name", "*.lua", cwd = root }
    for name in found.stdout:gmatch "handlers/([%w_]+)%.lua" do
      assert(text:find("\n### " .. name .. "\n", 1, true), "no heading for " .. name)
    end
  end)

  it("has annotations for every function of moonwire.testing", function()
    local known = read "lua/moonwire/meta/testing.lua"
    assert(loadstring(annotations) and loadstring(known))
    for file, kind in pairs { ["testing"] = "M.", ["testing/app"] = "App:", ["testing/trouble"] = "App:" } do
      local public, count = kind == "M." and "testing." or kind, 0
      for name in read(("lua/moonwire/%s.lua"):format(file)):gmatch("\nfunction " .. kind .. "([%w_]+)%(") do
        assert(known:find(("function %s%s("):format(public, name), 1, true), "no annotation for " .. name)
        count = count + 1
      end
      assert(count > 0, file)
    end
  end)
end)

-- ---- the demo ----

describe("examples/orders/demo", function()
  it("tells its story, and ends", function()
    local dir = process.tmpdir() .. "/orders"
    assert(process.run({ "cp", "-r", root .. "/examples/orders", dir }).code == 0)
    local result = process.run { dir .. "/demo", env = { MOONWIRE = binary, KEEP = false }, timeout = 60 }
    local out = result.stdout
    assert(result.code == 0, out .. result.stderr)
    local function count(text)
      local n, at = 0, 0
      repeat
        at = out:find(text, at + 1, true)
        n = n + (at and 1 or 0)
      until not at
      return n
    end
    assert.equal(3, count 'msg="order accepted"')
    assert.equal(2, count 'msg="failed, will retry"')
    assert.equal(2, count 'msg="dead letter"')
    assert.equal(1, count 'msg="duplicate skipped"')
    assert.equal(3, count 'msg="email sent"')
    -- the cups wait for the kettle of the same customer
    assert(out:find 'order accepted[^\n]*id=o%-2.*order accepted[^\n]*id=o%-3', out)
    -- every command it proposes works, where one is proposed to a person without a terminal
    for line in out:match("Try next(.*)$"):gmatch "\n  ([^#\n][^\n]*)" do
      if core.source "lua/moonwire/cli/verbs/test.lua" or not line:find(" test ", 1, true) then
        local tried = process.run { "bash", "-c", line, timeout = 60 }
        assert(tried.code == 0, line .. "\n" .. tried.stdout .. tried.stderr)
      end
    end
  end)
end)
