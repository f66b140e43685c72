/* vm.h - one generation: a lua_State made from one reading of the project, the links and pipelines it
 * declared, and the one way in which C enters Lua: the tick, called after the poll whenever something is
 * ready. The functions that Lua calls back are in ffi_api.h. Loop thread only. */
#pragma once
#include <lua.h>

#include "base/buf.h"
#include "base/hash.h"
#include "pipeline/pipeline.h"
#include "lua/site.h"
#include "lua/alloc.h"
#include "lua/ffi_api.h"

typedef struct mw_wait mw_wait;

typedef struct mw_plan { /* a pipeline that this generation declares */
    mw_pipeline *p;
    mw_pipeline_spec spec; /* its texts are copies */
    bool kept;             /* it runs already, for the generation before */
} mw_plan;

struct mw_vm {
    mw_loop *loop;
    mw_site *site;
    lua_State *L;
    int tick; /* registry reference of the Lua function; LUA_NOREF until it is set */
    mw_deferred ticking;
    mw_buf links; /* of mw_link *, a reference each */
    mw_buf plans; /* of mw_plan, a reference each */
    mw_buf completions;
    size_t completions_taken;
    char *last_error;
    mw_wait *waits;         /* every wait that C still owes an answer */
    mw_map sleeping;        /* waiter -> mw_wait */
    struct mw_http *http;   /* made on first use */
    struct mw_redis *redis; /* a list of them */
    uint32_t generation;
    uint32_t running; /* deliveries that its handlers have */
    mw_alloc alloc;
    bool retired, watched; /* watched: see watch.h */
    bool crowded;          /* its handler is over the memory limit */
};

mw_vm *mw_vm_new(mw_site *site, uint32_t generation);
void mw_vm_free(mw_vm *vm);   /* only the site calls it; NULL is fine */
void mw_vm_retire(mw_vm *vm); /* takes nothing more; goes with its last task */
size_t mw_vm_plans(const mw_vm *vm);
mw_plan *mw_vm_plan(const mw_vm *vm, size_t i);
void mw_vm_adopt(mw_vm *vm, size_t i); /* the kept pipeline of plan i is its own from now on */

/* Calls the function and arguments on the stack with a traceback; on an error leaves nothing and fills e. */
int mw_vm_call(lua_State *L, int arguments, int results, mw_error *e);

/* wait.c: completing waiters. The text is copied. */
void mw_vm_finish(mw_vm *vm, mw_completion c);
void mw_vm_complete(mw_vm *vm, double waiter); /* for those who only say "done" */
void mw_vm_free_waits(mw_vm *vm);

/* modules.c: libraries, loaders and the preloaded C modules of a fresh state */
void mw_modules_open(mw_vm *vm);
