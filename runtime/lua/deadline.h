/* deadline.h - deadlines of handlers that compute. While a generation's tick runs, a timer signals the loop's
 * thread every few milliseconds; a handler that is past its deadline then is broken by an error that comes
 * back until the worker has noticed. Compiled code looks for it because LuaJIT's profiler is on: it belongs
 * to one state at a time, so the others that run handlers (generations that retire or are on trial) are
 * interpreted meanwhile. One that cannot be broken, because it does not come back from a C function, takes
 * the process with it. Lua's side is in ffi_api.h. Loop thread only. */
#pragma once
#include <stdbool.h>

typedef struct mw_vm mw_vm;

enum { MW_EXIT_STUCK = 70, MW_READ_LIMIT_MS = 10000, MW_READ_MEMORY = 1 << 30 };

/* Around the reading of a project into it, which is the user's code as well: past the limits it is broken
 * with an error that says where. It is interpreted meanwhile; `compile` turns the compiler on again. */
typedef struct mw_reading {
    mw_vm *before;
} mw_reading;
mw_reading mw_deadline_read(mw_vm *vm);
void mw_deadline_read_end(mw_vm *vm, mw_reading r, bool compile);

void mw_deadline_own(mw_vm *vm);     /* it runs handlers from now on; first come, unless that one retires */
void mw_deadline_disown(mw_vm *vm);  /* before it is closed; not owning is fine */
mw_vm *mw_deadline_begin(mw_vm *vm); /* around its tick; ticks may nest: returns what mw_deadline_end wants */
void mw_deadline_end(mw_vm *before);
