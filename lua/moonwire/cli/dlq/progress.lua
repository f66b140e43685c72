--- A progress bar on stderr, and only on a terminal.
local C = require "moonwire.internal.cdef"
local out = require "moonwire.cli.out"
local wait = require "moonwire.internal.wait"

local M = {}

local EVERY = 0.1
local BAR = 30

---@class moonwire.Progress
local Progress = {}
Progress.__index = Progress

--- Is there anybody to see one?
---@return boolean
function M.visible() return out.terminal(2) and true or false end

---@param what string
---@param total integer|nil without it, nothing is drawn
---@return moonwire.Progress
function M.new(what, total)
  local self = { what = what, total = total, drawn = 0, began = C.mw_vm_mono(wait.vm), on = M.visible() }
  return setmetatable(self, Progress)
end

--- Draws, at most ten times a second.
---@param done integer
function Progress:at(done)
  local now = C.mw_vm_mono(wait.vm)
  if not self.on or not self.total or self.total == 0 or now - self.drawn < EVERY then return end
  self.drawn, self.shown = now, true
  local share = math.min(1, done / self.total)
  local full = math.floor(share * BAR)
  local rate = now > self.began and done / (now - self.began) or 0
  local bar = ("#"):rep(full) .. (" "):rep(BAR - full)
  out.err(("\r%s [%s] %d/%d  %.0f/s\27[K"):format(self.what, bar, done, self.total, rate))
end

--- Wipes it away.
function Progress:over()
  if self.shown then out.err "\r\27[K" end
  self.shown = false
end

return M
