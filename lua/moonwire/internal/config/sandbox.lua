--- The world of user scripts: standard Lua without ffi, os.execute, io.popen and most of debug; text chunks only; a
--- global by accident is an error. It keeps honest people from accidents; it is not a prison for hostile code.
local C = require "moonwire.internal.cdef"
local fault = require "moonwire.internal.api.fault"
local files = require "moonwire.internal.config.files"
local nearest = require "moonwire.internal.nearest"
local wait = require "moonwire.internal.wait"

local M = {}

local function pick(from, names)
  local to = {}
  for name in names:gmatch "%S+" do to[name] = from[name] end
  return to
end

-- A yield out of the handler itself would leave the message with nobody.
local function yield(...)
  if not coroutine.running() or wait.current and coroutine.running() == wait.current.co then
    error("coroutine.yield: only inside a coroutine of your own; to wait, use mw.sleep", 2)
  end
  if wait.loading then error("coroutine.yield: not while a file is loaded: " .. wait.loading, 2) end
  return coroutine.yield(...)
end

-- In specs time is virtual; elsewhere a loop that waits for os.time must see it pass.
local function virtual_now()
  if C.mw_vm_is_virtual(wait.vm) then return math.floor(C.mw_vm_now(wait.vm)) end
end

local function time(fields)
  if fields ~= nil then return os.time(fields) end
  return virtual_now() or os.time()
end

local function date(format, when) return os.date(format, when or virtual_now() or os.time()) end

local DEPTH = 180 -- coroutines in coroutines: each takes some of the C stack, and LuaJIT does not count
local depth = 0

-- The error that breaks a handler past its deadline is not for a loop over coroutines to swallow.
local function back(ok, ...)
  depth = depth - 1
  if not ok and C.mw_vm_breaking() then error((...), 0) end
  return ok, ...
end

local function resume(co, ...)
  if depth >= DEPTH then return false, "stack overflow: too many coroutines inside of each other" end
  depth = depth + 1
  return back(coroutine.resume(co, ...))
end

local function results(ok, ...)
  if not ok then error((...), 0) end
  return ...
end

local function wrap(fn)
  local co = coroutine.create(fn)
  return function(...) return results(resume(co, ...)) end
end

local function standard()
  local world = pick(_G, [[assert error ipairs next pairs pcall rawequal rawget rawset select setmetatable
    getmetatable tonumber tostring type unpack xpcall _VERSION]])
  world.string = pick(string, "byte char find format gmatch gsub len lower match rep reverse sub upper")
  world.table = pick(table, "concat insert maxn remove sort")
  world.math = pick(math, [[abs acos asin atan atan2 ceil cos cosh deg exp floor fmod frexp huge ldexp log log10 max min
    modf pi pow rad random randomseed sin sinh sqrt tan tanh]])
  world.os = pick(os, "clock date difftime getenv remove rename time tmpname")
  world.os.time, world.os.date = time, date
  world.io = pick(io, "open lines read write type stdout stderr stdin close")
  world.debug = pick(debug, "traceback")
  world.coroutine = pick(coroutine, "create running status")
  world.coroutine.resume, world.coroutine.wrap = resume, wrap
  world.coroutine.yield = yield
  world.bit = pick(require "bit", "tobit tohex bnot band bor bxor lshift rshift arshift rol ror bswap")
  return world
end

