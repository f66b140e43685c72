#include "lua/site.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "core/backoff.h"
#include "core/shared/shared.h"
#include "lua/vm.h"
#include "lua/deadline.h"

typedef struct held_link {
    mw_link *link;
    uint32_t refs;
} held_link;

typedef struct held_pipeline {
    mw_pipeline *p;
    uint32_t refs; /* generations that know it */
    bool open;     /* started, and not closed */
    bool due;      /* of the current generation, and starts when the one before it has drained */
} held_pipeline;

struct mw_site {
    mw_loop *loop;
    mw_buf links, pipelines, vms; /* of held_link, held_pipeline, mw_vm * */
    mw_vm *current;
    mw_vm *trial; /* a canary, beside it */
    uint32_t generations;
    bool draining, ending;
    mw_deferred sweep;
    mw_timer retry; /* of those that are due and could not start */
    uint32_t tries;
    void (*drained)(void *owner);
    void *owner;
};

static size_t link_count(const mw_site *s) { return s->links.len / sizeof(held_link); }
static held_link *link_at(const mw_site *s, size_t i) { return &((held_link *)(void *)s->links.data)[i]; }
static size_t pipeline_count(const mw_site *s) { return s->pipelines.len / sizeof(held_pipeline); }
static held_pipeline *pipeline_at(const mw_site *s, size_t i) {
    return &((held_pipeline *)(void *)s->pipelines.data)[i];
}
static size_t vm_count(const mw_site *s) { return s->vms.len / sizeof(mw_vm *); }
static mw_vm *vm_at(const mw_site *s, size_t i) { return ((mw_vm **)(void *)s->vms.data)[i]; }

/* Takes item i out of a buffer of equal items; the order of the rest does not matter. */
static void take_out(mw_buf *b, size_t i, size_t size) {
    b->len -= size;
    if (i * size != b->len) memcpy(b->data + i * size, b->data + b->len, size);
}

mw_site *mw_site_new(mw_loop *loop, void (*drained)(void *owner), void *owner) {
    mw_site *s = calloc(1, sizeof *s);
    if (!s) abort();
    s->loop = loop;
    s->drained = drained;
    s->owner = owner;
    return s;
}

/* The links go before the pipelines: a driver that still owes answers gives them while everyone is there to
 * take them. */
void mw_site_free(mw_site *s) {
    if (!s) return;
    s->ending = true;
    for (size_t i = 0; i < pipeline_count(s); i++)
        if (pipeline_at(s, i)->open) mw_pipeline_abandon(pipeline_at(s, i)->p);
    for (size_t i = 0; i < link_count(s); i++) mw_link_close(link_at(s, i)->link);
    s->links.len = 0;
    while (vm_count(s)) mw_site_reject(s, vm_at(s, 0));
    for (size_t i = 0; i < pipeline_count(s); i++) mw_pipeline_free(pipeline_at(s, i)->p);
    mw_deferred_cancel(s->loop, &s->sweep);
    mw_timer_stop(&s->retry);
    mw_buf_free(&s->links);
    mw_buf_free(&s->pipelines);
    mw_buf_free(&s->vms);
    free(s);
}

mw_loop *mw_site_loop(const mw_site *s) { return s->loop; }
mw_vm *mw_site_current(const mw_site *s) { return s->current; }
mw_vm *mw_site_trial(const mw_site *s) { return s->trial; }
bool mw_site_draining(const mw_site *s) { return s->draining; }

/* ---- links ---- */

mw_link *mw_site_link(mw_site *s, const char *url, mw_error *e) {
    for (size_t i = 0; i < link_count(s); i++)
        if (strcmp(mw_link_key(link_at(s, i)->link), url) == 0) {
            link_at(s, i)->refs++;
            return link_at(s, i)->link;
        }
    held_link held = {mw_link_new(s->loop, url, e), 1};
    if (held.link) mw_buf_add(&s->links, &held, sizeof held);
    return held.link;
}

size_t mw_site_links(mw_site *s, mw_link ***list) {
    size_t count = link_count(s);
    *list = malloc((count + 1) * sizeof **list);
    if (!*list) abort();
    for (size_t i = 0; i < count; i++) (*list)[i] = link_at(s, i)->link;
    return count;
}

/* A pipeline that drains outlives its generation, and needs its links until the broker has let it go. */
static bool in_use(const mw_site *s, const mw_link *l) {
    for (size_t i = 0; i < pipeline_count(s); i++) {
        const mw_pipeline_spec *spec = mw_pipeline_settings(pipeline_at(s, i)->p);
        if (pipeline_at(s, i)->open && (spec->from == l || spec->dead == l || spec->dedupe == l)) return true;
    }
    return false;
}

