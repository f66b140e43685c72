#include "supervisor/desk.h"

#include <errno.h>
#include <lauxlib.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "process/notify.h"
#include "lua/report.h"
#include "base/hash.h"
#include "base/log.h"

enum { TASKS_MOST = 64, SHOWN_MOST = 20 };

typedef enum { ABSENT, ASKED, ANSWERED, LATE, GONE } answer_state;

typedef struct answer {
    answer_state state;
    pid_t pid;
    char *text;
    size_t len;
} answer;

typedef struct task task;
struct task { /* a command that is being answered */
    task *next;
    mw_desk *desk;
    lua_State *co;
    int ref; /* keeps it alive */
    uint64_t asker;
    uint32_t number; /* of its round; answers to others come too late */
    mw_timer limit;
    bool resting; /* no round: it only sleeps */
    uint32_t count, waiting;
    answer *answers;
};

struct mw_desk {
    mw_supervisor *s;
    task *tasks;
    int command, tools; /* registry references */
    uint32_t numbers, count;
};

/* ---- tasks ---- */

static void forget_answers(task *t) {
    for (uint32_t i = 0; i < t->count; i++) free(t->answers[i].text);
    free(t->answers);
    t->answers = NULL;
    t->count = 0;
}

static void end_task(task *t) {
    task **at = &t->desk->tasks;
    while (*at != t) at = &(*at)->next;
    *at = t->next;
    t->desk->count--;
    mw_timer_stop(&t->limit);
    forget_answers(t);
    luaL_unref(t->desk->s->L, LUA_REGISTRYINDEX, t->ref);
    free(t);
}

static void answer_asker(mw_desk *d, uint64_t asker, const char *text) {
    if (asker && d->s->control) mw_control_answer(d->s->control, asker, text);
}

/* Goes on with what stands on its stack. */
static void go_on(task *t, int arguments) {
    int status = lua_resume(t->co, arguments);
    if (status == LUA_YIELD) return;
    if (status) {
        mw_log_begin(MW_ERROR, "internal error in the supervisor");
        mw_log_text("error", lua_tostring(t->co, -1));
        mw_log_end();
        answer_asker(t->desk, t->asker, "{\"ok\":false,\"problems\":\"internal error, see the log\"}");
    } else {
        answer_asker(t->desk, t->asker, lua_isstring(t->co, -1) ? lua_tostring(t->co, -1) : "{\"ok\":false}");
    }
    end_task(t);
}

void mw_desk_ask(mw_desk *d, uint64_t asker, const char *line) {
    if (d->count == TASKS_MOST) {
        answer_asker(d, asker, "{\"ok\":false,\"problems\":\"too many commands at once\"}");
        return;
    }
    lua_State *L = d->s->L;
    task *t = calloc(1, sizeof *t);
    if (!t) abort();
    *t = (task){.next = d->tasks, .desk = d, .asker = asker, .co = lua_newthread(L)};
    t->ref = luaL_ref(L, LUA_REGISTRYINDEX);
    d->tasks = t;
    d->count++;
    lua_rawgeti(t->co, LUA_REGISTRYINDEX, d->command);
    lua_rawgeti(t->co, LUA_REGISTRYINDEX, d->tools);
    lua_pushstring(t->co, line);
    go_on(t, 2);
}

/* ---- rounds ---- */

static void set_text(lua_State *L, const char *name, const char *text, size_t len) {
    lua_pushlstring(L, text, len);
    lua_setfield(L, -2, name);
}

static void set_number(lua_State *L, const char *name, double value) {
    lua_pushnumber(L, value);
    lua_setfield(L, -2, name);
}

static void push_answers(task *t) {
    static const char *const states[] = {"absent", "asked", "answered", "late", "gone"};
    lua_createtable(t->co, (int)t->count, 0);
    for (uint32_t i = 0; i < t->count; i++) {
        const answer *a = &t->answers[i];
        lua_newtable(t->co);
        set_number(t->co, "worker", i + 1);
        if (a->pid) set_number(t->co, "pid", a->pid);
        set_text(t->co, "state", states[a->state], strlen(states[a->state]));
        if (a->text) set_text(t->co, "text", a->text, a->len);
        lua_rawseti(t->co, -2, (int)i + 1);
    }
}

