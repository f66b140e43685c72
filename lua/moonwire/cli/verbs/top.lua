--- moonwire top: status, again and again.
local control = require "moonwire.cli.process.control"
local fail = require "moonwire.cli.fail"
local figures = require "moonwire.cli.process.figures"
local out = require "moonwire.cli.out"
local posix = require "moonwire.cli.posix"
local project = require "moonwire.cli.project.folder"
local task = require "moonwire.cli.task"

local STDIN, STDOUT = 0, 1
local SLICE = 0.1 -- how long a key may wait to be seen
local OTHER_SCREEN, FIRST_SCREEN = "\27[?1049h\27[?25l", "\27[?25h\27[?1049l"

local function frame(dir, each, columns)
  local answers = control.ask(dir, "status", 10)
  local totals = figures.totals(answers)
  local rate, in_flight = 0, 0
  for _, p in ipairs(totals) do rate, in_flight = rate + p.rate, in_flight + p.in_flight end
  local head = ("%s  %s  %s  %.0f/s  %d in flight"):format(os.date "!%H:%M:%SZ", out.plain(project.dir(dir)),
    out.count(#answers, "worker"), rate, in_flight)
  local heads, rows = figures.table(each and figures.each(answers) or totals, each, columns)
  local lines = out.layout(heads, rows, columns)
  for _, line in ipairs(figures.troubles(answers)) do lines[#lines + 1] = columns and out.cut(line, columns) or line end
  table.insert(lines, 1, columns and out.cut(head, columns) or head)
  return lines
end

-- ---- on a terminal ----

local function draw(lines, height)
  local parts = { "\27[H" }
  for i = 1, math.min(#lines, height - 1) do
    parts[#parts + 1] = (i == 2 and out.colour("bold", lines[i]) or lines[i]) .. "\27[K\n"
  end
  out.write(table.concat(parts), "\27[J")
  out.flush()
end

local function quit_pressed()
  if not posix.readable(STDIN) then return false end
  local keys = posix.read(STDIN)
  return keys == "" or keys ~= nil and keys:find "[qQ\3]" ~= nil -- its end, q, Ctrl-C
end

local function pause(seconds, keys) -- true: it was asked to end
  local left = seconds
  repeat
    task.sleep(math.min(SLICE, left))
    left = left - SLICE
    if task.interrupted() or keys and quit_pressed() then return true end
  until left <= 0
end

-- A project that is restarted is no reason to end.
local function try_frame(values)
  local ok, lines = pcall(frame, values.DIR, values.each, out.terminal(STDOUT) or 80)
  if ok then return lines end
  if not fail.is(lines) then error(lines, 0) end
  return { os.date "!%H:%M:%SZ" .. "  " .. tostring(lines) }
end

local function live(values, interval)
  frame(values.DIR) -- nothing there at all is told at once
  local restore = posix.single_keys(STDIN)
  out.write(OTHER_SCREEN)
  local ok, err = pcall(function()
    local left = values.count or math.huge
    repeat
      draw(try_frame(values), posix.lines(STDOUT) or 24)
      left = left - 1
    until left == 0 or pause(interval, restore ~= nil)
  end)
  if restore then restore() end
  io.stdout:write(FIRST_SCREEN)
  io.stdout:flush()
  if not ok then error(err, 0) end
  return 0
end

-- ---- elsewhere ----

local function plain(values, interval)
  local left = values.count or math.huge
  while true do
    for _, line in ipairs(frame(values.DIR, values.each)) do out.line(line) end
    out.flush()
    left = left - 1
    if left == 0 then return 0 end
    task.sleep(interval)
    if task.interrupted() then return 0 end
    out.line ""
  end
end

local function run(values)
  local interval = values.interval or 1
  if interval < 0.1 then fail.usage "--interval is at least 100ms" end
  local how = out.terminal(STDIN) and out.terminal(STDOUT) and live or plain
  return task.run(function() return how(values, interval) end)
end

return {
  name = "top",
  summary = "Shows how the pipelines of a running project stand, again and again, until q or Ctrl-C.",
  details = "The columns are those of `moonwire status`. Without a terminal the frames are printed one after another.",
  arguments = { { "DIR", "the project's folder (default: the current one)", optional = true } },
  flags = {
    { "interval", "TIME", "between two looks (default: 1s)", short = "i", kind = "seconds" },
    { "count", "N", "end after N frames", short = "n", kind = "positive" },
    { "each", nil, "each worker for itself" },
  },
  examples = { "moonwire top shop", "moonwire top --interval 5 --count 12 > an-hour-ago.txt" },
  run = run,
}