static void close_unused_links(mw_site *s) {
    for (size_t i = 0; i < link_count(s) && !s->ending;) {
        mw_link *l = link_at(s, i)->link;
        if (link_at(s, i)->refs || in_use(s, l)) {
            i++;
        } else {
            take_out(&s->links, i, sizeof(held_link));
            mw_link_close(l);
        }
    }
}

static void start_due(mw_site *s);

static void close_later(mw_deferred *d) {
    mw_site *s = mw_container_of(d, mw_site, sweep);
    start_due(s);
    close_unused_links(s);
}

void mw_site_release_link(mw_site *s, mw_link *l) {
    for (size_t i = 0; i < link_count(s); i++) {
        if (link_at(s, i)->link != l) continue;
        link_at(s, i)->refs--;
        close_unused_links(s);
        return;
    }
}

/* ---- pipelines ---- */

static size_t find(const mw_site *s, const mw_pipeline *p) {
    size_t i = 0;
    while (i < pipeline_count(s) && pipeline_at(s, i)->p != p) i++;
    return i;
}

static bool same_source(const mw_pipeline_spec *a, const mw_pipeline_spec *b) {
    return strcmp(a->name, b->name) == 0 && a->from == b->from && strcmp(a->channel, b->channel) == 0 &&
           strcmp(a->group, b->group) == 0 && a->order == b->order && a->own_key == b->own_key &&
           a->lease_ms == b->lease_ms && a->exactly_once == b->exactly_once &&
           a->tier_count == b->tier_count &&
           memcmp(a->tiers_ms, b->tiers_ms, a->tier_count * sizeof *a->tiers_ms) == 0;
}

mw_pipeline *mw_site_same(mw_site *s, const mw_pipeline_spec *spec) {
    for (size_t i = 0; i < pipeline_count(s); i++) {
        held_pipeline *h = pipeline_at(s, i);
        if (h->open && !mw_pipeline_draining(h->p) && same_source(mw_pipeline_settings(h->p), spec))
            return h->p;
    }
    return NULL;
}

void mw_site_hold(mw_site *s, mw_pipeline *p) {
    size_t i = find(s, p);
    if (i == pipeline_count(s)) mw_buf_add(&s->pipelines, &(held_pipeline){.p = p}, sizeof(held_pipeline));
    pipeline_at(s, i)->refs++;
}

static void free_if_unused(mw_site *s, size_t i) {
    held_pipeline *h = pipeline_at(s, i);
    if (h->refs || h->open || s->ending) return;
    mw_pipeline *p = h->p;
    take_out(&s->pipelines, i, sizeof *h);
    mw_pipeline_free(p);
}

void mw_site_release(mw_site *s, mw_pipeline *p) {
    size_t i = find(s, p);
    if (i == pipeline_count(s)) return;
    pipeline_at(s, i)->refs--;
    free_if_unused(s, i);
}

static bool any_open(const mw_site *s) {
    for (size_t i = 0; i < pipeline_count(s); i++)
        if (pipeline_at(s, i)->open) return true;
    return false;
}

void mw_site_closed(void *site, mw_pipeline *p) {
    mw_site *s = site;
    size_t i = find(s, p);
    pipeline_at(s, i)->open = false;
    free_if_unused(s, i);
    mw_defer(s->loop, &s->sweep, close_later); /* not now: its driver is the one that calls */
    if (s->draining && !any_open(s) && s->drained) s->drained(s->owner);
}

static bool planned(mw_vm *vm, const mw_pipeline *p) {
    for (size_t i = 0; i < mw_vm_plans(vm); i++)
        if (mw_vm_plan(vm, i)->p == p) return true;
    return false;
}

size_t mw_site_pipelines(const mw_site *s, mw_pipeline ***out) {
    size_t count = 0;
    *out = malloc((pipeline_count(s) + 1) * sizeof **out);
    if (!*out) abort();
    for (size_t i = 0; i < pipeline_count(s); i++)
        if (pipeline_at(s, i)->open || (s->current && planned(s->current, pipeline_at(s, i)->p)))
            (*out)[count++] = pipeline_at(s, i)->p;
    return count;
}

bool mw_site_idle(mw_site *s) {
    for (size_t i = 0; i < pipeline_count(s); i++)
        if (pipeline_at(s, i)->due || (pipeline_at(s, i)->open && !mw_pipeline_idle(pipeline_at(s, i)->p)))
            return false;
    return true;
}

