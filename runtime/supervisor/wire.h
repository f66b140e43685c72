/* wire.h - what a supervisor and a worker say to each other, over a socket pair: frames of a kind, a number
 * and a text. Nothing blocks; what the other does not read waits, up to a limit. */
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "loop/loop.h"

typedef struct mw_wire mw_wire;

enum { MW_WIRE_TEXT_MOST = 16 << 20 };

typedef struct mw_wire_events {
    void (*heard)(void *owner, uint32_t kind, uint32_t number, char *text, size_t len); /* text[len] is 0 */
    void (*closed)(void *owner); /* the other end is gone, or sends no frames; said once */
    void *owner;
} mw_wire_events;

mw_wire *mw_wire_new(mw_loop *loop, int fd, mw_wire_events events); /* the descriptor is the wire's now */
void mw_wire_free(mw_wire *w);                                      /* not from `heard`; NULL is fine */
void mw_wire_hear(mw_wire *w);                                      /* what has come already, at once */
/* false: too much waits already, or the other is gone; nothing was sent. */
bool mw_wire_say(mw_wire *w, uint32_t kind, uint32_t number, const char *text, size_t len);
void mw_wire_push(mw_wire *w); /* before a process ends: waits a moment for what is not written yet */
