/* ledger.h - what workers have begun and not ended, and the suspects: what was in the hands of a worker that
 * died. The supervisor moves entries from a dead worker's table to the suspects; a worker writes its own
 * table with plain stores, and strikes suspects out. Both in the shared memory (shared.h). */
#pragma once
#include "core/shared/shared.h"

typedef enum {
    MW_DEATH_OURS,   /* a drain, a second signal: nobody is to blame */
    MW_DEATH_CRASH,  /* by its own doing: what it had begun is suspected, each one crash worse off */
    MW_DEATH_KILLED, /* from outside: suspected as well, but it takes many of them to be blamed */
    MW_DEATH_STUCK,  /* the handler that computed did not come back: it alone is to blame */
} mw_death;

enum { MW_KILLS_PER_CRASH = 10 };

/* ---- the supervisor's side ---- */
/* The worker of this slot is dead: what it had begun becomes suspect, or is forgotten. Returns how many are
 * suspects now. */
uint32_t mw_ledger_bury(mw_shared *s, uint32_t slot, mw_death how, int64_t now_ms);
/* Suspects that were last heard of before are forgotten: what never came again went elsewhere. */
void mw_ledger_expire(mw_shared *s, int64_t before_ms);
/* Whose doing it was. status: as waitpid tells it; ours: we end; stuck: we killed it for that; hungry: the
 * kernel has killed somebody for lack of memory meanwhile. A KILL that is neither ours nor the kernel's has
 * no cause inside. */
mw_death mw_death_of(int status, bool ours, bool stuck, bool hungry);
/* What computes there, or NULL. */
const mw_begun *mw_ledger_current(const mw_shared *s, uint32_t slot);

/* ---- a worker's side ---- */
bool mw_ledger_on(void); /* attached: this process is supervised */
uint32_t mw_ledger_allowed(void);
/* The tally is the pipeline's place (tally.h). 0: no room, it is not written down. */
uint32_t mw_ledger_begin(uint64_t hash, uint64_t lane, uint16_t tally, const char *id, size_t len);
void mw_ledger_end(uint32_t entry, uint64_t hash); /* neither begun nor suspect any more */
void mw_ledger_reset(void); /* for tests that are several workers: every entry is free again */
/* Is it a suspect? Then `why` is filled. With `elsewhere`, one that stands in another worker's table counts
 * as well, for nothing: its death may not have been noticed yet. */
bool mw_ledger_suspects(uint64_t hash, bool elsewhere, mw_suspicion *why);