static void end_round(task *t) {
    mw_timer_stop(&t->limit);
    t->number = 0;
    push_answers(t);
    forget_answers(t);
    go_on(t, 1);
}

static void time_is_up(mw_timer *timer) {
    task *t = mw_container_of(timer, task, limit);
    if (t->resting) {
        t->resting = false;
        go_on(t, 0);
        return;
    }
    for (uint32_t i = 0; i < t->count; i++)
        if (t->answers[i].state == ASKED) t->answers[i].state = LATE;
    end_round(t);
}

static void settle(task *t, answer *a, answer_state state) {
    a->state = state;
    if (--t->waiting == 0) mw_timer_start(t->desk->s->loop, &t->limit, 0, time_is_up); /* from a flat stack */
}

void mw_desk_answered(mw_desk *d, const mw_hand *h, uint32_t number, const char *text, size_t len) {
    task *t = d->tasks;
    while (t && t->number != number) t = t->next;
    if (!t || h->slot >= t->count || t->answers[h->slot].state != ASKED) return;
    answer *a = &t->answers[h->slot];
    a->text = malloc(len + 1);
    if (!a->text) abort();
    memcpy(a->text, text, len);
    a->len = len;
    settle(t, a, ANSWERED);
}

void mw_desk_gone(mw_desk *d, const mw_hand *h) {
    for (task *t = d->tasks; t; t = t->next)
        if (t->number && h->slot < t->count && t->answers[h->slot].state == ASKED)
            settle(t, &t->answers[h->slot], GONE);
}

/* ---- what the command can do ---- */

static mw_desk *desk_of(lua_State *L) { return lua_touserdata(L, lua_upvalueindex(1)); }

static task *task_of(lua_State *L) {
    task *t = desk_of(L)->tasks;
    while (t && t->co != L) t = t->next;
    if (!t) luaL_error(L, "only from within a command");
    return t;
}

static bool is_chosen(lua_State *L, uint32_t worker) {
    lua_rawgeti(L, 3, (int)worker);
    bool chosen = lua_toboolean(L, -1);
    lua_pop(L, 1);
    return chosen;
}

static int l_round(lua_State *L) {
    task *t = task_of(L);
    mw_supervisor *s = t->desk->s;
    size_t len;
    const char *line = luaL_checklstring(L, 1, &len);
    double seconds = luaL_checknumber(L, 2);
    bool chosen = lua_istable(L, 3);
    t->count = mw_crew_count(s->crew);
    t->answers = calloc(t->count, sizeof *t->answers);
    if (!t->answers) abort();
    t->number = ++t->desk->numbers;
    t->waiting = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        const mw_hand *h = mw_crew_hand(s->crew, i);
        t->answers[i].pid = h->pid;
        if (!h->pid || (chosen && !is_chosen(L, i + 1))) continue;
        t->answers[i].state = mw_wire_say(h->wire, MW_SAY_COMMAND, t->number, line, len) ? ASKED : LATE;
        t->waiting += t->answers[i].state == ASKED;
    }
    mw_timer_start(s->loop, &t->limit, t->waiting ? (int64_t)(seconds * 1000) : 0, time_is_up);
    return lua_yield(L, 0);
}

static int l_sleep(lua_State *L) {
    task *t = task_of(L);
    t->resting = true;
    mw_timer_start(t->desk->s->loop, &t->limit, (int64_t)(luaL_checknumber(L, 1) * 1000), time_is_up);
    return lua_yield(L, 0);
}

/* start(line): another command, whose answer nobody waits for */
static int l_start(lua_State *L) {
    mw_desk_ask(desk_of(L), 0, luaL_checkstring(L, 1));
    return 0;
}

static void set_begun(lua_State *L, const mw_supervisor *s, uint32_t slot, const mw_begun *who) {
    size_t len;
    const char *pipeline = mw_begun_pipeline(s->shared, slot, who, &len);
    set_text(L, "id", who->id, mw_begun_len(who));
    if (pipeline) set_text(L, "pipeline", pipeline, len);
}

