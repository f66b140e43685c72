-- cmake --install: what is installed works by itself, and is left as it is by those who use it.
local cli = require "spec.functional.cli.support"
local json = require "moonwire.json"
local process = require "spec.support.process"

local build = cli.binary:match "^(.*)/"

local function can_install()
  local file = io.open(build .. "/cmake_install.cmake")
  if file then file:close() end
  return file ~= nil and process.which "cmake" ~= nil
end

-- Root may write everywhere, unless it is told not to.
local function plain_user(words)
  if process.run({ "id", "-u" }).stdout ~= "0\n" then return words end
  return { "setpriv", "--bounding-set=-dac_override,-dac_read_search", "--", unpack(words) }
end

describe("an installation", function()
  local here, prefix
  local function read(path) return here:read("installed/" .. path) end

  setup(function()
    if not can_install() then return end
    here = cli.workdir()
    prefix = here.path .. "/installed"
    local result = process.run { { "cmake", "--install", build, "--prefix", prefix }, timeout = 60 }
    assert(result.code == 0, result.stderr)
    assert(process.run({ "chmod", "-R", "a-w", prefix }).code == 0)
  end)

  teardown(function()
    if prefix then process.run { "chmod", "-R", "u+w", prefix } end
    process.cleanup()
  end)

  it("has the binary, the manual, the documents, the completions and the annotations", function()
    if not here then return pending "needs cmake and a build folder" end
    local version = process.run { { prefix .. "/bin/moonwire", "version" }, cwd = "/" }
    assert.equal(0, version.code)
    assert.truthy(version.stdout:match "^moonwire %d+%.%d+%.%d+\n$")
    for path, text in pairs {
      ["share/man/man1/moonwire.1"] = ".TH MOONWIRE 1", ["share/doc/moonwire/LICENSE"] = "",
      ["share/doc/moonwire/docs/cli.md"] = "## publish", ["share/moonwire/handlers/forward.lua"] = "forward",
      ["share/moonwire/lua/moonwire/meta/moonwire.lua"] = "---@meta",
      ["share/bash-completion/completions/moonwire"] = "_moonwire",
      ["share/zsh/site-functions/_moonwire"] = "#compdef moonwire",
    } do
      assert.truthy((read(path) or path .. " is missing"):find(text, 1, true), path)
    end
    assert.equal(process.run({ "cat", cli.root .. "/README.md" }).stdout, read "share/doc/moonwire/README.md")
    assert.equal(process.run({ "cat", cli.root .. "/docs/README.md" }).stdout, read "share/doc/moonwire/docs/README.md")
  end)

  it("goes below DESTDIR", function()
    if not here then return pending "needs cmake and a build folder" end
    local env = { DESTDIR = here.path .. "/stage" }
    local command = { "cmake", "--install", build, "--prefix", "/usr" }
    assert.equal(0, process.run({ command, env = env, timeout = 60 }).code)
    assert.truthy(here:read "stage/usr/bin/moonwire")
  end)

  it("makes projects whose editors find it", function()
    if not here then return pending "needs cmake and a build folder" end
    assert.equal(0, process.run({ { prefix .. "/bin/moonwire", "new", "shop" }, cwd = here.path }).code)
    local settings = assert(json.decode(here:read "shop/.luarc.json"))
    assert.equal(prefix .. "/share/moonwire/lua/moonwire/meta", settings["workspace.library"][1])
  end)

  it("shows its demo to those who may not write there", function()
    if not here then return pending "needs cmake and a build folder" end
    local demo = prefix .. "/share/moonwire/examples/orders/demo"
    local before = process.run({ "find", prefix, "-newer", prefix .. "/bin/moonwire" }).stdout
    local result = process.run { plain_user { demo }, cwd = here.path, timeout = 60,
      env = { MOONWIRE = prefix .. "/bin/moonwire", TMPDIR = here.path, BROKER_URL = false } }
    assert.equal(0, result.code, result.stdout .. result.stderr)
    assert.truthy(result.stdout:find("working in the copy " .. here.path, 1, true), result.stdout)
    assert.truthy(result.stdout:find("unicorn", 1, true))
    assert.equal(before, process.run({ "find", prefix, "-newer", prefix .. "/bin/moonwire" }).stdout)
  end)
end)
