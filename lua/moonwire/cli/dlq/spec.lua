--- moonwire dlq spec: writes a spec from a dead letter. It publishes the same message again and expects no dead letter:
--- it fails now, and passes when the handler is mended.
local broker = require "moonwire.cli.broker.link"
local fail = require "moonwire.cli.fail"
local letters = require "moonwire.cli.dlq.letters"
local out = require "moonwire.cli.out"
local posix = require "moonwire.cli.posix"
local project = require "moonwire.cli.project.folder"
local task = require "moonwire.cli.task"

-- ---- values as Lua source ----

local NAMED = { ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ['"'] = '\\"', ["\\"] = "\\\\" }

local function quoted(text)
  local bytes = out.is_utf8(text) and '[%c"\\]' or '[%c"\\\128-\255]'
  return '"' .. text:gsub(bytes, function(c) return NAMED[c] or ("\\%03d"):format(c:byte()) end) .. '"'
end

--- A body that is text stays readable.
local function body_of(text)
  if not out.is_utf8(text) or text:find "[%z\1-\8\11-\31\127]" or text:find "^\n" or not text:find '["\\\n]' then
    return quoted(text)
  end
  local level = ""
  while text:find("]" .. level .. "]", 1, true) or text:sub(-1 - #level) == "]" .. level do level = level .. "=" end
  return ("[%s[%s]%s]"):format(level, text, level)
end

local function pairs_of(fields, indent)
  local names, lines = {}, {}
  for name in pairs(fields) do names[#names + 1] = name end
  table.sort(names)
  for i, name in ipairs(names) do lines[i] = ("%s[%s] = %s,\n"):format(indent, quoted(name), quoted(fields[name])) end
  return table.concat(lines)
end

local DEFAULT_PRIORITY = 4

local function options_of(letter)
  local lines = { ("      id = %s,\n"):format(quoted(letter.id)) }
  if letter.key then lines[#lines + 1] = ("      key = %s,\n"):format(quoted(letter.key)) end
  if letter.type ~= "" then lines[#lines + 1] = ("      type = %s,\n"):format(quoted(letter.type)) end
  if letter.priority ~= DEFAULT_PRIORITY then
    lines[#lines + 1] = ("      priority = %d,\n"):format(letter.priority)
  end
  local headers = {}
  for name, value in pairs(letter.headers) do
    if not name:find "^mw%-" then headers[name] = value end
  end
  if next(headers) then
    lines[#lines + 1] = ("      headers = {\n%s      },\n"):format(pairs_of(headers, "        "))
  end
  return table.concat(lines)
end

-- ---- the spec ----

local function comment(text)
  return (out.cut(out.plain(text):gsub("%c", " "), 110))
end

--- Seconds since 1970 of 2026-01-31T12:00:00.000Z.
local function seconds_of(text)
  local y, mo, d, h, mi, s = (text or ""):match "^(%d+)%-(%d+)%-(%d+)T(%d+):(%d+):(%d+)"
  if not y then return nil end
  y, mo, d = tonumber(y), tonumber(mo), tonumber(d)
  local a = math.floor((14 - mo) / 12) -- the days since 1970, by the Julian day number
  local years, months = y + 4800 - a, mo + 12 * a - 3
  local days = d + math.floor((153 * months + 2) / 5) + 365 * years + math.floor(years / 4) - math.floor(years / 100)
    + math.floor(years / 400) - 32045 - 2440588
  return days * 86400 + h * 3600 + mi * 60 + s
end

local TEMPLATE = [=[
-- Made by `moonwire dlq spec` from the dead letter $id of $channel.
-- It died at $died after $attempts attempts, class $class:
--   $reason
-- It fails until the handler is mended.$hint
local testing = require "moonwire.testing"

describe($title, function()
  local app
  before_each(function() app = testing.start($start) end)
  after_each(function() app:stop() end)

  it("is handled", function()
    app:publish($origin, $body, {
$options    })
    app:settle()
    assert.equal(1, app:status($pipeline).received)
    assert.dead(app, $pipeline, 0)
  end)
end)
]=]

local function hint_of(letter)
  local text = letter.headers["mw-dead-last-error"] or letter.reason
  if not text:find("mw.http", 1, true) then return "" end
  return "\n-- Its handler asked another service: answer for it with app:http { [\"https://…\"] = { status = 200 } }."
end

local function start_of(letter, dir)
  local parts = {}
  if dir then parts[#parts + 1] = "dir = " .. quoted(dir) end
  local published = seconds_of(letter.headers["mw-dead-published"])
  if published then parts[#parts + 1] = ("now = %d"):format(published) end
  return #parts > 0 and ("{ %s }"):format(table.concat(parts, ", ")) or ""
end

local function text_of(letter, values, dir)
  local h = letter.headers
  local fields = {
    id = comment(letter.id), channel = comment(values.CHANNEL), died = comment(h["mw-dead-time"] or "?"),
    attempts = comment(letter.attempts), class = comment(letter.class), reason = comment(letter.reason),
    hint = hint_of(letter), title = quoted(("dead letter %s of %s"):format(letter.id, values.CHANNEL)),
    start = start_of(letter, dir), origin = quoted(letter.origin), body = body_of(letter.body),
    options = options_of(letter), pipeline = quoted(h["mw-dead-pipeline"]),
  }
  return (TEMPLATE:gsub("%$(%w+)", fields))
end

-- ---- the command ----

local function find(values)
  local found
  local link = broker.open(values, { need = { "browse" } })
  local wanted = { CHANNEL = values.CHANNEL, ID = { values.ID } }
  local _, missing = letters.each(link, wanted, { body = true }, function(letter) found = found or letter end)
  letters.must_be_found(missing, wanted)
  if not found or not found.origin or not found.headers["mw-dead-pipeline"] then
    fail.raise(fail.FAILED, "%s is not a dead letter of Moonwire: nothing says where it came from",
      out.plain(values.ID))
  elseif found.class == "key_dead" then
    fail.raise(fail.FAILED, "%s only followed a dead one of its key, %s: make a spec of that one", out.plain(found.id),
      out.plain(found.key or "?"))
  end
  return found
end

local function default_path(dir, letter)
  return ("%s/spec/dead_%s_spec.lua"):format(dir, (letter.id:gsub("[^%w%-]", "_"):sub(1, 80)))
end

local function write(path, text)
  if posix.exists(path) then fail.raise(fail.FAILED, "%s exists already: nothing was written", path) end
  local ok, why = true, nil
  local folder = path:match "^(.*)/[^/]*$"
  if folder and folder ~= "" then ok, why = posix.mkdir(folder) end
  if not ok then fail.raise(fail.FAILED, "%s", why) end
  local file
  file, why = io.open(path, "wb")
  if not file then fail.raise(fail.FAILED, "cannot write %s", why) end
  ok, why = file:write(text)
  if ok then ok, why = file:close() end
  if not ok then fail.raise(fail.FAILED, "cannot write %s: %s", path, why) end
end

--- Whether a spec at this path finds the project by itself, in a folder above it.
local function is_inside(path, dir)
  local folder = posix.realpath(path:match "^(.*)/[^/]*$" or ".") or ""
  return (folder .. "/"):sub(1, #dir + 1) == dir .. "/"
end

local function run(values)
  local dir = project.dir(values.dir)
  if not posix.exists(dir .. "/moonwire.lua") then
    fail.usage("there is no project in %s: say --dir PROJECT", dir)
  end
  local letter = find(values)
  if values.out == "-" then
    out.write(text_of(letter, values, dir))
    return 0
  end
  local path = values.out or default_path(values.dir or ".", letter):gsub("^%./", "")
  write(path, text_of(letter, values, values.out and not is_inside(path, dir) and dir or nil))
  out.line(path)
  out.flush()
  out.note("it fails until the handler is mended: moonwire test %s", path)
  return 0
end

return {
  name = "dlq spec",
  summary = "Writes a spec from a dead letter: it fails now, and passes when the handler is mended.",
  details = "The spec publishes the same message again, on a memory broker and the virtual clock, at the time of the\n"
    .. "first one. Overwrites nothing.",
  arguments = {
    { "CHANNEL", "the channel of the dead letters, such as orders.dead" },
    { "ID", "which" },
  },
  flags = {
    broker.FLAG,
    { "out", "FILE", "the file, or - for standard output\n(default: spec/dead_ID_spec.lua in the project)",
      short = "o" },
    { "dir", "PROJECT", "the project's folder (default: the current one)", short = "d" },
  },
  examples = {
    "moonwire dlq spec --broker embedded:data orders.dead 0191c0de-7d53-7cc4-9c1b-0f3a1d2b4c5e",
    "moonwire dlq spec --broker embedded:data orders.dead o-7 --dir shop --out shop/spec/o7_spec.lua",
  },
  run = function(values)
    broker.channel(values.CHANNEL)
    return task.run(function() return run(values) end)
  end,
}
