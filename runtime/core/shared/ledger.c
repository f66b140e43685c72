#include "core/shared/ledger.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "base/log.h"

enum { N = MW_LEDGER_ENTRIES };

static uint64_t load(const uint64_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
static void store(uint64_t *at, uint64_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
static uint32_t high_of(const mw_begun_table *t) { return __atomic_load_n(&t->high, __ATOMIC_ACQUIRE); }

static int find(const mw_begun_table *t, uint64_t hash) {
    uint32_t high = high_of(t);
    for (uint32_t i = 0; i < high && i < N; i++)
        if (load(&t->hash[i]) == hash) return (int)i;
    return -1;
}

static void put(mw_begun_table *t, uint32_t i, uint64_t hash) { /* who it is stands there already */
    store(&t->hash[i], hash);
    if (i >= t->high) __atomic_store_n(&t->high, i + 1, __ATOMIC_RELEASE);
}

/* ---- the supervisor's side ---- */

/* A free entry, or the oldest one: what was never seen again has gone elsewhere. */
static uint32_t room_for_suspect(mw_shared *s) {
    uint32_t oldest = 0;
    for (uint32_t i = 0; i < N; i++) {
        if (!load(&s->suspects.hash[i])) {
            __atomic_add_fetch(&s->live, 1, __ATOMIC_RELEASE);
            return i;
        }
        if (s->why[i].since_ms < s->why[oldest].since_ms) oldest = i;
    }
    return oldest;
}

static void blame(mw_suspicion *why, mw_death how, bool again) {
    if (how == MW_DEATH_CRASH) why->crashes++;
    if (how == MW_DEATH_STUCK) why->stuck++;
    if (how == MW_DEATH_KILLED && again) why->kills++; /* the first time it may have run beside others */
}

static void suspect(mw_shared *s, uint64_t hash, const mw_begun *who, uint32_t slot, mw_death how,
                    int64_t now_ms) {
    int at = find(&s->suspects, hash);
    uint32_t i = at >= 0 ? (uint32_t)at : room_for_suspect(s);
    mw_suspicion why = at >= 0 ? s->why[i] : (mw_suspicion){0};
    blame(&why, how, at >= 0);
    why.since_ms = now_ms;
    s->why[i] = why;
    if (at < 0) {
        s->suspects.who[i] = *who;
        put(&s->suspects, i, hash);
    }
    mw_log_begin(at >= 0 || how == MW_DEATH_STUCK ? MW_WARN : MW_DEBUG,
                 "suspect: its worker died while handling it");
    mw_log_str("id", who->id, mw_begun_len(who));
    mw_log_int("worker", slot + 1);
    if (why.crashes) mw_log_int("crashes", why.crashes);
    if (why.stuck) mw_log_int("stuck", why.stuck);
    if (why.kills) mw_log_int("kills", why.kills);
    mw_log_end();
}

uint32_t mw_ledger_bury(mw_shared *s, uint32_t slot, mw_death how, int64_t now_ms) {
    mw_shared_slot *place = &s->slot[slot];
    mw_begun_table *t = &place->begun;
    uint32_t count = 0, culprit = how == MW_DEATH_STUCK ? place->pulse.entry : 0;
    if (how == MW_DEATH_STUCK && !culprit) how = MW_DEATH_KILLED; /* it stood still outside of any handler */
    for (uint32_t i = 0; i < t->high && i < N; i++) {
        uint64_t hash = load(&t->hash[i]);
        if (!hash) continue;
        if (how != MW_DEATH_OURS && (!culprit || culprit == i + 1)) {
            suspect(s, hash, &t->who[i], slot, how, now_ms);
            count++;
        }
        store(&t->hash[i], 0); /* after it became a suspect: it is never in neither */
    }
    __atomic_store_n(&t->high, 0, __ATOMIC_RELEASE);
    place->pulse.entry = place->pulse.allow_ms = 0;
    for (uint32_t i = 0; i < MW_TALLIES; i++)
        if (place->tallies[i].state == MW_TALLY_OPEN) mw_tally_leave(&place->tallies[i]);
    return count;
}

mw_death mw_death_of(int status, bool ours, bool stuck, bool hungry) {
    if (ours || status == 0) return MW_DEATH_OURS;
    if (stuck) return MW_DEATH_STUCK;
    if (WIFEXITED(status)) return WEXITSTATUS(status) == MW_EXIT_AGAIN ? MW_DEATH_KILLED : MW_DEATH_CRASH;
    switch (WTERMSIG(status)) {
    case SIGKILL: return hungry ? MW_DEATH_CRASH : MW_DEATH_KILLED;
    case SIGTERM:
    case SIGINT:
    case SIGHUP: return MW_DEATH_KILLED;
    default: return MW_DEATH_CRASH;
    }
}

const mw_begun *mw_ledger_current(const mw_shared *s, uint32_t slot) {
    const mw_shared_slot *place = &s->slot[slot];
    uint32_t entry = __atomic_load_n(&place->pulse.entry, __ATOMIC_ACQUIRE);
    return entry && entry <= N && load(&place->begun.hash[entry - 1]) ? &place->begun.who[entry - 1] : NULL;
}

static void strike_out(mw_shared *s, uint32_t at, uint64_t hash) { /* by whoever comes first */
    uint64_t expected = hash;
    if (__atomic_compare_exchange_n(&s->suspects.hash[at], &expected, 0, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED))
        __atomic_sub_fetch(&s->live, 1, __ATOMIC_RELEASE);
}

void mw_ledger_expire(mw_shared *s, int64_t before_ms) {
    uint32_t high = 0;
    for (uint32_t i = 0; i < s->suspects.high && i < N; i++) {
        uint64_t hash = load(&s->suspects.hash[i]);
        if (hash && s->why[i].since_ms < before_ms) strike_out(s, i, hash);
        if (load(&s->suspects.hash[i])) high = i + 1;
    }
    __atomic_store_n(&s->suspects.high, high, __ATOMIC_RELEASE);
}

/* ---- a worker's side ---- */

static uint16_t free_entries[N];
static uint32_t free_count;
static bool ready;

void mw_ledger_reset(void) {
    for (free_count = 0; free_count < N; free_count++)
        free_entries[free_count] = (uint16_t)(N - 1 - free_count); /* low ones first: short to search */
    ready = true;
}

bool mw_ledger_on(void) { return mw_shared_all() != NULL; }
uint32_t mw_ledger_allowed(void) { return __atomic_load_n(&mw_shared_all()->allowed, __ATOMIC_RELAXED); }

uint32_t mw_ledger_begin(uint64_t hash, uint64_t lane, uint16_t tally, const char *id, size_t len) {
    if (!ready) mw_ledger_reset();
    if (!free_count) return 0;
    uint32_t i = free_entries[--free_count];
    mw_begun_table *t = &mw_shared_mine()->begun;
    mw_begun *who = &t->who[i];
    who->lane = lane;
    who->tally = tally;
    who->len = (uint8_t)(len < MW_LEDGER_ID ? len : MW_LEDGER_ID);
    if (len) memcpy(who->id, id, who->len);
    put(t, i, hash);
    return i + 1;
}

void mw_ledger_end(uint32_t entry, uint64_t hash) {
    mw_shared *s = mw_shared_all();
    int at = __atomic_load_n(&s->live, __ATOMIC_ACQUIRE) ? find(&s->suspects, hash) : -1;
    if (at >= 0) strike_out(s, (uint32_t)at, hash);
    if (!entry) return;
    store(&mw_shared_mine()->begun.hash[entry - 1], 0);
    free_entries[free_count++] = (uint16_t)(entry - 1);
}

bool mw_ledger_suspects(uint64_t hash, bool elsewhere, mw_suspicion *why) {
    mw_shared *s = mw_shared_all();
    if (__atomic_load_n(&s->live, __ATOMIC_ACQUIRE)) {
        int at = find(&s->suspects, hash);
        if (at >= 0) {
            *why = s->why[at];
            return true;
        }
    }
    *why = (mw_suspicion){0};
    uint32_t mine = (uint32_t)mw_shared_place();
    for (uint32_t slot = 0; elsewhere && slot < s->used; slot++)
        if (slot != mine && find(&s->slot[slot].begun, hash) >= 0) return true;
    return false;
}