static void push_worker(lua_State *L, mw_supervisor *s, const mw_hand *h) {
    uint64_t now = mw_loop_mono_ms(s->loop);
    const mw_begun *on = mw_ledger_current(s->shared, h->slot);
    const char *state = !h->pid      ? h->done ? "ended" : "down"
                        : !h->up     ? "starting"
                        : h->leaving ? "draining"
                                     : "up";
    lua_newtable(L);
    set_number(L, "worker", h->slot + 1);
    if (h->pid) set_number(L, "pid", h->pid);
    set_text(L, "state", state, strlen(state));
    set_number(L, "since", (double)(now - h->since) / 1000);
    set_number(L, "restarts", h->restarts);
    if (h->pid && h->up) set_number(L, "still", (double)mw_vigil_still_ms(s->vigil, h) / 1000);
    if (mw_hand_starts_in(h) >= 0) set_number(L, "starts_in", (double)mw_hand_starts_in(h) / 1000);
    if (h->pid && on) set_begun(L, s, h->slot, on);
}

static int l_workers(lua_State *L) {
    mw_supervisor *s = desk_of(L)->s;
    const mw_hand *h;
    lua_newtable(L);
    for (uint32_t i = 0; (h = mw_crew_hand(s->crew, i)); i++) {
        push_worker(L, s, h);
        lua_rawseti(L, -2, (int)i + 1);
    }
    return 1;
}

static mw_shared_slot *slot_of(lua_State *L) {
    mw_supervisor *s = desk_of(L)->s;
    lua_Integer k = luaL_checkinteger(L, 1);
    luaL_argcheck(L, k >= 1 && k <= mw_crew_count(s->crew), 1, "no such worker");
    return &s->shared->slot[k - 1];
}

static int l_tallies(lua_State *L) {
    mw_shared_slot *slot = slot_of(L);
    uint64_t now = mw_loop_mono_ms(desk_of(L)->s->loop);
    int n = 0;
    lua_newtable(L);
    for (uint32_t i = 0; i < MW_TALLIES; i++) {
        mw_tally t = slot->tallies[i]; /* a copy: its worker may write on */
        if (t.state != MW_TALLY_OPEN && t.state != MW_TALLY_LEFT) continue;
        t.name[MW_TALLY_TEXT - 1] = t.channel[MW_TALLY_TEXT - 1] = 0;
        mw_tally_refresh(&t, now);
        mw_report_tally(L, &t, t.name, t.channel);
        if (t.looked_ms) set_number(L, "as_of", (double)(now - t.looked_ms) / 1000);
        lua_rawseti(L, -2, ++n);
    }
    return 1;
}

static int l_begun(lua_State *L) {
    mw_shared_slot *slot = slot_of(L);
    uint32_t place = (uint32_t)lua_tointeger(L, 1) - 1;
    size_t len;
    const char *what = luaL_checklstring(L, 2, &len);
    uint64_t lane = mw_hash64(what, len);
    int n = 0;
    lua_newtable(L);
    for (uint32_t i = 0; i < slot->begun.high && i < MW_LEDGER_ENTRIES && n < SHOWN_MOST; i++) {
        mw_begun who = slot->begun.who[i]; /* a copy: its worker may write on */
        bool same = mw_begun_len(&who) == len && memcmp(who.id, what, len) == 0;
        if (!slot->begun.hash[i] || (who.lane != lane && !same)) continue;
        lua_newtable(L);
        set_begun(L, desk_of(L)->s, place, &who);
        lua_rawseti(L, -2, ++n);
    }
    return 1;
}

static int l_generation(lua_State *L) {
    mw_shared *shared = desk_of(L)->s->shared;
    if (lua_isnumber(L, 1))
        __atomic_store_n(&shared->generation, (uint32_t)lua_tointeger(L, 1), __ATOMIC_RELEASE);
    lua_pushnumber(L, shared->generation);
    return 1;
}

static int l_drain(lua_State *L) {
    mw_supervisor_end(desk_of(L)->s);
    return 0;
}

static int l_hurry(lua_State *L) {
    mw_crew_hurry(desk_of(L)->s->crew);
    return 0;
}

