--- Which Redis commands a handler may send (mw.redis). All handlers of a generation share one connection, where answers
--- are told apart by their order alone: what changes the connection, holds it up, or is not answered by exactly one
--- reply would give others wrong answers, so it is refused before anything is sent.
local M = {}

local SHARED = "%s cannot be used on a connection that other handlers share"
local WATCHING = SHARED .. ": what must be looked at and changed in one step goes into a script, r:eval(text, 1, key)"

local REFUSED = {}
local function refuse(names, text)
  for name in names:gmatch "%S+" do REFUSED[name] = text:format(name) end
end

refuse("SUBSCRIBE PSUBSCRIBE SSUBSCRIBE UNSUBSCRIBE PUNSUBSCRIBE SUNSUBSCRIBE", SHARED) -- answered more than once,
refuse("MONITOR SYNC PSYNC REPLCONF SHUTDOWN QUIT", SHARED) -- or never
refuse("SELECT AUTH HELLO RESET ASKING READONLY READWRITE", SHARED) -- the connection is another one afterwards
refuse("BLPOP BRPOP BLMOVE BLMPOP BRPOPLPUSH BZPOPMIN BZPOPMAX BZMPOP WAIT WAITAOF DEBUG", SHARED) -- others wait
refuse("WATCH UNWATCH", WATCHING)
-- Between MULTI and EXEC nothing is known that could be a reason; and refused by the server it would leave MULTI open.
refuse("DISCARD", "%s: leave out the pipeline instead")

-- The others change the connection: REPLY, TRACKING, CACHING, SETNAME, SETINFO, NO-EVICT, NO-TOUCH, and what comes.
local CLIENT = { ID = true, INFO = true, LIST = true, GETNAME = true, GETREDIR = true, TRACKINGINFO = true, KILL = true,
  PAUSE = true, UNPAUSE = true, UNBLOCK = true, HELP = true }

local function client_problem(command)
  local sub = tostring(command[2] or ""):upper()
  if not CLIENT[sub] then return SHARED:format(("CLIENT " .. sub):gsub("%s+$", "")) end
end

local function blocks(command)
  for i = 2, command.n do
    local word = type(command[i]) == "string" and command[i]:upper()
    if word == "STREAMS" then return false end
    if word == "BLOCK" then return true end
  end
end

--- What goes out for a value; nil when it cannot.
---@return string|nil
function M.text_of(value)
  local kind = type(value)
  if kind == "string" then return value end
  if kind == "number" then
    if value % 1 == 0 and math.abs(value) < 2 ^ 53 then return ("%d"):format(value) end
    return ("%.17g"):format(value)
  end
end

local function one_problem(command)
  local name = command[1]
  if type(name) ~= "string" or name == "" then return "the name of the command is missing" end
  if name:find "[^%w_.-]" then
    return ("%q is no name of a command: each word is an argument, r:call('CONFIG', 'GET', name)"):format(name)
  end
  local upper = name:upper()
  if REFUSED[upper] then return REFUSED[upper] end
  for i = 2, command.n do
    if not M.text_of(command[i]) then
      return ("%s: argument %d must be a string or a number, not %s"):format(upper, i - 1,
        command[i] == nil and "nil" or "a " .. type(command[i]))
    end
  end
  if upper == "CLIENT" then return client_problem(command) end
  if (upper == "XREAD" or upper == "XREADGROUP") and blocks(command) then
    return SHARED:format(upper .. " with BLOCK")
  end
end

--- Why these must not be sent together; nil: they may.
---@param commands table[] each with its length in `n`
---@param pipelined boolean
---@return string|nil
function M.problem(commands, pipelined)
  local open = false
  for _, command in ipairs(commands) do
    local problem = one_problem(command)
    if problem then return problem end
    local upper = command[1]:upper()
    local begins, ends = upper == "MULTI", upper == "EXEC"
    if (begins or ends) and not pipelined then return upper .. " belongs into a pipeline, with what it is about" end
    -- The server would refuse it, and what was begun would stay open.
    if (begins or ends) and command.n > 1 then return upper .. " takes no arguments" end
    if begins and open then return "MULTI inside of MULTI" end
    if ends and not open then return "EXEC without MULTI in the same pipeline" end
    open = begins or open and not ends
  end
  if open then return "MULTI without EXEC in the same pipeline" end
end

return M
