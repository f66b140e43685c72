--- The files of a project as one reading sees them: what was read is remembered. So a reload can run the project's
--- specs on the very bytes that it has loaded (`reload --gate spec`), whatever happens to the folder meanwhile.
local M = {}

local ENOENT, ENOTDIR = 2, 20

local function read_disk(path)
  local file, err, code = io.open(path, "rb")
  if not file then return nil, err, code == ENOENT or code == ENOTDIR end
  local text, why = file:read "*a"
  file:close()
  return text, why and ("%s: %s"):format(path, why), false
end

---@param dir string the project's folder
---@param given table<string, string|false>|nil what an earlier reading saw, see unpack; false: there was no such file
function M.new(dir, given)
  local self = { seen = {} }

  ---@return string|nil text, string|nil error, boolean|nil missing there is no such file; false: it cannot be read
  function self.read(relative)
    local text, err, missing
    if given then text = given[relative] end
    if text == nil then text, err, missing = read_disk(dir .. "/" .. relative) end
    self.seen[relative] = text or false
    if text then return text end
    return nil, err or ("%s/%s: No such file or directory"):format(dir, relative), missing ~= false
  end

  --- Also what is there and cannot be read: reading it says why.
  ---@return boolean
  function self.exists(relative)
    if self.seen[relative] then return true end
    local text, _, missing = self.read(relative)
    return text ~= nil or not missing
  end

  return self
end

--- All that was seen, as one text: each file's name and contents, with their lengths in front.
---@param seen table<string, string|false>
---@return string
function M.pack(seen)
  local names, parts = {}, {}
  for name in pairs(seen) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    local text = seen[name]
    parts[#parts + 1] = ("%d %d\n%s%s\n"):format(#name, text and #text or -1, name, text or "")
  end
  return table.concat(parts)
end

---@param packed string
---@return table<string, string|false>
function M.unpack(packed)
  local seen, at = {}, 1
  while at <= #packed do
    local name_len, len, from = packed:match("^(%d+) (%-?%d+)\n()", at)
    name_len, len = tonumber(name_len), tonumber(len)
    local name = packed:sub(from, from + name_len - 1)
    at = from + name_len
    seen[name] = len >= 0 and packed:sub(at, at + len - 1) or false
    at = at + math.max(0, len) + 1
  end
  return seen
end

-- ---- `moonwire test --files`: the project that is tested is read from what was seen, not from its folder ----

local given

---@param dir string the project's folder, absolute and without links
---@param packed string
function M.give(dir, packed) given = { dir = dir, packed = packed } end

---@param dir string
---@return string|nil packed
function M.given_for(dir)
  if not given then return nil end
  local real = require("moonwire.cli.posix").realpath(dir)
  return real == given.dir and given.packed or nil
end

return M
