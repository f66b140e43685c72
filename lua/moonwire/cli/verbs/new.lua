--- moonwire new: makes a project that runs, passes its specs, and can be changed from there.
local fail = require "moonwire.cli.fail"
local json = require "moonwire.json"
local out = require "moonwire.cli.out"
local posix = require "moonwire.cli.posix"

local function where(values)
  local given = values.NAME:gsub("/+$", "")
  local name = given:match "[^/]*$"
  if not name:match "^[%w_][%w_.%-]*$" or #name > 100 then
    fail.usage("%q is not a name for a project: letters, digits, _ - . and at most 100 of them", values.NAME)
  end
  if not values.dir then return name, given end
  if given ~= name then fail.usage "NAME is a plain name when --dir says where the project goes" end
  return name, values.dir == "/" and "/" .. name or values.dir:gsub("/+$", "") .. "/" .. name
end

-- Looks at all of them first: half a project is worse than none.
local function refuse_to_overwrite(dir, files)
  if posix.exists(dir) and not posix.is_dir(dir) then fail.raise(fail.FAILED, "%s is not a folder", dir) end
  for _, file in ipairs(files) do
    local path = dir .. "/" .. file[1]
    if posix.exists(path) then fail.raise(fail.FAILED, "%s exists already: nothing was written", path) end
  end
end

local function write(path, text)
  local ok, err = posix.mkdir((path:match "^(.*)/[^/]*$"))
  if not ok then fail.raise(fail.FAILED, "%s", err) end
  local file, why = io.open(path, "wb")
  if not file then fail.raise(fail.FAILED, "cannot write %s", why) end
  ok, why = file:write(text)
  if ok then ok, why = file:close() end
  if not ok then fail.raise(fail.FAILED, "cannot write %s: %s", path, why) end
end

local META = "/lua/moonwire/meta"

--- Where editors find the library's annotations: beside this binary, installed or just built, and in the usual places.
local function annotations()
  local bin = assert(posix.realpath "/proc/self/exe"):match "^(.*)/[^/]*$"
  local list = json.array()
  for _, dir in ipairs { bin .. "/../share/moonwire", bin .. "/.." } do
    local found = posix.realpath(dir .. META)
    if found then list[#list + 1] = found end
  end
  for _, prefix in ipairs { "/usr/local", "/usr" } do
    local usual = prefix .. "/share/moonwire" .. META
    if list[1] ~= usual then list[#list + 1] = usual end
  end
  return json.encode(list)
end

local function run(values)
  local files = require "moonwire.cli.project.scaffold"
  local name, dir = where(values)
  refuse_to_overwrite(dir, files)
  for _, file in ipairs(files) do
    local text = file[2]:gsub("%f[%w]ANNOTATIONS%f[%W]", annotations)
    write(dir .. "/" .. file[1], (text:gsub("%f[%w]NAME%f[%W]", name)))
    out.line(dir .. "/" .. file[1])
  end
  out.note("\nNext:\n  cd %s\n  moonwire check && moonwire test\n  moonwire run", dir)
  return 0
end

return {
  name = "new",
  summary = "Makes a project: a pipeline, its handler with a schema, a spec. Overwrites nothing.",
  arguments = { { "NAME", "the project's name, or the path of its folder" } },
  flags = { { "dir", "DIR", "make the folder NAME in here instead of the current folder", short = "d" } },
  examples = { "moonwire new shop" },
  run = run,
}
