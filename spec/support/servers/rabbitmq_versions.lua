-- rabbitmq_versions.lua - where a rabbitmq-server is: the system's, or RabbitMQ 4, which fetch_rabbitmq_4 gets from
-- Debian 13 into ~/.cache/moonwire where the system's is older.
local process = require "spec.support.process"

local M = {}

local SYSTEM = "/usr/lib/rabbitmq"
local FETCH_LIMIT = 300

local major -- of the system's server, once it was looked for

-- By the name of its folder: asking the server itself takes seconds.
local function system_major()
  if not major then
    local found = process.run { "find", SYSTEM .. "/lib", "-maxdepth", "1", "-name", "rabbitmq_server-*" }
    major = tonumber(found.stdout:match "rabbitmq_server%-(%d+)") or 0
  end
  return major
end

local function system()
  if process.which(SYSTEM .. "/bin/rabbitmq-server") then return { bin = SYSTEM .. "/bin", env = {} } end
  return nil, "there is no rabbitmq-server here (Debian package: rabbitmq-server)"
end

local fetch -- what became of it; who could not fetch it once does not try again

local function fetched()
  local cache = (os.getenv "XDG_CACHE_HOME" or os.getenv "HOME" .. "/.cache") .. "/moonwire"
  local root = cache .. "/rabbitmq-4-trixie"
  fetch = fetch or process.run { { os.getenv "MOONWIRE_ROOT" .. "/spec/support/servers/fetch_rabbitmq_4", root },
    timeout = FETCH_LIMIT }
  if fetch.code ~= 0 then
    return nil, "RabbitMQ 4 cannot be fetched: " .. (fetch.stdout .. fetch.stderr):sub(1, 500):gsub("%s+$", "")
  end
  return { bin = root .. SYSTEM .. "/bin",
           env = { MW_RABBITMQ_ROOT = root, PATH = root .. "/bin:" .. os.getenv "PATH" } }
end

--- "system" or "4"; where the system's is RabbitMQ 4, they are the same.
function M.which(version)
  if version ~= "system" and version ~= "4" then error("no such RabbitMQ for specs: " .. version, 0) end
  return system_major() >= 4 and "system" or version
end

--- { bin = folder of its programs, env = what they need }; nil and why not.
function M.find(version)
  if version == "4" then return fetched() end
  return system()
end

return M
