--- A process that runs without a supervisor (`run --workers 0`) leads its own reloads: it is the only worker. What a
--- supervisor's desk can do, reloading.lua finds here too.
local C = require "moonwire.internal.cdef"
local answers = require "moonwire.cli.process.answers"
local json = require "moonwire.json"
local out = require "moonwire.cli.out"
local reloading = require "moonwire.cli.reload.reloading"
local rounds = require "moonwire.cli.process.rounds"

local now = C.mw_real_seconds

---@param app userdata
---@param answer fun(line: string): string what it answers as a worker
---@return { command: fun(line: string, number: number): string|nil, changed: fun(by: string), beat: fun() } for app:run
return function(app, answer)
  local sleepers, s = {}, {}

  local function arm()
    local soonest
    for _, t in ipairs(sleepers) do soonest = math.min(soonest or math.huge, t.due) end
    if soonest then app:beat(math.max(1, (soonest - now()) * 1000)) end
  end

  local function go_on(t)
    local ok, value = coroutine.resume(t.co)
    if ok and coroutine.status(t.co) == "suspended" then
      t.due = now() + value
      sleepers[#sleepers + 1] = t
      return
    end
    if t.number then app:answer(t.number, ok and value or json.encode { ok = false, problems = tostring(value) }) end
    if not ok then error(value, 0) end
  end

  local function begin(words, number)
    go_on { number = number, co = coroutine.create(function()
      return (json.encode(out.printable(rounds.compose(reloading.reload(s, words))), { sort = true }))
    end) }
    arm()
  end

  function s.workers() return { { state = app:draining() and "draining" or "up" } } end
  function s.round(line, _, which)
    if which and not which[1] then return {} end
    return { { state = "answered", text = answer(line) } }
  end
  function s.sleep(seconds) coroutine.yield(seconds) end
  function s.generation() return app:generation() end
  function s.notify(what) app:announce(what == "reloading") end
  function s.restart() end
  function s.keep() end
  function s.ending() return app:draining() end
  function s.hurry() end
  function s.start(line)
    local _, words = answers.parse(line)
    begin(words)
  end

  local function beat()
    local due, rest, at = {}, {}, now()
    for _, t in ipairs(sleepers) do table.insert(t.due <= at and due or rest, t) end
    sleepers = rest
    for _, t in ipairs(due) do go_on(t) end
    arm()
  end

  local function command(line, number)
    local word, words = answers.parse(line)
    if word ~= "reload" then return answer(line) end
    begin(words, number)
  end

  return { command = command, changed = function() begin {} end, beat = beat }
end
