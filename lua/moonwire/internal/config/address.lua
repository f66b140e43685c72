--- Broker addresses as a project writes them: what is relative in them is relative to the project's folder, wherever
--- the process was started.
local M = {}

local FILES = { ca = true, cert = true, key = true } -- options that name files; see docs/brokers/network.md

local function escape(path) return (path:gsub("[%%?&]", { ["%"] = "%25", ["?"] = "%3F", ["&"] = "%26" })) end

local function is_relative(path) return path ~= "" and not path:find "^/" and not path:find "^%%2[Ff]" end

---@param url string
---@param dir string the project's folder, absolute
---@return string
function M.resolve(url, dir)
  local folder = escape(dir)
  local head, query = url:match "^([^?]*)(.*)$"
  local path = head:match "^embedded:(.*)$"
  if path and is_relative(path) then head = "embedded:" .. folder .. "/" .. path end
  return head .. query:gsub("([?&])([^=&]*)=([^&]*)", function(mark, name, value)
    if FILES[name] and is_relative(value) then return mark .. name .. "=" .. folder .. "/" .. value end
  end)
end

return M
