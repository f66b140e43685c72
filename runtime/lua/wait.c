/* wait.c - what Lua waits for: sleeps, confirms, claims, looks into channels. Lua picks a number, arms one of
 * these with it and yields; the answer becomes a completion, which the next tick takes. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/uuid.h"
#include "lua/vm.h"

struct mw_wait { /* one answer that is owed */
    mw_wait *next, **back;
    mw_vm *vm;
    double waiter;
    bool soon; /* a sleep of nothing: deferred instead of timed */
    union {
        mw_timer timer;
        mw_deferred deferred;
        mw_confirm confirm;
        mw_claimant claimant;
        mw_browser browser;
        mw_planner planner;
        mw_asker asker;
    };
    mw_message *msg;
    char *channel;
    mw_position *positions;
    mw_publication *publications;
    size_t publish_count;
};

static mw_wait *new_wait(mw_vm *vm, double waiter) {
    mw_wait *w = calloc(1, sizeof *w);
    if (!w) abort();
    w->vm = vm;
    w->waiter = waiter;
    w->next = vm->waits;
    w->back = &vm->waits;
    if (w->next) w->next->back = &w->next;
    vm->waits = w;
    return w;
}

static void free_wait(mw_wait *w) {
    *w->back = w->next;
    if (w->next) w->next->back = w->back;
    mw_message_unref(w->msg);
    for (size_t i = 0; i < w->publish_count; i++) {
        mw_message_unref(w->publications[i].msg);
        free((char *)(uintptr_t)w->publications[i].channel);
    }
    free(w->publications);
    free(w->positions);
    free(w->channel);
    free(w);
}

/* ---- completions ---- */

void mw_vm_finish(mw_vm *vm, mw_completion c) {
    if (c.error) c.error = strdup(c.error);
    mw_buf_add(&vm->completions, &c, sizeof c);
    mw_vm_wake(vm);
}

void mw_vm_complete(mw_vm *vm, double waiter) { mw_vm_finish(vm, (mw_completion){.waiter = waiter}); }

bool mw_vm_completion(mw_vm *vm, mw_completion *out) {
    free(vm->last_error);
    vm->last_error = NULL;
    size_t count = vm->completions.len / sizeof *out;
    if (vm->completions_taken == count) {
        vm->completions.len = vm->completions_taken = 0;
        return false;
    }
    if (vm->completions_taken > 64 && vm->completions_taken > count / 2) { /* it may never be empty */
        mw_completion *all = (mw_completion *)(void *)vm->completions.data;
        memmove(all, all + vm->completions_taken, (count - vm->completions_taken) * sizeof *out);
        vm->completions.len -= vm->completions_taken * sizeof *out;
        vm->completions_taken = 0;
    }
    *out = ((mw_completion *)(void *)vm->completions.data)[vm->completions_taken++];
    vm->last_error = (char *)(uintptr_t)out->error;
    return true;
}

static void finish(mw_wait *w, mw_completion c, const mw_error *e) {
    c.waiter = w->waiter;
    if (e) {
        c.error = e->text;
        c.retryable = e->retryable;
    }
    mw_vm_finish(w->vm, c);
    free_wait(w);
}

/* ---- sleeping ---- */

static void wake_up(mw_wait *w) {
    mw_map_remove(&w->vm->sleeping, (uint64_t)w->waiter);
    finish(w, (mw_completion){0}, NULL);
}

static void slept(mw_timer *t) { wake_up(mw_container_of(t, mw_wait, timer)); }
static void yielded(mw_deferred *d) { wake_up(mw_container_of(d, mw_wait, deferred)); }

/* Sleeping for nothing lets the others run and goes on in the next turn, not a tick of the clock later. */
void mw_vm_sleep(mw_vm *vm, double waiter, double seconds) {
    mw_wait *w = new_wait(vm, waiter);
    int64_t ms = (int64_t)(seconds * 1000 + 0.5);
    mw_map_put(&vm->sleeping, (uint64_t)waiter, w);
    mw_loop_now_update(vm->loop); /* the handler may have computed for long: that is not part of its sleep */
    w->soon = ms == 0;
    if (w->soon)
        mw_defer(vm->loop, &w->deferred, yielded);
    else
        mw_timer_start(vm->loop, &w->timer, ms, slept);
}

