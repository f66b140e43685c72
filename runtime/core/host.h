/* host.h - the core's half of the driver contract, one function per mw_host member: link.c and source.c
 * implement it, host.c lists it. */
#pragma once
#include "core/driver.h"

size_t mw_source_room(mw_source *s, size_t *bytes);
void mw_source_deliver(mw_source *s, const mw_incoming *in, size_t count);
void mw_source_fence(mw_source *s, uint32_t unit);
uint32_t mw_source_recall(mw_source *s, uint32_t unit);
void mw_source_settled(mw_source *s, void *cookie, const mw_error *e);
void mw_source_mark(mw_source *s, uint64_t lane, mw_mark mark);
void mw_source_closed(mw_source *s);
void mw_source_full(mw_source *s, bool full);

void mw_link_published(mw_link *l, void *cookie, const mw_error *e);
void mw_link_claimed(mw_link *l, void *cookie, mw_claim claim, const mw_error *e);
void mw_link_browsed(mw_link *l, void *cookie, const mw_entry *entries, size_t count, mw_position last,
                     const mw_error *e);
void mw_link_removed(mw_link *l, void *cookie, size_t count, const mw_error *e);
void mw_link_grouped(mw_link *l, void *cookie, const mw_group_info *groups, size_t count, const mw_error *e);
void mw_link_topology_answer(mw_link *l, void *cookie, const char *answer, size_t len, const mw_error *e);
void mw_link_replied(mw_link *l, void *cookie, mw_message *m, const mw_error *e);
void mw_link_state(mw_link *l, bool up, const mw_error *why);
