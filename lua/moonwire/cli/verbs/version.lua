--- moonwire version
local core = require "moonwire.core"
local out = require "moonwire.cli.out"

return {
  name = "version",
  summary = "Prints the version.",
  flags = { { "json", nil, "as JSON, with the versions of Lua and the system" } },
  examples = { "moonwire version" },
  run = function(values)
    if values.json then
      out.json { version = core.version, lua = jit.version, system = jit.os .. "/" .. jit.arch }
    else
      out.line("moonwire " .. core.version)
    end
    return 0
  end,
}