/* Drains it, or kills it when it has not begun: a worker that ends is started again. */
static int l_restart(lua_State *L) {
    mw_hand *h = mw_crew_hand(desk_of(L)->s->crew, (uint32_t)luaL_checkinteger(L, 1) - 1);
    if (h && h->pid && !h->leaving) {
        h->leaving = true;
        kill(h->pid, h->up ? SIGTERM : SIGKILL);
    }
    return 0;
}

static mw_hand *hand_of(lua_State *L) {
    mw_hand *h = mw_crew_hand(desk_of(L)->s->crew, (uint32_t)luaL_checkinteger(L, 1) - 1);
    if (!h) luaL_argerror(L, 1, "no such worker");
    return h;
}

/* keep(worker): what it has read is what is run from now on, by those that start too */
static int l_keep(lua_State *L) {
    if (mw_crew_keep(desk_of(L)->s->crew, hand_of(L)) == 0) return 0;
    mw_log_begin(MW_ERROR, "the new code cannot be kept: a worker that is started again gets the old one");
    mw_log_text("error", strerror(errno));
    mw_log_end();
    return 0;
}

/* anew(worker, gate | nil): it starts with what is in the folder */
static int l_anew(lua_State *L) {
    const char *gate = lua_tostring(L, 2);
    mw_anew how = !gate ? MW_ANEW : strcmp(gate, "spec") == 0 ? MW_ANEW_TESTED : MW_ANEW_UNTESTED;
    mw_crew_start_anew(desk_of(L)->s->crew, hand_of(L), how);
    return 0;
}

static int l_ending(lua_State *L) {
    lua_pushboolean(L, desk_of(L)->s->ending);
    return 1;
}

/* For a worker that cannot be told: it will find it when it starts. */
static int l_pause(lua_State *L) {
    mw_shared_slot *slot = slot_of(L);
    const char *name = lua_tostring(L, 2);
    bool paused = lua_toboolean(L, 3);
    for (uint32_t i = 0; i < MW_TALLIES; i++) {
        mw_tally *t = &slot->tallies[i];
        if (t->state != MW_TALLY_UNUSED && (!name || strncmp(t->name, name, MW_TALLY_TEXT) == 0))
            t->paused = paused;
    }
    return 0;
}

static int l_notify(lua_State *L) {
    mw_supervisor *s = desk_of(L)->s;
    if (strcmp(luaL_checkstring(L, 1), "reloading") == 0)
        mw_notify_reloading();
    else if (s->ready && !s->ending)
        mw_notify_ready(s->loop);
    mw_supervisor_status(s);
    return 0;
}

/* ---- life ---- */

mw_desk *mw_desk_new(mw_supervisor *s) {
    static const luaL_Reg functions[] = {
        {"round", l_round},   {"sleep", l_sleep}, {"workers", l_workers}, {"tallies", l_tallies},
        {"begun", l_begun},   {"drain", l_drain}, {"hurry", l_hurry},     {"restart", l_restart},
        {"keep", l_keep},     {"anew", l_anew},   {"ending", l_ending},   {"generation", l_generation},
        {"notify", l_notify}, {"pause", l_pause}, {"start", l_start},     {NULL, NULL}};
    mw_desk *d = calloc(1, sizeof *d);
    if (!d) abort();
    d->s = s;
    lua_getfield(s->L, 1, "command");
    d->command = luaL_ref(s->L, LUA_REGISTRYINDEX);
    lua_newtable(s->L);
    for (const luaL_Reg *f = functions; f->name; f++) {
        lua_pushlightuserdata(s->L, d);
        lua_pushcclosure(s->L, f->func, 1);
        lua_setfield(s->L, -2, f->name);
    }
    d->tools = luaL_ref(s->L, LUA_REGISTRYINDEX);
    return d;
}

void mw_desk_free(mw_desk *d) {
    if (!d) return;
    while (d->tasks) end_task(d->tasks);
    luaL_unref(d->s->L, LUA_REGISTRYINDEX, d->command);
    luaL_unref(d->s->L, LUA_REGISTRYINDEX, d->tools);
    free(d);
}
