-- Reload under load: good and broken code in turn while messages flow. None is lost, none is handled twice because of
-- a reload, and the memory of the generations that are gone comes back.
local C = require "moonwire.internal.cdef"
local core = require "moonwire.core"
local ffi = require "ffi"
local process = require "spec.support.process"
local publish = require "moonwire.internal.publish"
local runtime = require "moonwire.internal.runtime"
local shared = require "moonwire.shared"
local wait = require "moonwire.internal.wait"

local SCALE = tonumber(os.getenv "MW_SCALE") or 1
local MESSAGES = math.floor(20000 * SCALE)
local RELOADS = math.floor(300 * SCALE)

local MAIN = [[
local mw = require "moonwire"
mw.pipeline "p" { from = mw.connect "%s":channel "in", handler = "handler", buffer = { count = 500 } }
]]
local HANDLER = [[
local mw = require "moonwire"
return { handle = function(msg)
  local n = tonumber(msg.body)
  if n %% 50 == 0 then mw.sleep(0.003) end
  mw.shared.incr("reload.handled")
  mw.shared.incr("reload." .. n)
  mw.shared.set("reload.generation", %d)
end }
]]

local function resident() return tonumber(io.open("/proc/self/statm"):read("*a"):match "%d+ (%d+)") * 4096 end

for _, scheme in ipairs { "memory", "memory-offset", "embedded" } do
  describe("reload under load, " .. scheme, function()
    local dir, app, url

    local function write(name, text)
      local file = assert(io.open(dir .. "/" .. name, "wb"))
      file:write(text)
      file:close()
    end

    local function publish_all()
      local failure = ffi.new "mw_failure"
      local link = C.mw_vm_link(wait.vm, url, failure)
      assert(C.mw_vm_link_open(link, failure) == 0, ffi.string(failure.text))
      runtime.spawn(function()
        for i = 1, MESSAGES do
          local m = assert(publish.message(tostring(i), { key = "k" .. i % 100 }))
          if i % 100 == 0 then
            assert(publish.now(link, "in", m))
          else
            C.mw_vm_publish(wait.vm, link, "in", m, 0, -1)
            C.mw_message_unref(m)
          end
        end
      end, nil, function(err) assert(err == nil, tostring(err)) end)
    end

    before_each(function()
      dir = process.tmpdir()
      url = scheme == "embedded" and "embedded:" .. dir .. "/data" or scheme .. ":reload-" .. dir:gsub("%W", "")
      write("moonwire.lua", MAIN:format(url))
      write("handler.lua", HANDLER:format(0))
      app = core.app()
      assert(app:load { dir = dir })
      assert(app:start())
    end)

    after_each(function()
      app:drain()
      for _ = 1, 1000 do
        if app:done() then break end
        core.step(10)
      end
      assert.is_true(app:done())
      app:close()
      for i = 1, MESSAGES do shared.delete("reload." .. i) end
      shared.delete "reload.handled"
    end)

    it("loses nothing and handles nothing twice", function()
      publish_all()
      local reloads, refused = 0, 0
      for _ = 1, 200000 do
        core.step(1)
        if reloads < RELOADS then
          reloads = reloads + 1
          write("handler.lua", reloads % 2 == 1 and "return {{ broken" or HANDLER:format(reloads))
          if not app:reload() then refused = refused + 1 end
        end
        if reloads == RELOADS and (shared.get "reload.handled" or 0) >= MESSAGES and app:idle() then break end
      end
      assert.equal(math.ceil(RELOADS / 2), refused)
      assert.equal(MESSAGES, shared.get "reload.handled")
      for i = 1, MESSAGES do
        if shared.get("reload." .. i) ~= 1 then
          error(("message %d was handled %s times"):format(i, tostring(shared.get("reload." .. i))))
        end
      end
    end)

    it("gives back the memory of what is gone", function()
      local function some(n)
        for i = 1, n do
          write("handler.lua", HANDLER:format(i))
          assert(app:reload())
          for _ = 1, 3 do core.step(0) end
        end
        collectgarbage()
        return resident()
      end
      local before = some(40)
      local grown = some(math.floor(200 * SCALE) + 20) - before
      assert.is_true(grown < 8 * 1024 * 1024, ("grew by %d bytes"):format(grown))
    end)
  end)
end