void mw_site_drain(mw_site *s) {
    if (s->draining) return;
    mw_site_rollback(s);
    s->draining = true;
    mw_timer_stop(&s->retry);
    for (size_t i = 0; i < pipeline_count(s); i++) pipeline_at(s, i)->due = false;
    if (!any_open(s) && s->drained) s->drained(s->owner);
    for (size_t i = 0; i < pipeline_count(s); i++)
        if (pipeline_at(s, i)->open) mw_pipeline_drain(pipeline_at(s, i)->p);
}

/* ---- generations ---- */

/* Of workers the supervisor counts, so that they agree. */
static uint32_t next_generation(mw_site *s) {
    const mw_shared *shared = mw_shared_all();
    s->generations++;
    if (!shared) return s->generations;
    if (s->generations == 1 && mw_shared_mine()->generation) return mw_shared_mine()->generation;
    return __atomic_load_n(&shared->generation, __ATOMIC_ACQUIRE);
}

mw_vm *mw_site_prepare(mw_site *s) {
    mw_vm *vm = mw_vm_new(s, next_generation(s));
    mw_buf_add(&s->vms, &vm, sizeof vm);
    return vm;
}

void mw_site_reject(mw_site *s, mw_vm *vm) {
    for (size_t i = 0; i < vm_count(s); i++)
        if (vm_at(s, i) == vm) take_out(&s->vms, i, sizeof vm);
    if (s->current == vm) s->current = NULL;
    if (s->trial == vm) s->trial = NULL;
    mw_vm_free(vm);
}

void mw_site_retire(mw_site *s, mw_vm *vm) { mw_site_reject(s, vm); }

static int start(held_pipeline *h, mw_error *e) {
    if (mw_pipeline_start(h->p, e)) return -1;
    h->open = true;
    h->due = false;
    return 0;
}

/* Does one that is not of this generation read with its group, or wait for it? */
static bool has_predecessor(const mw_site *s, mw_vm *vm, const mw_pipeline *p) {
    const mw_pipeline_spec *mine = mw_pipeline_settings(p);
    for (size_t i = 0; i < pipeline_count(s); i++) {
        const held_pipeline *h = pipeline_at(s, i);
        const mw_pipeline_spec *its = mw_pipeline_settings(h->p);
        if ((h->open || h->due) && !planned(vm, h->p) && its->from == mine->from &&
            strcmp(its->channel, mine->channel) == 0 && strcmp(its->group, mine->group) == 0)
            return true;
    }
    return false;
}

static int start_new(mw_site *s, mw_vm *vm, mw_switch *out, mw_error *e) {
    for (size_t i = 0; i < mw_vm_plans(vm); i++) {
        mw_plan *plan = mw_vm_plan(vm, i);
        if (plan->kept) continue;
        if (!has_predecessor(s, vm, plan->p) && start(pipeline_at(s, find(s, plan->p)), e)) return -1;
        out->added++;
    }
    return 0;
}

/* From here on it cannot be refused any more: those that have to wait are the new generation's. */
static void make_due(mw_site *s, mw_vm *vm) {
    s->tries = 0;
    mw_timer_stop(&s->retry);
    for (size_t i = 0; i < pipeline_count(s); i++) {
        held_pipeline *h = pipeline_at(s, i);
        h->due = !h->open && planned(vm, h->p);
    }
}

static void try_due_again(mw_timer *t) { start_due(mw_container_of(t, mw_site, retry)); }

/* Other workers may have the group still, for they change at the same time; so the first failures are silent.
 */
static void could_not_start(mw_site *s, const mw_pipeline *p, const mw_error *e) {
    static const mw_backoff again = {.kind = MW_BACKOFF_EXPONENTIAL, .base = 0.05, .cap = 5};
    enum { SILENT = 5 };
    int64_t wait = mw_backoff_delay(&again, ++s->tries, 0);
    mw_timer_start(s->loop, &s->retry, wait, try_due_again);
    if (s->tries <= SILENT) return;
    mw_log_begin(MW_WARN, "pipeline cannot start yet");
    mw_log_text("pipeline", mw_pipeline_name(p));
    mw_log_text("error", e->text);
    mw_log_num("next_in", (double)wait / 1000);
    mw_log_end();
}

static void start_due(mw_site *s) {
    mw_error e;
    for (size_t i = 0; i < pipeline_count(s) && !s->ending && !s->draining; i++) {
        held_pipeline *h = pipeline_at(s, i);
        if (!h->due || has_predecessor(s, s->current, h->p)) continue;
        if (start(h, &e)) {
            could_not_start(s, h->p, &e);
            return;
        }
        s->tries = 0;
        mw_log_begin(MW_INFO, "pipeline started");
        mw_log_text("pipeline", mw_pipeline_name(h->p));
        mw_log_end();
    }
}

