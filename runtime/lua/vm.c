#include "lua/vm.h"

#include <lauxlib.h>
#include <lualib.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "redis/calls.h"
#include "http/http.h"
#include "lua/deadline.h"

mw_vm *mw_vm_new(mw_site *site, uint32_t generation) {
    mw_vm *vm = calloc(1, sizeof *vm);
    if (!vm) abort();
    vm->site = site;
    vm->loop = mw_site_loop(site);
    vm->generation = generation;
    vm->tick = LUA_NOREF;
    vm->L = lua_newstate(mw_alloc_lua, &vm->alloc);
    if (!vm->L) abort();
    mw_modules_open(vm);
    return vm;
}

size_t mw_vm_plans(const mw_vm *vm) { return vm->plans.len / sizeof(mw_plan); }
mw_plan *mw_vm_plan(const mw_vm *vm, size_t i) { return &((mw_plan *)(void *)vm->plans.data)[i]; }
static size_t link_count(const mw_vm *vm) { return vm->links.len / sizeof(mw_link *); }
static mw_link *link_at(const mw_vm *vm, size_t i) { return ((mw_link **)(void *)vm->links.data)[i]; }

void mw_vm_free(mw_vm *vm) {
    if (!vm) return;
    mw_deadline_disown(vm);
    for (mw_redis *r = vm->redis, *next; r;
         r = next) { /* what they still owe is answered: it may want a tick */
        next = mw_redis_next(r, NULL);
        mw_redis_free(r);
    }
    mw_deferred_cancel(vm->loop, &vm->ticking);
    for (size_t i = 0; i < mw_vm_plans(vm); i++) {
        mw_plan *plan = mw_vm_plan(vm, i);
        mw_pipeline_disown(plan->p, vm);
        mw_site_release(vm->site, plan->p);
        free((char *)(uintptr_t)plan->spec.name); /* the first of its texts: they are one block */
    }
    for (size_t i = 0; i < link_count(vm); i++) mw_site_release_link(vm->site, link_at(vm, i));
    mw_http_free(vm->http);
    mw_vm_free_waits(vm);
    lua_close(vm->L);
    mw_alloc_free(&vm->alloc);
    mw_buf_free(&vm->links);
    mw_buf_free(&vm->plans);
    mw_buf_free(&vm->completions);
    free(vm->last_error);
    free(vm);
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

/* LuaJIT collects each time the heap has doubled, and then walks all of it, the library too. For a small heap
 * that is every few thousand messages, and a tenth of what a trivial handler costs: so it may have a few
 * megabytes of garbage. A large one doubles, as ever. */
static void pace_collector(mw_vm *vm) {
    enum { GARBAGE = 4 << 20, USUAL = 200, MOST = 400 }; /* percent of what lives */
    size_t pause = 100 + (size_t)GARBAGE * 100 / (vm->alloc.bytes + 1);
    lua_gc(vm->L, LUA_GCSETPAUSE, pause < USUAL ? USUAL : pause > MOST ? MOST : (int)pause);
}

static void tick(mw_deferred *d) {
    mw_vm *vm = mw_container_of(d, mw_vm, ticking);
    if (vm->tick == LUA_NOREF) return;
    mw_error e;
    mw_vm *before = mw_deadline_begin(vm);
    pace_collector(vm);
    for (size_t i = 0; i < mw_vm_plans(vm); i++) mw_pipeline_turn(mw_vm_plan(vm, i)->p, vm);
    lua_rawgeti(vm->L, LUA_REGISTRYINDEX, vm->tick);
    if (mw_vm_call(vm->L, 0, 0, &e)) { /* handlers run protected: a fault of ours; say it loudly and go on */
        mw_log_begin(MW_ERROR, "internal error in the dispatcher");
        mw_log_text("error", e.text);
        mw_log_end();
    }
    mw_deadline_end(before);
    for (size_t i = 0; i < mw_vm_plans(vm); i++) mw_pipeline_flush(mw_vm_plan(vm, i)->p);
    if (vm->retired && !vm->running && !vm->waits && !vm->completions.len) mw_site_retire(vm->site, vm);
}

void mw_vm_retire(mw_vm *vm) {
    vm->retired = true;
    mw_vm_wake(vm);
}

void mw_vm_slice(mw_vm *vm) { mw_slice_begin(vm->loop); }

bool mw_vm_retired(const mw_vm *vm) { return vm->retired; }

void mw_vm_wake(mw_vm *vm) { mw_defer(vm->loop, &vm->ticking, tick); }

mw_http *mw_vm_http(mw_vm *vm) {
    if (!vm->http) vm->http = mw_http_new(vm->loop);
    return vm->http;
}

mw_redis *mw_vm_redis(mw_vm *vm, const char *url, mw_failure *e) {
    for (mw_redis *r = vm->redis; r; r = mw_redis_next(r, NULL))
        if (strcmp(mw_redis_url(r), url) == 0) return r;
    mw_redis *made = mw_redis_new(vm->loop, url, (mw_error *)e);
    if (!made) return NULL;
    if (vm->redis) mw_redis_next(made, vm->redis);
    return vm->redis = made;
}

/* ---- links and pipelines ---- */

mw_link *mw_vm_link(mw_vm *vm, const char *url, mw_failure *e) {
    for (size_t i = 0; i < link_count(vm); i++)
        if (strcmp(mw_link_key(link_at(vm, i)), url) == 0) return link_at(vm, i);
    mw_link *l = mw_site_link(vm->site, url, (mw_error *)e);
    if (l) mw_buf_add(&vm->links, &l, sizeof l);
    return l;
}

int mw_vm_link_open(mw_link *l, mw_failure *e) { return mw_link_open(l, (mw_error *)e); }
unsigned mw_vm_link_can(mw_link *l) { return mw_link_face(l)->can; }
void mw_vm_link_stand_for(mw_link *l, const char *scheme) { mw_link_stand_for(l, mw_driver_find(scheme)); }

int mw_vm_token(mw_link *l, const char *token, const char *principal, double expires_ms,
                const char *const *extensions, size_t extension_count, const char *failure, mw_failure *e) {
    mw_token t = {.token = token,
                  .principal = principal,
                  .expires_ms = (int64_t)expires_ms,
                  .extensions = extensions,
                  .extension_count = extension_count,
                  .failure = failure};
    if (!mw_link_driver(l)->take_token || !mw_link_conn(l))
        return mw_fail((mw_error *)e, MW_EUSAGE, false, "this connection takes no token");
    return mw_link_driver(l)->take_token(mw_link_conn(l), &t, (mw_error *)e);
}

bool mw_vm_token_refused(mw_link *l) {
    const mw_driver *driver = mw_link_driver(l);
    return driver->token_refused && mw_link_conn(l) && driver->token_refused(mw_link_conn(l));
}

bool mw_vm_current(const mw_vm *vm) { return mw_site_current(vm->site) == vm; }

const char *mw_vm_driver_of(const char *scheme) {
    const mw_driver *d = mw_driver_find(scheme);
    return d ? d->name : NULL;
}

int mw_vm_declare(mw_link *l, const char *channel, int64_t retain_age_ms, double retain_count,
                  const mw_setting *settings, size_t setting_count, mw_failure *e) {
    mw_channel_options o = {.retain_age_ms = retain_age_ms,
                            .retain_count = (uint64_t)retain_count,
                            .settings = settings,
                            .setting_count = setting_count};
    if (!mw_link_driver(l)->declare) return 0;
    return mw_link_driver(l)->declare(mw_link_conn(l), channel, &o, (mw_error *)e);
}

static void pipeline_event(void *owner, mw_pipeline *p) {
    (void)p;
    mw_vm_wake(owner);
}

static mw_pipeline_events events_of(mw_vm *vm) {
    return (mw_pipeline_events){.ready = pipeline_event,
                                .expired = pipeline_event,
                                .closed = mw_site_closed,
                                .owner = vm,
                                .keeper = vm->site,
                                .running = &vm->running};
}

int mw_vm_pipeline_check(const mw_pipeline_spec *spec, mw_failure *e) {
    return mw_pipeline_check(spec, (mw_error *)e);
}

static void keep_texts(mw_pipeline_spec *s) {
    const char **texts[] = {&s->name, &s->channel, &s->group, &s->dead_channel};
    size_t size = 0;
    for (size_t i = 0; i < 4; i++) size += strlen(*texts[i]) + 1;
    char *at = malloc(size);
    if (!at) abort();
    for (size_t i = 0; i < 4; i++) {
        size_t n = strlen(*texts[i]) + 1;
        *texts[i] = memcpy(at, *texts[i], n);
        at += n;
    }
}

/* The one that runs already where the source is the same, else a new one; neither is touched before the
 * switch. */
mw_pipeline *mw_vm_pipeline(mw_vm *vm, const mw_pipeline_spec *spec, mw_failure *e) {
    if (mw_pipeline_check(spec, (mw_error *)e)) return NULL;
    mw_plan plan = {.p = mw_site_same(vm->site, spec), .spec = *spec};
    plan.kept = plan.p != NULL;
    if (!plan.p) plan.p = mw_pipeline_new(spec, events_of(vm), (mw_error *)e);
    if (!plan.p) return NULL;
    if (!plan.kept) mw_pipeline_set_generation(plan.p, vm->generation);
    keep_texts(&plan.spec);
    mw_site_hold(vm->site, plan.p);
    mw_buf_add(&vm->plans, &plan, sizeof plan);
    return plan.p;
}

void mw_vm_try(mw_vm *vm, size_t i, double share, uint64_t salt) {
    mw_pipeline_try(mw_vm_plan(vm, i)->p, events_of(vm), vm->generation, share, salt);
}

void mw_vm_adopt(mw_vm *vm, size_t i) {
    mw_plan *plan = mw_vm_plan(vm, i);
    mw_pipeline_adopt(plan->p, &plan->spec, events_of(vm));
    mw_pipeline_set_generation(plan->p, vm->generation);
}
