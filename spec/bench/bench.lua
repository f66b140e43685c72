--- What the benchmarks share: clocks, medians, throw-away projects, the C helpers of fill.c.
local ffi = require "ffi"
local core = require "moonwire.core"

local M = {}

M.build = os.getenv "MW_BUILD" or "build"
M.moonwire = os.getenv "MOONWIRE_BIN" or M.build .. "/moonwire"

ffi.cdef [[
  double mw_bench_now(bool cpu);
  void mw_bench_fill(const char *broker, const char *channel, uint32_t count, uint32_t keys, uint32_t body);
  double mw_bench_bare(uint32_t count, uint32_t keys, uint32_t body, bool cpu);
  void mw_bench_publish(struct mw_link *l, const char *channel, uint32_t count, uint32_t keys, uint32_t body,
    bool typed);
  uint32_t mw_bench_unconfirmed(void);
  double mw_bench_rss(void);
]]

local fill
--- The functions of fill.c, in this process.
function M.fill()
  fill = fill or ffi.load(M.build .. "/bench/fill.so")
  return fill
end

function M.median(list)
  local sorted = {}
  for i, v in ipairs(list) do sorted[i] = v end
  table.sort(sorted)
  local n = #sorted
  return n % 2 == 1 and sorted[(n + 1) / 2] or (sorted[n / 2] + sorted[n / 2 + 1]) / 2
end

--- Runs a command to its end; nil and what it said when it failed.
function M.capture(command)
  local pipe = assert(io.popen(command .. " 2>&1; code=$?; echo; echo $code", "r"))
  local text = pipe:read "*a"
  pipe:close()
  local output, code = text:match "^(.*)\n(%d+)\n$"
  if code ~= "0" then return nil, output end
  return output
end

--- A folder that is gone when `run` returns or fails.
function M.with_folder(run)
  local where = os.getenv "MW_BENCH_DIR" or M.build .. "/bench"
  local folder = assert(M.capture(("mktemp -d %s/run.XXXXXX"):format(where))):match "[^\n]+"
  local ok, a = xpcall(run, debug.traceback, folder)
  os.execute(("rm -rf '%s'"):format(folder))
  if not ok then error(a, 0) end
  return a
end

--- Writes { ["moonwire.lua"] = text, … } into a folder.
function M.write(folder, files)
  for name, text in pairs(files) do
    local parent = name:match "^(.*)/"
    if parent then os.execute(("mkdir -p '%s/%s'"):format(folder, parent)) end
    local f = assert(io.open(folder .. "/" .. name, "w"))
    f:write(text)
    f:close()
  end
end

function M.open(folder)
  local app = core.app()
  assert(app:load { dir = folder })
  assert(app:start())
  return app
end

function M.close(app)
  app:drain()
  repeat core.step(20) until app:done()
  app:close()
end

--- Seconds, wall and CPU, until `finished` says so.
function M.timed(finished)
  local F = M.fill()
  local wall, cpu = F.mw_bench_now(false), F.mw_bench_now(true)
  while not finished() do core.step(20) end
  return F.mw_bench_now(false) - wall, F.mw_bench_now(true) - cpu
end

return M
