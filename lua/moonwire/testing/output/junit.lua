--- JUnit's XML, for `moonwire test -o junit`: an output of busted's. A handler that does not come back from a C call
--- takes the process with it; the report is complete then, too, with that test as an error: C holds what has ended, and
--- writes it (mw_vm_last_report).
local C = require "moonwire.internal.cdef"
local events = require "moonwire.testing.output.events"
local json = require "moonwire.json"

local FAILED = 1 -- the exit code
local STUCK = "stuck in a C call past its timeout; the tests behind it did not run"
local ENTITIES = { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ["'"] = "&apos;", ['"'] = "&quot;" }

--- XML is UTF-8, and has no control characters, however they are written.
local function escaped(text)
  if not json.encode(text) then text = text:gsub("[\128-\255]", "?") end
  return (text:gsub("\239\191[\190\191]", "?"):gsub("[%z\1-\8\11-\31\127]", "?"):gsub("[&<>'\"]", ENTITIES))
end

local function attribute(text) return (escaped(text):gsub("\n", "&#10;"):gsub("\t", "&#9;")) end

--- kind: failure, error, skipped, or nil for one that passed.
local function case_of(place, name, seconds, kind, text)
  local head = ("\t\t<testcase classname='%s' name='%s' time='%.3f'"):format(attribute(place), attribute(name), seconds)
  if not kind then return head .. "/>\n" end
  return ("%s>\n\t\t\t<%s message='%s'>%s</%s>\n\t\t</testcase>\n"):format(head, kind,
    attribute(text:match "^[^\n]*"), escaped(text), kind)
end

local END = "\t</testsuite>\n</testsuites>\n"

local function place_of(trace)
  return type(trace) == "table" and trace.short_src and ("%s:%d"):format(trace.short_src, trace.currentline or 0) or "?"
end

return function()
  local busted = require "busted"
  local handler = require "busted.outputHandlers.base"()
  local counts = { tests = 0, failure = 0, error = 0, skipped = 0 }
  local cases, began, at = {}, busted.monotime(), os.date "!%Y-%m-%dT%H:%M:%S"
  local written = false

  local function head(errors)
    local numbers = ("tests='%d' failures='%d' errors='%d' skipped='%d' time='%.3f'"):format(counts.tests + errors,
      counts.failure, counts.error + errors, counts.skipped, busted.monotime() - began)
    return ("<?xml version='1.0' encoding='UTF-8'?>\n<testsuites %s>\n"
      .. "\t<testsuite name='moonwire test' timestamp='%s' %s>\n"):format(numbers, at, numbers)
  end

  local function add(...)
    local kind = select(4, ...)
    counts.tests = counts.tests + 1
    if kind then counts[kind] = counts[kind] + 1 end
    cases[#cases + 1] = case_of(...)
    local top = head(1) -- with the one that may be stuck
    C.mw_vm_last_report(top, #top, cases[#cases], #cases[#cases])
  end

  handler.testStart = function(element)
    if counts.tests == 0 then
      local top = head(1)
      C.mw_vm_last_report(top, #top, "", 0)
    end
    local words = case_of(place_of(element.trace), handler.getFullName(element), 0, "error", STUCK) .. END
    C.mw_vm_last_words(words, #words, FAILED)
    return nil, true
  end

  local KINDS = {
    failure = { "failure", "failures" }, error = { "error", "errors" }, pending = { "skipped", "pendings" },
  }

  handler.testEnd = function(element, _, status)
    local kind, list = unpack(KINDS[status] or {})
    local of = list and handler[list][#handler[list]] or {}
    local text = events.text_of(of.message)
    if kind == "skipped" and of.message == nil then text = "pending" end
    add(place_of(element.trace), handler.getFullName(element), element.duration or 0, kind, text)
    return nil, true
  end

  --- A file that does not load, a setup that fails: no test, but the run has failed.
  handler.error = function(element, _, message, trace)
    if element.descriptor ~= "it" then
      add(place_of(element.trace or trace), handler.getFullName(element), 0, "error", events.text_of(message))
    end
    return nil, true
  end

  handler.exit = function()
    if written then return nil, true end
    written = true
    io.write(head(0), table.concat(cases), END)
    io.flush()
    return nil, true
  end

  busted.subscribe({ "exit" }, handler.exit)
  return events.listen(handler)
end
