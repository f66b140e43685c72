/* ledger.h - what supervised workers have begun and not ended, in memory that outlives them: one table per
 * worker slot, and the suspects, that is what was in the hands of a worker that died. The supervisor makes it
 * and moves entries from a dead worker's table to the suspects; a worker writes its own table with plain
 * stores, and strikes suspects out. One process attaches to one slot. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

enum { MW_LEDGER_SLOTS = 256, MW_LEDGER_ENTRIES = 4096, MW_LEDGER_ID = 64 };

/* ---- the supervisor's side ---- */
typedef struct mw_ledger mw_ledger;
mw_ledger *mw_ledger_new(uint32_t slots, mw_error *e);
void mw_ledger_free(mw_ledger *l); /* NULL is fine */
int mw_ledger_fd(const mw_ledger *l);
void mw_ledger_allow(mw_ledger *l, uint32_t deaths); /* that many make a dead letter */
/* The worker of this slot is dead. By its own doing: what it had begun are suspects, each one death worse
 * off. Otherwise it is forgotten. Returns how many. */
uint32_t mw_ledger_bury(mw_ledger *l, uint32_t slot, bool own_doing, int64_t now_ms);

/* ---- a worker's side ---- */
int mw_ledger_attach(int fd, uint32_t slot, mw_error *e);
bool mw_ledger_on(void);  /* attached: this process is supervised */
int mw_ledger_slot(void); /* from 0; -1 when nobody supervises */
uint32_t mw_ledger_allowed(void);
uint32_t mw_ledger_begin(uint64_t hash, const char *id, size_t len); /* 0: no room, it is not written down */
void mw_ledger_end(uint32_t entry, uint64_t hash);                   /* neither begun nor suspect any more */
/* -1: no suspect; else how many workers it has killed. With `elsewhere`, one that stands in another worker's
 * table counts as well: its death may not have been noticed yet. */
int mw_ledger_deaths(uint64_t hash, bool elsewhere);
