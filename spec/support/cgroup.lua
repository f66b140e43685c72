-- cgroup.lua - a group of processes with so much memory and no more: what asks for more meets the kernel's OOM killer.
-- Needs a memory controller that may be written to (version 1 or 2), as root usually has.
local process = require "spec.support.process"

local M = {}
local Group = {}
Group.__index = Group

local V1, V2 = "/sys/fs/cgroup/memory", { "/sys/fs/cgroup", "/sys/fs/cgroup/unified" }

local function write(path, text)
  local f = io.open(path, "w")
  return f ~= nil and f:write(text) ~= nil and f:close() == true
end

local function has_memory(root)
  local f = io.open(root .. "/cgroup.controllers")
  local names = f and f:read "*l" or ""
  if f then f:close() end
  return names:find "memory" ~= nil and write(root .. "/cgroup.subtree_control", "+memory")
end

local function place()
  for _, root in ipairs(V2) do
    if has_memory(root) then return root, "memory.max" end
  end
  return V1, "memory.limit_in_bytes"
end

-- nil: not possible here
function M.new(bytes)
  local root, limit = place()
  local dir = root .. "/" .. process.tmpdir():match "[^/]+$"
  if process.run({ "mkdir", dir }).code ~= 0 then return nil end
  local self = setmetatable({ dir = dir }, Group)
  if write(dir .. "/" .. limit, tostring(bytes)) then
    write(dir .. "/memory.swap.max", "0") -- of version 2, where there is swap
    return self
  end
  self:remove()
end

-- The command, run inside.
function Group:wrap(command)
  return { "sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', self.dir, unpack(command) }
end

function Group:remove() process.run { "rmdir", self.dir } end -- when nobody is in it any more

return M
