--- What our outputs of busted's share: which events they hear, and the text of a failure.
local M = {}

---@param message any
---@return string
function M.text_of(message)
  if type(message) == "string" then return message end
  return message == nil and "error without a message" or require "pl.pretty".write(message)
end

--- handler: one of busted's, with testStart, testEnd and error; the last is also called for what is no test.
function M.listen(handler)
  local busted = require "busted"
  busted.subscribe({ "test", "start" }, handler.testStart, { predicate = handler.cancelOnPending })
  busted.subscribe({ "test", "end" }, handler.testEnd, { predicate = handler.cancelOnPending })
  busted.subscribe({ "error" }, handler.error)
  busted.subscribe({ "failure" }, handler.error)
  return handler
end

return M
