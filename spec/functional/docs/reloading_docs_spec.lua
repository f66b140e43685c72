-- The reloads of docs/reloading.md, refused as it stands there: each command is run, and must say what the page says.
local clock = require "spec.support.wait"
local process = require "spec.support.process"

local binary, root = os.getenv "MOONWIRE_BIN", os.getenv "MOONWIRE_ROOT"

local function page()
  local file = assert(io.open(root .. "/docs/reloading.md"))
  local text = file:read "*a"
  file:close()
  return text:match "\n## A reload that is refused\n(.-)\n## "
end

-- "…" stands for anything within the line.
local function says(output, line)
  local pattern = line:gsub("%p", "%%%0"):gsub("…", ".-")
  return ("\n" .. output):find("\n" .. pattern) ~= nil
end

describe("docs/reloading.md", function()
  local child

  teardown(function()
    if child then child:stop(15) end
    process.cleanup()
  end)

  it("shows what the commands say", function()
    local bin, dir = process.tmpdir(), process.tmpdir()
    assert(process.run({ "ln", "-s", binary, bin .. "/moonwire" }).code == 0)
    local env = { PATH = bin .. ":" .. os.getenv "PATH", BROKER_URL = false }
    local shop = dir .. "/shop"
    assert(process.run({ binary, "new", "shop", cwd = dir }).code == 0)
    child = process.spawn { { binary, "run", shop }, env = env }
    clock.until_(function() return child:stderr():find("all workers started", 1, true) end, 30, "the start")
    local output, commands = nil, 0
    for block in page():gmatch "\n```console\n(.-)```" do
      for line in block:gmatch "[^\n]+" do
        local command = line:match "^%$ (.*)"
        if command then
          commands = commands + 1
          local ran = process.run { "bash", "-c", command .. " 2>&1", cwd = shop, env = env, timeout = 90 }
          output = ran.stdout .. ran.stderr
        else
          assert(says(output, line), ("%s\nis not what came:\n%s"):format(line, output))
        end
      end
    end
    assert.equal(9, commands)
    assert.equal(0, (child:stop(15)))
    child = nil
  end)
end)
