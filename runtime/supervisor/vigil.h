/* vigil.h - looks whether the workers move, and kills one that does not: its handler sits in a C function, it
 * was stopped, or its own timer is off or dead. It looks at the pulses in the shared memory, so it needs
 * nothing of the worker but that it stands still. */
#pragma once
#include "supervisor/crew.h"

/* A handler that computes may take what is left of its timeout and GRACE more; a worker outside of a handler
 * may stand still for STILL: it may be reading a large project. Until it serves it has START. */
enum { MW_VIGIL_GRACE_MS = 5000, MW_VIGIL_STILL_MS = 20000, MW_VIGIL_START_MS = 120000 };

typedef struct mw_vigil mw_vigil;
mw_vigil *mw_vigil_new(mw_loop *loop, mw_crew *crew, mw_shared *shared);
void mw_vigil_free(mw_vigil *v);                                /* NULL is fine */
int64_t mw_vigil_still_ms(const mw_vigil *v, const mw_hand *h); /* since it was last seen to move */
