/* vm.h - one generation: a lua_State made from one reading of the project, the links and pipelines it
 * declared, and the one way in which C enters Lua: the tick, called after the poll whenever something is
 * ready. The functions that Lua calls back are in ffi_api.h. Loop thread only. */
#pragma once
#include <lua.h>

#include "base/buf.h"
#include "base/hash.h"
#include "core/pipeline.h"
#include "lua/alloc.h"
#include "lua/ffi_api.h"

typedef struct mw_vm mw_vm;
typedef struct mw_wait mw_wait;

struct mw_vm {
    mw_loop *loop;
    lua_State *L;
    int tick; /* registry reference of the Lua function; LUA_NOREF until it is set */
    mw_deferred ticking;
    mw_buf links;     /* of mw_link * */
    mw_buf pipelines; /* of mw_pipeline * */
    mw_buf completions;
    size_t completions_taken;
    char *last_error;
    mw_wait *waits;       /* every wait that C still owes an answer */
    mw_map sleeping;      /* waiter -> mw_wait */
    struct mw_http *http; /* made on first use */
    uint32_t generation;
    mw_alloc alloc;
    bool draining, abandoned;
    uint32_t open_pipelines;
    void (*drained)(mw_vm *vm); /* every pipeline is closed */
    void *owner;
};

mw_vm *mw_vm_new(mw_loop *loop, uint32_t generation);
void mw_vm_free(mw_vm *vm); /* whatever state it is in; NULL is fine */

int mw_vm_start(mw_vm *vm, mw_error *e); /* opens what the project declared */
void mw_vm_drain(mw_vm *vm);             /* `drained` follows, perhaps at once */
void mw_vm_abandon(mw_vm *vm);           /* as a crash would: nothing is settled or given back by us */
bool mw_vm_idle(mw_vm *vm);

/* Calls the function and arguments on the stack with a traceback; on an error leaves nothing and fills e. */
int mw_vm_call(lua_State *L, int arguments, int results, mw_error *e);

/* wait.c: completing waiters. The text is copied. */
void mw_vm_finish(mw_vm *vm, mw_completion c);
void mw_vm_complete(mw_vm *vm, double waiter); /* for those who only say "done" */
void mw_vm_free_waits(mw_vm *vm);

/* modules.c: libraries, loaders and the preloaded C modules of a fresh state */
void mw_modules_open(mw_vm *vm);
