-- worker.lua - a worker process for specs, where the binary has no `run` yet: moonwire lua spec/support/worker.lua DIR
local core = require "moonwire.core"

local app = core.app()
local ok, drain = app:load { dir = arg[1] }
if not ok then
  io.stderr:write(drain, "\n")
  return drain:sub(1, 1) == "!" and 69 or 78
end
local started, err = app:start()
if not started then
  io.stderr:write(err, "\n")
  return 69
end
local code = app:run { drain = drain }
app:close()
return code
