#include "supervisor/vigil.h"

#include <signal.h>
#include <stdlib.h>

#include "base/log.h"

enum { LOOK_MS = 250, LATE_MS = 4 * LOOK_MS, SUSPECTED_MS = 3600 * 1000, EXPIRE_EVERY_MS = 60 * 1000 };

struct mw_vigil {
    mw_loop *loop;
    mw_crew *crew;
    mw_shared *shared;
    mw_timer look;
    uint64_t looked, expired;
};

static void log_stuck(const mw_vigil *v, const mw_hand *h, uint64_t still) {
    const mw_begun *on = mw_ledger_current(v->shared, h->slot);
    mw_log_begin(MW_ERROR, on ? "a handler is stuck past its timeout: its worker is killed"
                              : "a worker hangs: it is killed");
    mw_log_int("worker", h->slot + 1);
    mw_log_int("pid", h->pid);
    size_t len;
    const char *pipeline = on ? mw_begun_pipeline(v->shared, h->slot, on, &len) : NULL;
    if (pipeline) mw_log_str("pipeline", pipeline, len);
    if (on) mw_log_str("id", on->id, mw_begun_len(on));
    mw_log_num("for", (double)still / 1000);
    mw_log_end();
}

static void look_at(mw_vigil *v, mw_hand *h, uint64_t now) {
    const mw_pulse *pulse = &v->shared->slot[h->slot].pulse;
    uint64_t turn = __atomic_load_n(&pulse->turn, __ATOMIC_ACQUIRE);
    if (turn != h->seen_turn) {
        h->seen_turn = turn;
        h->moved = now;
    }
    uint64_t limit = !h->up            ? MW_VIGIL_START_MS
                     : pulse->allow_ms ? (uint64_t)pulse->allow_ms + MW_VIGIL_GRACE_MS
                                       : MW_VIGIL_STILL_MS;
    if (now - h->moved < limit) return;
    log_stuck(v, h, now - h->moved);
    h->stuck = true;
    kill(h->pid, SIGKILL); /* TERM would wait for the loop that does not turn */
}

/* When we were late ourselves, so may they: the machine slept, or all of us were stopped. */
static void look(mw_timer *t) {
    mw_vigil *v = mw_container_of(t, mw_vigil, look);
    uint64_t now = mw_loop_mono_ms(v->loop);
    bool late = now - v->looked > LATE_MS;
    v->looked = now;
    if (now - v->expired >= EXPIRE_EVERY_MS) {
        mw_ledger_expire(v->shared, (int64_t)now - SUSPECTED_MS);
        v->expired = now;
    }
    mw_hand *h;
    for (uint32_t i = 0; (h = mw_crew_hand(v->crew, i)); i++) {
        if (late) h->moved = now;
        if (h->pid && !h->stuck) look_at(v, h, now);
    }
    mw_timer_start(v->loop, &v->look, LOOK_MS, look);
}

mw_vigil *mw_vigil_new(mw_loop *loop, mw_crew *crew, mw_shared *shared) {
    mw_vigil *v = calloc(1, sizeof *v);
    if (!v) abort();
    *v = (mw_vigil){.loop = loop, .crew = crew, .shared = shared, .looked = mw_loop_mono_ms(loop)};
    mw_timer_start(loop, &v->look, LOOK_MS, look);
    return v;
}

void mw_vigil_free(mw_vigil *v) {
    if (!v) return;
    mw_timer_stop(&v->look);
    free(v);
}

int64_t mw_vigil_still_ms(const mw_vigil *v, const mw_hand *h) {
    return (int64_t)(mw_loop_mono_ms(v->loop) - h->moved);
}