local function names_of(world)
  local names = {}
  for name in pairs(world) do names[#names + 1] = name end
  return names
end

local function guard(world)
  local function unknown(_, name)
    local near = type(name) == "string" and nearest(name, names_of(world))
    error(("undefined variable %q%s"):format(tostring(name), near and ("; did you mean %q?"):format(near) or ""), 2)
  end
  local function stray(_, name)
    error(("%q would become a global: write `local %s`"):format(tostring(name), tostring(name)), 2)
  end
  return setmetatable(world, { __index = unknown, __newindex = stray, __metatable = "protected" })
end

--- The text of what a file raised while it was loaded; an error object may say nothing by itself.
---@return string
function M.raised(err, file)
  if type(err) == "string" then -- a stack overflow has no line
    return err:find "^[^\n]-:%d+: " and err or ("%s: %s"):format(file, err)
  end
  if fault.is(err) then return ("%s: %s"):format(file, err.text) end
  local own = type(err) == "table" and getmetatable(err)
  if type(own) == "table" and own.__tostring then return ("%s: %s"):format(file, fault.text(err)) end
  local what = err == nil and "nothing" or "a " .. type(err)
  return ("%s: error() was called with %s instead of a text"):format(file, what)
end

--- One world per project.
---@param dir string the project's folder
---@param builtin fun(name: string): any modules that are given, by name; nil when unknown
---@param texts table|nil files that were read before, see files.lua
function M.new(dir, builtin, texts)
  local world = standard()
  local loaded, loading = {}, {}
  local reader = files.new(dir, texts)
  local self = { world = world, files = reader.seen, read = reader.read }

  --- Compiles text; bytecode is refused.
  function self.compile(text, chunkname)
    if text:byte(1) == 27 then return nil, chunkname .. ": is bytecode; only source text is loaded" end
    if text:sub(1, 2) == "#!" then text = "--" .. text end
    local chunk, err = loadstring(text, "@" .. chunkname)
    if not chunk then return nil, err end
    return setfenv(chunk, world)
  end

  function self.load_file(relative)
    local text, err = reader.read(relative)
    if not text then return nil, err end
    return self.compile(text, relative)
  end

  --- `handlers.orders` -> handlers/orders.lua, as text in the project; nil when there is none.
  function self.find(name)
    local path = name:gsub("%.", "/")
    for _, relative in ipairs { path .. ".lua", path .. "/init.lua", "lua/" .. path .. ".lua" } do
      if reader.exists(relative) then return relative end
    end
    return nil
  end

  --- Loads a module of the project once.
  ---@return any module, string|nil error
  function self.require(name)
    if loaded[name] ~= nil then return loaded[name] end
    if loading[name] then return nil, ("module %q requires itself, through %s"):format(name, loading[name]) end
    local given = builtin(name)
    if given ~= nil then
      loaded[name] = given
      return given
    end
    if not name:match "^[%w_%-%.]+$" or name:find("..", 1, true) then
      return nil, ("%q is not a module name"):format(name)
    end
    local relative = self.find(name)
    if not relative then
      local path = name:gsub("%.", "/")
      return nil, ("module %q not found: there is no %s.lua in the project"):format(name, path)
    end
    local chunk, err = self.load_file(relative)
    if not chunk then return nil, err end
    local before = wait.loading
    loading[name], wait.loading = relative, relative -- nobody may come in between: it would seem to require itself
    local ok, result = pcall(chunk)
    loading[name], wait.loading = nil, before
    if not ok then return nil, M.raised(result, relative) end
    if result == nil then result = true end
    loaded[name] = result
    return result
  end

  -- What a command prints must stay what it is: `check --json` is read by programs.
  function world.print(...)
    if not self.reading then return print(...) end
    local words = {}
    for i = 1, select("#", ...) do words[i] = tostring((select(i, ...))) end
    io.stderr:write(table.concat(words, "\t"), "\n")
  end

  world._G = world
  world.require = function(name)
    if type(name) ~= "string" then error("require: expected a module name", 2) end
    local module, err = self.require(name)
    if module == nil then error(err, 2) end
    return module
  end
  local function load_text(text, chunkname, mode, env)
    if type(text) ~= "string" then return nil, "expected source text" end
    if mode == "b" then return nil, "only source text is loaded, no bytecode" end
    if env ~= nil and type(env) ~= "table" then
      error("load: the environment must be a table, got a " .. type(env), 2)
    end
    local chunk, err = self.compile(text, chunkname or "chunk")
    if not chunk then return nil, err end
    return env and setfenv(chunk, env) or chunk
  end
  world.load, world.loadstring = load_text, load_text
  world.collectgarbage = function(what)
    if what ~= "count" then error("collectgarbage: only \"count\" is possible here", 2) end
    return collectgarbage "count"
  end
  guard(world)
  return self
end

return M
