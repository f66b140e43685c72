-- contract_spec.lua - every case on every driver, and the matrix of what was proved.
local cases = require "spec.contract.cases"
local drivers = require "spec.contract.drivers"
local harness = require "spec.support.harness"
local matrix = require "spec.contract.matrix"
local C = require "moonwire.internal.cdef"

local only = os.getenv "MW_DRIVER"

C.mw_log_setup(0, 9) -- workers inside this process would log into busted's output

for _, driver in ipairs(drivers) do
  if not only or only == driver.name then
    describe(driver.name, function()
      local missing = driver.missing and driver.missing()
      if missing then
        io.stderr:write("SKIPPED: the contract on ", driver.name, ", because ", missing, "\n")
        it("has a broker", function() pending(missing) end)
        return
      end
      local record = matrix.begin(driver)
      local probe = harness.new(driver)

      for _, case in ipairs(cases.list) do
        local reason = cases.not_for(case, probe) or driver.skip and driver.skip(case)
        if reason then
          record:not_for(case, reason)
        else
          it(("%s: %s"):format(case.name, case.title), function()
            local h = harness.new(driver, case)
            local ok, err = xpcall(case.run, function(e)
              if type(e) ~= "string" then return e end
              return debug.traceback(e, 2)
            end, h)
            h:close()
            if not ok then
              record:failed(case)
              error(err, 0)
            end
            record:passed(case)
          end)
        end
      end
    end)
  end
end

teardown(function() matrix.write() end)
