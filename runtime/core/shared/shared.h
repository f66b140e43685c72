/* shared.h - the memory that a supervisor shares with its workers, and that outlives them: for each worker's
 * place a pulse, the figures of its pipelines (tally.h) and what it has begun; and the suspects (ledger.h).
 * Layout, making and attaching; a memfd. Every field has one writer at a time, or is written atomically. */
#pragma once
#include "base/error.h"
#include "base/log.h"
#include "core/shared/tally.h"

enum { MW_SHARED_SLOTS = 256, MW_LEDGER_ENTRIES = 4096, MW_LEDGER_ID = 64 };

/* What tells a worker that goes on from one that is stuck. It brings no clock: the supervisor looks whether
 * it moves, and allows it as long as the handler may take. */
typedef struct mw_pulse {
    uint64_t turn;     /* changes when a handler begins or ends, and now and then */
    uint32_t entry;    /* which handler computes: its entry in `begun` and one; 0: none */
    uint32_t allow_ms; /* how long it still may, and one; 0: none computes */
} mw_pulse;

typedef struct mw_begun { /* for log lines and explain; the hash decides */
    uint64_t lane;
    uint16_t tally; /* MW_TALLIES: not known */
    uint8_t len;
    char id[MW_LEDGER_ID];
} mw_begun;

typedef struct mw_begun_table {
    uint32_t high;                    /* entries from here on were never used */
    uint64_t hash[MW_LEDGER_ENTRIES]; /* 0: free. Written last, cleared first */
    mw_begun who[MW_LEDGER_ENTRIES];
} mw_begun_table;

typedef enum {              /* what a worker reads when it starts */
               MW_ANEW_NOT, /* what the supervisor has kept; the folder, if that is nothing yet */
               MW_ANEW,     /* the folder, and it tests it as the project says; or does; or does not */
               MW_ANEW_TESTED,
               MW_ANEW_UNTESTED,
} mw_anew;

typedef struct mw_shared_slot {
    mw_pulse pulse;
    uint32_t generation; /* of what its worker reads first */
    uint8_t anew;        /* mw_anew */
    mw_log_rest log;     /* lines that it has not written yet */
    mw_tally tallies[MW_TALLIES];
    mw_begun_table begun;
} mw_shared_slot;

typedef struct mw_suspicion { /* why it is suspected: ends of workers while they handled it */
    uint32_t crashes, kills, stuck;
    int64_t since_ms;
} mw_suspicion;

typedef struct mw_shared {
    uint64_t magic;
    uint32_t slots, used; /* there is room for; are wanted */
    uint32_t allowed;     /* so many deaths make a dead letter */
    uint32_t generation;  /* of what is read for a reload */
    uint32_t live;        /* suspects; a worker that reads 0 need not look */
    mw_begun_table suspects;
    mw_suspicion why[MW_LEDGER_ENTRIES];
    mw_shared_slot slot[];
} mw_shared;

/* ---- the supervisor's side. A worker that has gone mad may have written anything: whoever reads checks.
 * ---- */
static inline size_t mw_begun_len(const mw_begun *who) {
    return who->len < MW_LEDGER_ID ? who->len : MW_LEDGER_ID;
}
/* Of the pipeline it belongs to, and its length; NULL: not known. */
const char *mw_begun_pipeline(const mw_shared *s, uint32_t slot, const mw_begun *who, size_t *len);
mw_shared *mw_shared_new(uint32_t slots, int *fd, mw_error *e);
void mw_shared_free(mw_shared *s); /* NULL is fine; the descriptor is the caller's */

/* ---- a worker's side ---- */
int mw_shared_attach(int fd, uint32_t slot, mw_error *e); /* one slot a process */
mw_shared *mw_shared_all(void);                           /* NULL: nobody supervises */
mw_shared_slot *mw_shared_mine(void);                     /* likewise */
int mw_shared_place(void);                                /* from 0; -1: likewise */
extern mw_pulse *mw_pulse_mine; /* never NULL: without a supervisor nobody reads it */
