/* site.h - what outlives a generation: the open links and the running pipelines. Generations (vm.h) come and
 * go on it; a link or pipeline that the next generation declares unchanged is kept as it is, with its
 * connection and its messages in flight. Loop thread only. */
#pragma once
#include "base/buf.h"
#include "pipeline/pipeline.h"

typedef struct mw_site mw_site;
typedef struct mw_vm mw_vm;

typedef struct mw_switch { /* what a new generation changed */
    uint32_t generation, kept, added, removed;
} mw_switch;

mw_site *mw_site_new(mw_loop *loop, void (*drained)(void *owner), void *owner);
void mw_site_free(mw_site *s); /* whatever state it is in: what runs is left to the broker, as a crash would;
                                  NULL is fine */
mw_loop *mw_site_loop(const mw_site *s);
mw_vm *mw_site_current(const mw_site *s); /* NULL before the first switch */

/* A fresh generation, not current yet. It is freed by the site, or by mw_site_reject. */
mw_vm *mw_site_prepare(mw_site *s);
void mw_site_reject(mw_site *s, mw_vm *vm);
/* Makes it the current one, in one step: what is new is started first, and when that fails nothing has
 * changed. A pipeline that reads with the group of one that is replaced starts when that has drained: with
 * both at work neither order nor attempts would hold, and some brokers refuse it. */
int mw_site_switch(mw_site *s, mw_vm *vm, mw_switch *out, mw_error *e);

/* A canary: it handles a share of the messages beside the current one, until it is promoted or rolled back.
 * Refused when it declares other pipelines, or other settings for one: only code can be tried. */
int mw_site_try(mw_site *s, mw_vm *vm, double share, uint64_t salt, mw_error *e);
void mw_site_promote(mw_site *s, mw_switch *out); /* there is one */
void mw_site_rollback(mw_site *s);                /* what it runs may end; none is fine */
mw_vm *mw_site_trial(const mw_site *s);           /* or NULL */

void mw_site_drain(mw_site *s); /* `drained` follows, perhaps at once */
bool mw_site_draining(const mw_site *s);
bool mw_site_idle(mw_site *s);
size_t mw_site_pipelines(const mw_site *s,
                         mw_pipeline ***out); /* those of the current generation, and those that still drain;
                                                 the list is the caller's to free */

/* For vm.c. A vm holds a reference on each link and pipeline that it knows. */
mw_link *mw_site_link(mw_site *s, const char *url, mw_error *e); /* takes a reference */
void mw_site_release_link(mw_site *s, mw_link *l);
size_t mw_site_links(mw_site *s, mw_link ***list);                   /* all; the list is to be freed */
mw_pipeline *mw_site_same(mw_site *s, const mw_pipeline_spec *spec); /* running on the same source, or NULL */
void mw_site_hold(mw_site *s, mw_pipeline *p);
void mw_site_release(mw_site *s, mw_pipeline *p);
void mw_site_closed(void *site, mw_pipeline *p); /* a pipeline's `closed` event */
void mw_site_retire(mw_site *s, mw_vm *vm);      /* its last task has ended */
