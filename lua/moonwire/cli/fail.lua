--- How a command ends early: an error value with an exit code and a text for people. main.lua prints it; everything
--- else that is raised is a fault of ours.
local M = {
  FAILED = 1,
  USAGE = 64, -- unknown verb, flag or argument
  UNAVAILABLE = 69, -- the broker cannot be reached or refuses
  INTERNAL = 70,
  CONFIG = 78, -- the project is wrong
}

---@class moonwire.CliFailure
---@field code integer
---@field text string|nil nil: end without a word
local Failure = {}
Failure.__index = Failure
Failure.__tostring = function(self) return self.text or "ended" end

---@return boolean
function M.is(value) return getmetatable(value) == Failure end

--- Ends the command.
---@param code integer
---@param text string|nil
---@param ... any for the text's format
function M.raise(code, text, ...)
  if select("#", ...) > 0 then text = text:format(...) end
  error(setmetatable({ code = code, text = text }, Failure), 0)
end

--- Wrong usage; main.lua adds where to look it up.
function M.usage(text, ...) M.raise(M.USAGE, text, ...) end

return M
