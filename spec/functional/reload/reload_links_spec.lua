-- What a watch sees of links: a project that is deployed by changing `current -> releases/2`, files that are links as
-- Kubernetes makes them of a ConfigMap, and what is not the project's business.
local clock = require "spec.support.wait"
local core = require "moonwire.core"
local process = require "spec.support.process"

local binary = os.getenv "MOONWIRE_BIN"
local QUIET = 0.4 -- seconds without a change, when there should be none: four times what a change waits for others

describe("watching", function()
  local dir, watch

  before_each(function() dir = process.tmpdir() end)
  after_each(function()
    watch = nil
    collectgarbage()
  end)

  local function sh(script)
    local result = process.run { "sh", "-ec", 'cd "$1" && ' .. script, "sh", dir }
    assert.equal(0, result.code, result.stderr)
  end

  local function start(path) watch = assert(core.watch(dir .. "/" .. path)) end

  local function changes(seconds)
    local ends = clock.now() + seconds
    repeat
      core.step(10)
      if watch:changed() then return true end
    until clock.now() > ends
    return false
  end

  local function sees(script)
    sh(script)
    assert.is_true(changes(10), "not seen: " .. script)
    while changes(QUIET) do end -- what was seen in two parts
  end

  local function ignores(script)
    sh(script)
    assert.is_false(changes(QUIET), "seen: " .. script)
  end

  it("sees that a link leads to another release, and then what changes there", function()
    sh "mkdir -p releases/1 releases/2; echo 1 > releases/1/moonwire.lua; echo 2 > releases/2/moonwire.lua"
    sh "ln -s releases/1 current"
    start "current"
    sees "echo more >> releases/1/moonwire.lua"
    sees "ln -sfn releases/2 current"
    sees "echo more >> releases/2/moonwire.lua"
    ignores "echo more >> releases/1/moonwire.lua"
    sees 'ln -s "$1/releases/1" next; mv -T next current' -- absolute, and by a rename
    sees "echo more >> releases/1/moonwire.lua"
    ignores "ln -sfn releases/1 current; echo > other.lua; ln -s releases/2 beside; mkdir -p new; echo > new/x.lua"
  end)

  it("sees it when the link was away for a while", function()
    sh "mkdir -p releases/1 releases/2; echo 1 > releases/1/moonwire.lua; echo 2 > releases/2/moonwire.lua"
    sh "ln -s releases/1 current"
    start "current"
    ignores "rm current"
    ignores "mkdir releases/3; ln -s releases/none current"
    ignores "rm current"
    sees "ln -s releases/2 current"
    sees "echo more >> releases/2/moonwire.lua"
  end)

  it("sees any link on the way, and a folder that takes the place of another", function()
    sh "mkdir -p real/apps/shop; cd real/apps/shop; mkdir v1 v2; echo 1 > v1/a.lua; echo 2 > v2/a.lua"
    sh "ln -s real/apps srv; ln -s v1 real/apps/shop/stable; ln -s ./stable real/apps/shop/current"
    sh "cp -r real/apps other; echo 3 > other/shop/v2/a.lua"
    start "srv/shop/current"
    sees "ln -sfn v2 real/apps/shop/stable"
    sees "mv real/apps/shop/v2 real/apps/shop/old; cp -r other/shop/v2 real/apps/shop/v2"
    sees "ln -sfn other srv"
    sees "echo more >> other/shop/v1/a.lua"
  end)

  it("sees files that are links: of a ConfigMap, and to a file elsewhere", function()
    sh "mkdir -p config/..1 config/..2 elsewhere; echo 1 > config/..1/moonwire.lua; echo 2 > config/..2/moonwire.lua"
    sh "ln -s ..1 config/..data; ln -s ..data/moonwire.lua config/moonwire.lua; echo 1 > elsewhere/x.json"
    sh "ln -s ../elsewhere/x.json config/x.json"
    start "config"
    sees "ln -s ..2 config/..tmp; mv -T config/..tmp config/..data"
    sees "mkdir config/..3; echo 3 > config/..3/moonwire.lua; ln -s ..3 config/..tmp; mv -T config/..tmp config/..data"
    sees "echo more >> elsewhere/x.json"
    sees "echo new > elsewhere/y; mv elsewhere/y elsewhere/x.json"
    ignores "echo > elsewhere/z.json; mkdir config/..4; echo 4 > config/..4/moonwire.lua"
  end)

  it("sees a link to a folder that leads elsewhere, and one that leads in a circle does no harm", function()
    sh "mkdir -p p/lib one two; echo 1 > one/a.lua; echo 2 > two/a.lua; echo > p/moonwire.lua"
    sh "ln -s ../../one p/lib/linked; ln -s loop p/loop; ln -s . p/self; ln -s .. p/lib/up"
    start "p"
    sees "ln -sfn ../../two p/lib/linked"
    sees "echo more >> two/a.lua"
    sees "rm p/lib/linked"
    sees "ln -s ../one p/again"
  end)

  it("does not take other files for the project's", function()
    sh "mkdir -p p/lib; echo > p/moonwire.lua"
    start "p"
    ignores "echo > p/out.txt; echo > p/.moonwire.lua.swp; mkdir p/made p/.git; echo > p/.git/x.lua; rm p/out.txt"
    sees "echo > p/made/x.lua"
    sees "touch p/moonwire.lua"
    sees "mv p/made/x.lua p/made/x.bak"
  end)
end)

describe("run --watch", function()
  local MAIN = [[
local mw = require "moonwire"
mw.pipeline "p" { from = mw.connect "embedded:%s":channel "in", handler = "handler" }
mw.log.info "this is %s"
]]

  it("serves the release that the project's link leads to", function()
    local dir = process.tmpdir()
    for _, release in ipairs { "one", "two" } do
      process.run { "mkdir", "-p", dir .. "/" .. release }
      local file = assert(io.open(dir .. "/" .. release .. "/moonwire.lua", "wb"))
      file:write(MAIN:format(dir .. "/data", release))
      file:close()
      file = assert(io.open(dir .. "/" .. release .. "/handler.lua", "wb"))
      file:write "return { handle = function() end }"
      file:close()
    end
    process.run { { "ln", "-s", "one", "current" }, cwd = dir }
    local child = process.spawn { { binary, "run", "--watch", "current" }, cwd = dir, env = { BROKER_URL = false } }
    local function see(pattern)
      return clock.until_(function() return child:stderr():match(pattern) end, 15, pattern)
    end
    see "msg=started"
    see 'msg="this is one"'
    process.run { { "ln", "-sfn", "two", "current" }, cwd = dir }
    see "msg=reloaded[^\n]*generation=2"
    see 'msg="this is two"'
    assert.equal(0, (child:stop(15)))
  end)
end)
