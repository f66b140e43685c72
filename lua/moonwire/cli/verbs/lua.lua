--- moonwire lua FILE: runs a script in a state that may do everything. For specs and benchmarks; not for handlers.
local fail = require "moonwire.cli.fail"

--- The words after FILE belong to the script, whatever they look like.
---@param argv string[] as given to main
---@param from integer
---@return integer
return function(argv, from)
  local path = argv[from]
  if not path then fail.usage "FILE is missing: moonwire lua FILE [arguments]" end
  local chunk, err = loadfile(path)
  if not chunk then fail.raise(fail.FAILED, err) end
  local words = { [0] = path }
  for i = from + 1, #argv do words[i - from] = argv[i] end
  rawset(_G, "arg", words)
  local ok, result = xpcall(chunk, function(e)
    if type(e) == "string" then return debug.traceback(e, 2) end
    return e
  end)
  if not ok then fail.raise(fail.FAILED, tostring(result)) end
  return tonumber(result) or 0
end