static bool stop_sleep(mw_vm *vm, double waiter) {
    mw_wait *w = mw_map_remove(&vm->sleeping, (uint64_t)waiter);
    if (!w) return false;
    if (w->soon)
        mw_deferred_cancel(vm->loop, &w->deferred);
    else
        mw_timer_stop(&w->timer);
    free_wait(w);
    return true;
}

void mw_vm_forget(mw_vm *vm, double waiter) { stop_sleep(vm, waiter); }

void mw_vm_free_waits(mw_vm *vm) {
    for (mw_wait *w; (w = vm->waits);)
        if (!stop_sleep(vm, w->waiter)) free_wait(w);
    mw_map_free(&vm->sleeping);
    for (mw_completion c; mw_vm_completion(vm, &c);) {
    }
}

/* ---- publishing now, claiming ---- */

static void confirmed(mw_confirm *c, const mw_error *e) {
    finish(mw_container_of(c, mw_wait, confirm), (mw_completion){0}, e);
}

void mw_vm_publish(mw_vm *vm, mw_link *l, const char *channel, mw_message *m, int64_t delay_ms,
                   double waiter) {
    mw_wait *w = new_wait(vm, waiter);
    w->msg = mw_message_ref(m);
    w->channel = strdup(channel);
    w->confirm.done = confirmed;
    mw_publication p = {.channel = w->channel, .msg = m, .delay_ms = delay_ms};
    mw_link_publish(l, &p, &w->confirm);
}

static void claimed(mw_claimant *c, mw_claim claim, const mw_error *e) {
    finish(mw_container_of(c, mw_wait, claimant), (mw_completion){.value = claim}, e);
}

void mw_vm_claim(mw_vm *vm, mw_delivery *d, const char *key, size_t len, double waiter) {
    mw_wait *w = new_wait(vm, waiter);
    w->claimant.answer = claimed;
    mw_delivery_claim(d, key, len, &w->claimant);
}

/* ---- looking into channels ---- */

struct mw_browsing { /* what was found; Lua frees it */
    mw_position last;
    uint32_t count;
    mw_entry entries[];
};

uint32_t mw_browsing_count(const struct mw_browsing *b) { return b->count; }
void mw_browsing_last(const struct mw_browsing *b, mw_position *out) { *out = b->last; }

mw_message *mw_browsing_entry(const struct mw_browsing *b, uint32_t i, mw_position *position,
                              double *due_ms) {
    *position = b->entries[i].position;
    *due_ms = (double)b->entries[i].due_ms;
    return b->entries[i].msg;
}

void mw_browsing_free(struct mw_browsing *b) {
    for (uint32_t i = 0; b && i < b->count; i++) mw_message_unref(b->entries[i].msg);
    free(b);
}

static void browsed(mw_browser *who, const mw_entry *entries, size_t count, mw_position last,
                    const mw_error *e) {
    mw_wait *w = mw_container_of(who, mw_wait, browser);
    struct mw_browsing *b = NULL;
    if (!e) {
        if (!(b = malloc(sizeof *b + count * sizeof *entries))) abort();
        b->last = last;
        b->count = (uint32_t)count;
        for (size_t i = 0; i < count; i++) {
            b->entries[i] = entries[i];
            mw_message_ref(entries[i].msg);
        }
    }
    finish(w, (mw_completion){.object = b}, e);
}

static void removed(mw_browser *who, size_t count, const mw_error *e) {
    finish(mw_container_of(who, mw_wait, browser), (mw_completion){.value = (double)count}, e);
}

void mw_vm_browse(mw_vm *vm, mw_link *l, const char *channel, const mw_position *after, uint32_t max,
                  bool newest, double waiter) {
    mw_wait *w = new_wait(vm, waiter);
    w->browser = (mw_browser){.browsed = browsed};
    w->channel = strdup(channel);
    mw_link_browse(l, (mw_browse){.channel = w->channel, .after = *after, .max = max, .newest = newest},
                   &w->browser);
}

