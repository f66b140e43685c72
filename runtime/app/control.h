/* control.h - the door through which `moonwire reload`, `status` and `drain` reach a running process: a Unix
 * socket that only its user may open. One line comes in, one line goes out. Whoever sends half a line,
 * nothing, or too much is dropped after a moment. */
#pragma once
#include "base/error.h"
#include "base/loop.h"

typedef struct mw_control mw_control;

/* `answer` returns a text to send, malloced, without a line end. The path must fit a socket address. */
mw_control *mw_control_new(mw_loop *loop, const char *path, char *(*answer)(void *owner, const char *line),
                           void *owner, mw_error *e);
void mw_control_free(mw_control *c); /* removes the socket; NULL is fine */
