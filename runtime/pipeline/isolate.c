/* isolate.c - suspects run alone. When a worker died, everything it had begun is suspected (ledger.h); a
 * suspect begins only when no other handler of this process runs, and none begins until it has ended. So the
 * one that kills is found, and those that merely ran beside it are cleared by running once more. One that
 * kills again and again is buried unrun. All this is asleep unless the process is supervised. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "core/shared/ledger.h"
#include "pipeline/defs.h"

enum { LOOK_AGAIN_MS = 20, SETTLE_PATIENCE_MS = 1000 };

static struct {
    uint32_t running;     /* deliveries that handlers of this process have */
    bool alone;           /* one of them is a suspect, so it is the only one */
    mw_pipeline *next;    /* its suspect waits for the others to end */
    mw_pipeline *refused; /* those that were told to wait */
    uint64_t settling;    /* since when a suspect waits for settlements, monotonic ms; 0: none does */
    mw_timer again;
} state;

static void wake_refused(void) {
    for (mw_pipeline *p; (p = state.refused);) {
        state.refused = p->refused_next;
        p->refused = false;
        mw_pipeline_wake(p);
    }
}

static void look_again(mw_timer *t) {
    (void)t;
    wake_refused();
}

static mw_isolation refuse(mw_pipeline *p) {
    if (!p->refused) {
        p->refused = true;
        p->refused_next = state.refused;
        state.refused = p;
    }
    if (!mw_timer_running(&state.again)) mw_timer_start(p->loop, &state.again, LOOK_AGAIN_MS, look_again);
    return MW_WAIT;
}

void mw_isolate_forget(mw_pipeline *p) {
    if (state.next == p) state.next = NULL;
    for (mw_pipeline **at = &state.refused; p->refused && *at; at = &(*at)->refused_next) {
        if (*at != p) continue;
        *at = p->refused_next;
        p->refused = false;
        break;
    }
    if (!state.refused) mw_timer_stop(&state.again);
}

static uint64_t hash_of(const mw_delivery *d) { /* two pipelines have each a message of that id */
    char space[MW_NAME_SPACE];
    size_t len;
    const char *name = mw_delivery_name(d, space, &len);
    uint64_t both[2] = {mw_hash64(d->pipeline->spec.name, strlen(d->pipeline->spec.name)),
                        mw_hash64(name, len)};
    return mw_hash64(both, sizeof both);
}

static bool can_go(const mw_pipeline *p) {
    return p->main.ready_count + p->trial.ready_count && p->breaker != MW_OPEN && !p->draining &&
           p->running < p->spec.concurrency;
}

/* Being stuck counts as the timeout that it is: no more often than its policy allows. */
static uint32_t stuck_allowed(const mw_pipeline *p) {
    uint32_t most = mw_ledger_allowed(), attempts = mw_policy_for(p, "timeout")->attempts;
    return attempts && attempts < most ? attempts : most;
}

/* The class of its dead letter, or NULL: it may be tried once more. */
static const char *blamed(const mw_pipeline *p, const mw_suspicion *why) {
    if (why->stuck && why->stuck >= stuck_allowed(p)) return "timeout";
    uint32_t deaths = why->crashes + why->stuck + why->kills / MW_KILLS_PER_CRASH;
    return deaths && deaths >= mw_ledger_allowed() ? "crash" : NULL;
}

/* What has ended must stand at the broker before a suspect begins: if that kills, it would be handled again.
 * Not for ever: a broker may be away. */
static bool must_settle_first(const mw_pipeline *p) {
    uint64_t now = mw_loop_mono_ms(p->loop);
    const mw_delivery *d = p->all;
    while (d && d->state != MW_D_SETTLING) d = d->all_next;
    if (!state.settling) state.settling = now;
    if (d && now - state.settling < SETTLE_PATIENCE_MS) return true;
    state.settling = 0;
    return false;
}

void mw_isolate_settled(const mw_delivery *d) {
    if (d->buried && d->settled) mw_ledger_end(0, d->ledger_hash);
    if (state.settling && state.refused) wake_refused();
}

mw_isolation mw_isolate_ask(mw_delivery *d) {
    mw_pipeline *p = d->pipeline;
    mw_suspicion why;
    if (state.alone) return refuse(p);
    if (!d->ledger_hash) d->ledger_hash = hash_of(d);
    bool suspect = mw_ledger_suspects(d->ledger_hash, d->attempt > 1, &why);
    uint32_t deaths = suspect ? why.crashes + why.stuck : 0;
    if (d->attempt <= deaths) d->attempt = deaths + 1; /* it died before its broker knew that it had begun */
    if (suspect && blamed(p, &why)) return MW_BURY;
    if (state.next && state.next != p && can_go(state.next)) return refuse(p);
    state.next = NULL;
    if (!suspect) return MW_GO;
    if (state.running || must_settle_first(p)) {
        state.next = p;
        return refuse(p);
    }
    d->suspect = true;
    return MW_GO;
}

void mw_isolate_begin(mw_delivery *d) {
    char space[MW_NAME_SPACE];
    size_t len;
    const char *name = mw_delivery_name(d, space, &len);
    if (!d->ledger_hash) d->ledger_hash = hash_of(d);
    d->on_ledger = true;
    d->ledger_entry =
        mw_ledger_begin(d->ledger_hash, d->lane_key, mw_tally_place(d->pipeline->tally), name, len);
    state.running++;
    if (!d->suspect) return;
    state.alone = true;
    mw_delivery_log(MW_INFO, "suspect runs alone", d);
    mw_log_end();
    mw_log_flush(); /* its worker may not live to do it */
}

void mw_isolate_end(mw_delivery *d) {
    mw_ledger_end(d->ledger_entry, d->ledger_hash);
    d->on_ledger = false;
    d->ledger_entry = 0;
    state.running--;
    if (d->suspect) state.alone = false;
    d->suspect = false;
    if (!state.alone && !state.running) wake_refused();
}

void mw_isolate_bury(mw_delivery *d) {
    char reason[96];
    int n;
    mw_suspicion why;
    mw_ledger_suspects(d->ledger_hash, false, &why);
    const char *class_name = blamed(d->pipeline, &why);
    uint32_t deaths = why.crashes + why.kills + why.stuck;
    if (class_name && strcmp(class_name, "timeout") == 0)
        n = snprintf(reason, sizeof reason, "stuck past its timeout %u times, and its worker was ended",
                     why.stuck);
    else
        n = snprintf(reason, sizeof reason, "killed its worker %u times", deaths);
    if (d->attempt > 1) d->attempt--; /* this one is not made */
    d->buried = true; /* and suspected until its letter stands: this worker may die before that */
    mw_verdict_dead(d, class_name ? class_name : "crash", reason, (size_t)n);
}