void mw_vm_remove(mw_vm *vm, mw_link *l, const char *channel, const mw_position *positions, uint32_t count,
                  const char **channels, mw_message **messages, uint32_t publish_count, double waiter) {
    mw_wait *w = new_wait(vm, waiter);
    w->browser = (mw_browser){.removed = removed};
    w->channel = strdup(channel);
    w->positions = calloc(count + 1, sizeof *w->positions);
    w->publications = calloc(publish_count + 1, sizeof *w->publications);
    if (!w->positions || !w->publications) abort();
    for (uint32_t i = 0; i < count; i++) w->positions[i] = positions[i];
    for (uint32_t i = 0; i < publish_count; i++)
        w->publications[i] =
            (mw_publication){.channel = strdup(channels[i]), .msg = mw_message_ref(messages[i])};
    w->publish_count = publish_count;
    mw_removal r = {.channel = w->channel,
                    .positions = w->positions,
                    .count = count,
                    .publish = w->publications,
                    .publish_count = publish_count};
    mw_link_remove(l, r, &w->browser);
}

/* ---- groups ---- */

struct mw_grouping { /* what was found; Lua frees it */
    uint32_t count;
    mw_group_info groups[];
};

bool mw_grouping_at(const struct mw_grouping *g, uint32_t i, mw_group_view *out) {
    if (i >= g->count) return false;
    const mw_group_info *from = &g->groups[i];
    *out = (mw_group_view){.channel = from->channel,
                           .group = from->group,
                           .ready = (double)from->ready,
                           .delayed = (double)from->delayed,
                           .parked = (double)from->parked,
                           .consumers = from->consumers};
    return true;
}

void mw_grouping_free(struct mw_grouping *g) {
    for (uint32_t i = 0; g && i < g->count; i++) {
        free((char *)(uintptr_t)g->groups[i].channel);
        free((char *)(uintptr_t)g->groups[i].group);
    }
    free(g);
}

static void grouped(mw_browser *who, const mw_group_info *groups, size_t count, const mw_error *e) {
    struct mw_grouping *g = NULL;
    if (!e) {
        if (!(g = malloc(sizeof *g + count * sizeof *groups))) abort();
        g->count = (uint32_t)count;
        for (size_t i = 0; i < count; i++) {
            g->groups[i] = groups[i];
            g->groups[i].channel = strdup(groups[i].channel);
            g->groups[i].group = strdup(groups[i].group);
        }
    }
    finish(mw_container_of(who, mw_wait, browser), (mw_completion){.object = g}, e);
}

void mw_vm_groups(mw_vm *vm, mw_link *l, const char *channel, double waiter) {
    mw_wait *w = new_wait(vm, waiter);
    w->browser.grouped = grouped;
    mw_link_groups(l, channel, &w->browser);
}

void mw_vm_remove_group(mw_vm *vm, mw_link *l, const char *channel, const char *group, bool force,
                        double waiter) {
    mw_wait *w = new_wait(vm, waiter);
    w->browser.removed = removed;
    mw_link_remove_group(l, channel, group, force, &w->browser);
}

bool mw_vm_release_key(mw_link *l, const char *channel, const char *group, uint64_t lane) {
    if (!mw_link_driver(l)->release_key) return false;
    mw_link_driver(l)->release_key(mw_link_conn(l), channel, group, lane);
    return true;
}

/* ---- topology ---- */

struct mw_answer { /* a text; Lua frees it */
    size_t len;
    char text[];
};

const char *mw_answer_text(const struct mw_answer *a, size_t *len) {
    *len = a->len;
    return a->text;
}

void mw_answer_free(struct mw_answer *a) { free(a); }

static void planned(mw_planner *p, const char *answer, size_t len, const mw_error *e) {
    struct mw_answer *a = NULL;
    if (!e) {
        if (!(a = malloc(sizeof *a + len))) abort();
        a->len = len;
        memcpy(a->text, answer, len);
    }
    finish(mw_container_of(p, mw_wait, planner), (mw_completion){.object = a}, e);
}

