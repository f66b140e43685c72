--- Temporary entry: replaced below.
return function(argv)
  if argv[1] == "lua" then
    local path = argv[2]
    arg = {}
    for i = 3, #argv do arg[i - 2] = argv[i] end
    arg[0] = path
    local chunk = assert(loadfile(path))
    return chunk() or 0
  end
  local core = require "moonwire.core"
  local app = core.app()
  local ok, err = app:load { dir = argv[2] }
  if not ok then io.stderr:write(err, "\n") return 78 end
  ok, err = app:start()
  if not ok then io.stderr:write(err, "\n") return 69 end
  return app:run { once = true }
end
