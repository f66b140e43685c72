#include "lua/vm.h"

#include <lauxlib.h>
#include <lualib.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "http/http.h"

mw_vm *mw_vm_new(mw_loop *loop, uint32_t generation) {
    mw_vm *vm = calloc(1, sizeof *vm);
    if (!vm) abort();
    vm->loop = loop;
    vm->generation = generation;
    vm->tick = LUA_NOREF;
    vm->L = lua_newstate(mw_alloc_lua, &vm->alloc);
    if (!vm->L) abort();
    mw_modules_open(vm);
    return vm;
}

static size_t count(const mw_buf *b) { return b->len / sizeof(void *); }
static mw_pipeline *pipeline_at(const mw_vm *vm, size_t i) {
    return ((mw_pipeline **)(void *)vm->pipelines.data)[i];
}
static mw_link *link_at(const mw_vm *vm, size_t i) { return ((mw_link **)(void *)vm->links.data)[i]; }

void mw_vm_free(mw_vm *vm) {
    if (!vm) return;
    mw_vm_abandon(vm);
    mw_http_free(vm->http);
    mw_vm_free_waits(vm);
    mw_deferred_cancel(vm->loop, &vm->ticking);
    lua_close(vm->L);
    mw_alloc_free(&vm->alloc);
    mw_buf_free(&vm->links);
    mw_buf_free(&vm->pipelines);
    mw_buf_free(&vm->completions);
    free(vm->last_error);
    free(vm);
}

/* The links go first: a driver that still owes answers gives them while everyone is there to take them. */
void mw_vm_abandon(mw_vm *vm) {
    vm->abandoned = true;
    for (size_t i = 0; i < count(&vm->pipelines); i++) mw_pipeline_abandon(pipeline_at(vm, i));
    for (size_t i = 0; i < count(&vm->links); i++) mw_link_close(link_at(vm, i));
    for (size_t i = 0; i < count(&vm->pipelines); i++) mw_pipeline_free(pipeline_at(vm, i));
    vm->links.len = vm->pipelines.len = 0;
}

/* ---- entering Lua ---- */

static int traceback(lua_State *L) {
    if (!lua_isstring(L, 1)) { /* an error object: its own text is better than our trace */
        if (luaL_callmeta(L, 1, "__tostring")) return 1;
        lua_pushfstring(L, "(error object is a %s)", luaL_typename(L, 1));
        return 1;
    }
    luaL_traceback(L, L, lua_tostring(L, 1), 1);
    return 1;
}

int mw_vm_call(lua_State *L, int arguments, int results, mw_error *e) {
    int base = lua_gettop(L) - arguments;
    lua_pushcfunction(L, traceback);
    lua_insert(L, base);
    int status = lua_pcall(L, arguments, results, base);
    lua_remove(L, base);
    if (!status) return 0;
    const char *text = lua_tostring(L, -1);
    mw_fail(e, MW_EUSAGE, false, "%s", text ? text : "unknown error");
    lua_pop(L, 1);
    return -1;
}

static void tick(mw_deferred *d) {
    mw_vm *vm = mw_container_of(d, mw_vm, ticking);
    if (vm->tick == LUA_NOREF || vm->abandoned) return;
    mw_error e;
    lua_rawgeti(vm->L, LUA_REGISTRYINDEX, vm->tick);
    if (mw_vm_call(vm->L, 0, 0,
                   &e)) { /* handlers run protected: this is a fault of ours, say it loudly and go on */
        mw_log_begin(MW_ERROR, "internal error in the dispatcher");
        mw_log_text("error", e.text);
        mw_log_end();
    }
    for (size_t i = 0; i < count(&vm->pipelines); i++) mw_pipeline_flush(pipeline_at(vm, i));
}

void mw_vm_wake(mw_vm *vm) { mw_defer(vm->loop, &vm->ticking, tick); }

mw_http *mw_vm_http(mw_vm *vm) {
    if (!vm->http) vm->http = mw_http_new(vm->loop);
    return vm->http;
}

/* ---- links and pipelines ---- */

mw_link *mw_vm_link(mw_vm *vm, const char *url, mw_failure *e) {
    for (size_t i = 0; i < count(&vm->links); i++)
        if (strcmp(mw_link_key(link_at(vm, i)), url) == 0) return link_at(vm, i);
    mw_link *l = mw_link_new(vm->loop, url, (mw_error *)e);
    if (l) mw_buf_add(&vm->links, &l, sizeof l);
    return l;
}

int mw_vm_link_open(mw_link *l, mw_failure *e) { return mw_link_open(l, (mw_error *)e); }
unsigned mw_vm_link_can(mw_link *l) { return mw_link_driver(l)->can; }
const char *mw_vm_link_driver(mw_link *l) { return mw_link_driver(l)->name; }

int mw_vm_declare(mw_link *l, const char *channel, int64_t retain_age_ms, double retain_count,
                  mw_failure *e) {
    mw_channel_options o = {.retain_age_ms = retain_age_ms, .retain_count = (uint64_t)retain_count};
    if (!mw_link_driver(l)->declare) return 0;
    return mw_link_driver(l)->declare(mw_link_conn(l), channel, &o, (mw_error *)e);
}

static void pipeline_event(void *owner, mw_pipeline *p) {
    (void)p;
    mw_vm_wake(owner);
}

static void pipeline_closed(void *owner, mw_pipeline *p) {
    (void)p;
    mw_vm *vm = owner;
    if (--vm->open_pipelines == 0 && vm->drained) vm->drained(vm);
}

int mw_vm_pipeline_check(const mw_pipeline_spec *spec, mw_failure *e) {
    return mw_pipeline_check(spec, (mw_error *)e);
}

mw_pipeline *mw_vm_pipeline(mw_vm *vm, const mw_pipeline_spec *spec, mw_failure *e) {
    mw_pipeline_events events = {
        .ready = pipeline_event, .expired = pipeline_event, .closed = pipeline_closed, .owner = vm};
    mw_pipeline *p = mw_pipeline_new(spec, events, (mw_error *)e);
    if (!p) return NULL;
    mw_pipeline_set_generation(p, vm->generation);
    mw_buf_add(&vm->pipelines, &p, sizeof p);
    return p;
}

int mw_vm_pipeline_start(mw_pipeline *p, mw_failure *e) { return mw_pipeline_start(p, (mw_error *)e); }

int mw_vm_start(mw_vm *vm, mw_error *e) {
    for (size_t i = 0; i < count(&vm->pipelines); i++) {
        if (mw_pipeline_start(pipeline_at(vm, i), e)) return -1;
        vm->open_pipelines++;
    }
    return 0;
}

void mw_vm_drain(mw_vm *vm) {
    if (vm->draining) return;
    vm->draining = true;
    if (!vm->open_pipelines && vm->drained) vm->drained(vm);
    for (size_t i = 0; i < count(&vm->pipelines); i++) mw_pipeline_drain(pipeline_at(vm, i));
}

bool mw_vm_idle(mw_vm *vm) {
    for (size_t i = 0; i < count(&vm->pipelines); i++)
        if (!mw_pipeline_idle(pipeline_at(vm, i))) return false;
    return true;
}
