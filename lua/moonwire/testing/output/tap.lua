--- TAP, for `moonwire test -o tap`: an output of busted's. A name stays on its line and cannot say "# TODO" or
--- "# SKIP", which would turn a failure into none. When a handler does not come back from a C call, C writes the end.
local C = require "moonwire.internal.cdef"
local events = require "moonwire.testing.output.events"

local FAILED = 1 -- the exit code

local function plain(name) return (name:gsub("[%c\127]", " "):gsub("[\\#]", "\\%0")) end

local function comment(text)
  return "# " .. text:gsub("[%z\1-\9\11-\31\127]", " "):gsub("\n", "\n# ") .. "\n"
end

return function()
  local busted = require "busted"
  local handler = require "busted.outputHandlers.base"()
  local count = 0

  local function write(...)
    io.write(...)
    io.flush() -- what comes last may be written by C
  end

  local function tell_failure(of)
    local trace = of.element.trace or {}
    write(("not ok %d - %s\n"):format(count, plain(of.name)),
      comment(("%s:%d"):format(trace.short_src or "?", trace.currentline or 0)), comment(events.text_of(of.message)))
  end

  handler.testStart = function(element)
    local words = ("not ok %d - %s\n# stuck in a C call past its timeout\nBail out! those behind it did not run\n")
      :format(count + 1, plain(handler.getFullName(element)))
    C.mw_vm_last_words(words, #words, FAILED)
    return nil, true
  end

  handler.testEnd = function(element, _, status)
    count = count + 1
    local name = plain(handler.getFullName(element))
    if status == "pending" then
      local message = handler.pendings[#handler.pendings].message
      write(("ok %d - %s # SKIP %s\n"):format(count, name, message and plain(tostring(message)) or "pending"))
    elseif status == "success" then
      write(("ok %d - %s\n"):format(count, name))
    else
      local list = status == "failure" and handler.failures or handler.errors
      tell_failure(list[#list] or handler.format(element))
    end
    return nil, true
  end

  --- A file that does not load, a setup that fails.
  handler.error = function(element)
    if element.descriptor == "it" then return nil, true end
    count = count + 1
    tell_failure(handler.errors[#handler.errors] or handler.format(element))
    return nil, true
  end

  handler.suiteEnd = function()
    write(("1..%d\n"):format(count))
    return nil, true
  end

  busted.subscribe({ "suite", "end" }, handler.suiteEnd)
  return events.listen(handler)
end