bool mw_vm_topology(mw_vm *vm, mw_link *l, const char *request, size_t len, double waiter) {
    if (!mw_link_driver(l)->topology) return false;
    mw_wait *w = new_wait(vm, waiter);
    w->planner.answered = planned;
    mw_link_topology(l, request, len, &w->planner);
    return true;
}

/* ---- requests ---- */

static void replied(mw_asker *a, mw_message *m, const mw_error *e) {
    finish(mw_container_of(a, mw_wait, asker), (mw_completion){.object = m}, e);
}

bool mw_vm_request(mw_vm *vm, mw_link *l, const char *channel, mw_message *m, double timeout_ms,
                   double waiter) {
    if (!mw_link_driver(l)->request) return false;
    mw_wait *w = new_wait(vm, waiter);
    w->asker.replied = replied;
    w->msg = mw_message_ref(m);
    w->channel = strdup(channel);
    if (!w->channel) abort();
    mw_publication p = {.channel = w->channel, .msg = w->msg};
    mw_link_request(l, &p, (int64_t)timeout_ms, &w->asker);
    return true;
}

/* ---- small things ---- */

double mw_vm_now(mw_vm *vm) { return (double)mw_loop_wall_ms(vm->loop) / 1000; }
double mw_vm_mono(mw_vm *vm) { return (double)mw_loop_mono_ms(vm->loop) / 1000; }
void mw_vm_virtual(mw_vm *vm, bool on) { mw_loop_virtual(vm->loop, on); }
bool mw_vm_is_virtual(mw_vm *vm) { return mw_loop_is_virtual(vm->loop); }
void mw_vm_set_now(mw_vm *vm, double seconds) { mw_loop_set_wall(vm->loop, (int64_t)(seconds * 1000)); }
double mw_vm_advance(mw_vm *vm, double max_ms) { return (double)mw_loop_advance(vm->loop, (int64_t)max_ms); }
double mw_vm_next(mw_vm *vm) { return (double)mw_loop_next_ms(vm->loop); }
bool mw_vm_pending(mw_vm *vm) { return mw_loop_pending(vm->loop); }
void mw_vm_capture(mw_vm *vm, bool on) { mw_log_capture(on ? vm->loop : NULL); }

double mw_real_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

mw_message *mw_message_make(const mw_parts *p, mw_failure *e) {
    if (p->headers_len > MW_HEADERS_MAX) {
        mw_fail((mw_error *)e, MW_EUSAGE, false, "headers of %zu bytes are over the limit of %d",
                p->headers_len, MW_HEADERS_MAX);
        return NULL;
    }
    return mw_message_check(p, (mw_error *)e) ? NULL : mw_message_new(p);
}

int mw_delivery_attach(mw_delivery *d, mw_link *l, const char *channel, mw_message *m, int64_t delay_ms,
                       mw_failure *e) {
    return mw_delivery_publish(d, l, channel, m, delay_ms, (mw_error *)e);
}

int mw_delivery_send(mw_delivery *d, mw_link *l, const char *channel, const mw_parts *p, const char *body,
                     size_t len, int64_t delay_ms, mw_failure *e) {
    mw_parts whole = *p;
    whole.body = body;
    whole.body_len = len;
    mw_message *m = mw_message_make(&whole, e);
    if (!m) return -1;
    int rc = mw_delivery_publish(d, l, channel, m, delay_ms, (mw_error *)e);
    mw_message_unref(m);
    return rc;
}

_Static_assert(sizeof(mw_failure) == sizeof(mw_error), "ffi_api.h mirrors error.h");
_Static_assert(sizeof(mw_headers_out) == sizeof(mw_headers), "ffi_api.h mirrors message.h");
_Static_assert(sizeof(mw_header_view) == sizeof(mw_header), "ffi_api.h mirrors message.h");

bool mw_ffi_headers_next(const char *block, size_t len, size_t *at, mw_header_view *out) {
    return mw_headers_next(block, len, at, (mw_header *)out);
}
void mw_ffi_headers_add(mw_headers_out *h, const char *name, size_t name_len, const char *value,
                        size_t value_len) {
    mw_headers_add((mw_headers *)h, name, name_len, value, value_len);
}
void mw_ffi_headers_free(mw_headers_out *h) { mw_headers_free((mw_headers *)h); }
