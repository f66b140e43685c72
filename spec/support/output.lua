-- output.lua - busted's plain output, and at its end the specs that took longest: a suite is as slow as we let it be.
local SHOWN, WORTH = 8, 5 -- seconds

return function(options)
  local busted = require "busted"
  local handler = require "busted.outputHandlers.plainTerminal"(options)
  local took = {}

  busted.subscribe({ "test", "end" }, function(element)
    if (element.duration or 0) >= WORTH then
      took[#took + 1] = { seconds = element.duration, name = handler.getFullName(element) }
    end
    return nil, true
  end)

  busted.subscribe({ "exit" }, function()
    table.sort(took, function(a, b) return a.seconds > b.seconds end)
    for i = 1, math.min(SHOWN, #took) do io.write(("  %5.1f s  %s\n"):format(took[i].seconds, took[i].name)) end
    io.flush()
    return nil, true
  end)

  return handler
end
