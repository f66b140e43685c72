--- The C functions of the runtime, declared from the very headers they are compiled with.
local ffi = require "ffi"
local core = require "moonwire.core"

local HEADERS = { "runtime/core/parts.h", "runtime/core/backoff.h", "runtime/core/spec.h", "runtime/lua/ffi_api.h" }

-- Declarations live as long as the process's first state; a state of its own declares them once.
for _, path in ipairs(HEADERS) do
  local text = assert(core.source(path), path)
  ffi.cdef((text:gsub("#[^\n]*\n", "\n"):gsub("\n%s*__attribute__%b()", "")))
end

return ffi.C
