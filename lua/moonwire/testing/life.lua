--- The life of apps under test: which of them run, how one is loaded, what is done for it between two steps of the
--- loop, and what its end leaves behind.
local C = require "moonwire.internal.cdef"
local core = require "moonwire.core"
local fakes = require "moonwire.testing.fakes"
local ffi = require "ffi"
local files = require "moonwire.internal.config.files"
local nearest = require "moonwire.internal.nearest"
local project = require "moonwire.internal.config.project"
local records = require "moonwire.testing.records"
local redis = require "moonwire.testing.redis"
local turn = require "moonwire.testing.turn"
local wait = require "moonwire.internal.wait"

local M = {}

local apps = setmetatable({}, { __mode = "k" }) -- those that run: they share the loop, and so its clock
M.apps = apps

--- Between two steps of the loop: the project's requests are answered, its log lines taken over.
turn.after_step = function()
  for self in pairs(apps) do
    local problem = self.fake and fakes.serve(self.fake) or self.redis_fake and redis.serve(self.redis_fake)
    if problem then
      self.problem = problem
      error(problem, 0)
    end
  end
  records.take(apps)
end

--- The app reads the project in a state of its own; this one reads it too, to know which channel is on which
--- connection.
function M.look(self, level)
  local given = files.given_for(self.dir)
  local ok, read = core.read(project.read, self.dir, { rewrite = self.rewrite, overrides = self.env,
    files = given and files.unpack(given) })
  if not ok then error(("%s:\n%s"):format(self.dir, tostring(read)), level) end
  if #read.problems > 0 then error(("%s:\n%s"):format(self.dir, table.concat(read.problems, "\n")), level) end
  self.places, self.readers, self.links, self.pipelines = {}, {}, {}, {}
  local failure = ffi.new "mw_failure"
  for _, connection in ipairs(read.connections) do
    if C.mw_vm_link_open(connection.link, failure) ~= 0 then error(ffi.string(failure.text), level) end
    self.links[#self.links + 1] = { link = connection.link, url = connection.url, given = connection.given }
  end
  for _, p in ipairs(read.pipelines) do
    local channel = p.from.name
    self.pipelines[p.name] = { channel = channel, dead = p.dead.name, dead_link = p.dead:link_of() }
    self.places[channel] = self.places[channel] or p.from:link_of()
    self.readers[channel] = self.readers[channel] or p.name
  end
  for _, p in ipairs(read.pipelines) do
    self.places[p.dead.name] = self.places[p.dead.name] or p.dead:link_of()
  end
end

function M.load(self, level)
  local options = { dir = self.dir, rewrite = self.rewrite, files = files.given_for(self.dir) }
  for name, value in pairs(self.env) do options["env." .. name] = tostring(value) end
  local app = core.app()
  local ok, err = app:load(options)
  if ok then ok, err = app:start() end
  if not ok then
    app:close()
    error(("%s:\n%s"):format(self.dir, err), level)
  end
  self.app = app
end

function M.leave(self)
  apps[self] = nil
  if self.fake then C.mw_http_fake(false) end
  if self.redis_fake then C.mw_redis_fake(false) end
  if next(apps) then return end
  records.finish()
  C.mw_vm_virtual(wait.vm, false)
end

-- ---- for methods of an app; errors are those of whoever called the method ----

function M.running(self)
  if not self.app then error("the app is stopped", 3) end
  if fakes.serving then error("an answer to a request cannot run the app", 3) end
  return self.app
end

function M.unknown_pipeline(self, name, level)
  local names = {}
  for known in pairs(self.pipelines) do names[#names + 1] = known end
  table.sort(names)
  local near = nearest(tostring(name), names)
  error(("no pipeline %q%s"):format(tostring(name), near and ("; did you mean %q?"):format(near)
    or "; there are " .. table.concat(names, ", ")), level + 1)
end

return M