/* A pipeline that reads from elsewhere now is another one here, but not to whoever has paused it. */
static void keep_pauses(mw_site *s, mw_vm *vm) {
    for (size_t i = 0; i < mw_vm_plans(vm); i++) {
        mw_plan *plan = mw_vm_plan(vm, i);
        for (size_t k = 0; k < pipeline_count(s) && !plan->kept; k++) {
            mw_pipeline *old = pipeline_at(s, k)->p;
            if (!planned(vm, old) && !mw_pipeline_draining(old) && mw_pipeline_paused(old) &&
                strcmp(mw_pipeline_name(old), plan->spec.name) == 0)
                mw_pipeline_pause(plan->p, true);
        }
    }
}

static void drain_others(mw_site *s, mw_vm *vm, mw_switch *out) {
    for (size_t i = 0; i < pipeline_count(s); i++) {
        held_pipeline *h = pipeline_at(s, i);
        if (!h->open || mw_pipeline_draining(h->p) || planned(vm, h->p)) continue;
        if (out) out->removed++;
        mw_pipeline_forget_pause(h->p);
        mw_pipeline_drain(h->p);
    }
}

static void make_current(mw_site *s, mw_vm *vm, mw_switch *out) {
    for (size_t i = 0; i < mw_vm_plans(vm); i++) {
        if (!mw_vm_plan(vm, i)->kept) continue;
        mw_vm_adopt(vm, i);
        out->kept++;
    }
    mw_vm *old = s->current;
    s->current = vm;
    if (old) mw_vm_retire(old);
    mw_deadline_own(vm);
    mw_vm_wake(vm);
}

int mw_site_switch(mw_site *s, mw_vm *vm, mw_switch *out, mw_error *e) {
    *out = (mw_switch){.generation = vm->generation};
    if (s->trial) return mw_fail(e, MW_EUSAGE, false, "a canary runs: it has to end first");
    if (start_new(s, vm, out, e)) {
        for (size_t i = 0; i < mw_vm_plans(vm);
             i++) /* as if it had never been: the old generation serves on */
            if (!mw_vm_plan(vm, i)->kept) mw_pipeline_drain(mw_vm_plan(vm, i)->p);
        return -1;
    }
    make_due(s, vm);
    keep_pauses(s, vm);
    drain_others(s, vm, out);
    make_current(s, vm, out);
    mw_defer(s->loop, &s->sweep, close_later); /* the one before it may never have started itself */
    return 0;
}

/* ---- canaries ---- */

static int only_code_differs(mw_site *s, mw_vm *vm, mw_error *e) {
    static const char advice[] = "a canary can only try code; reload without one";
    for (size_t i = 0; i < mw_vm_plans(vm); i++) {
        const mw_plan *plan = mw_vm_plan(vm, i);
        if (!plan->kept)
            return mw_fail(e, MW_EUSAGE, false, "pipeline \"%s\" is new, or reads from elsewhere: %s",
                           plan->spec.name, advice);
        const char *setting = mw_pipeline_differs(plan->p, &plan->spec);
        if (setting)
            return mw_fail(e, MW_EUSAGE, false, "pipeline \"%s\" has another `%s`: %s", plan->spec.name,
                           setting, advice);
    }
    for (size_t i = 0; i < pipeline_count(s); i++) {
        held_pipeline *h = pipeline_at(s, i);
        if (!h->open || mw_pipeline_draining(h->p) || planned(vm, h->p)) continue;
        return mw_fail(e, MW_EUSAGE, false, "pipeline \"%s\" is gone: %s", mw_pipeline_name(h->p), advice);
    }
    return 0;
}

int mw_site_try(mw_site *s, mw_vm *vm, double share, uint64_t salt, mw_error *e) {
    if (s->trial) return mw_fail(e, MW_EUSAGE, false, "a canary runs already");
    if (only_code_differs(s, vm, e)) return -1;
    s->trial = vm;
    mw_deadline_own(vm);
    for (size_t i = 0; i < mw_vm_plans(vm); i++) mw_vm_try(vm, i, share, salt);
    return 0;
}

void mw_site_promote(mw_site *s, mw_switch *out) {
    mw_vm *vm = s->trial;
    s->trial = NULL;
    *out = (mw_switch){.generation = vm->generation};
    make_current(s, vm, out);
}

void mw_site_rollback(mw_site *s) {
    mw_vm *vm = s->trial;
    if (!vm) return;
    s->trial = NULL;
    for (size_t i = 0; i < mw_vm_plans(vm); i++) mw_pipeline_end_trial(mw_vm_plan(vm, i)->p);
    mw_vm_retire(vm);
}
