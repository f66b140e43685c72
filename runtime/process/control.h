/* control.h - the door through which `moonwire reload`, `status` and the like reach a running project: a Unix
 * socket that only its user may open. One line comes in, one line goes out. Whoever sends half a line,
 * nothing, or too much is dropped after a moment, and earlier when others knock. */
#pragma once
#include <stdint.h>

#include "base/error.h"
#include "loop/loop.h"

typedef struct mw_control mw_control;

/* `asked` gets a line and a number; the answer may come at once or later. The path must fit a socket address.
 */
mw_control *mw_control_new(mw_loop *loop, const char *path,
                           void (*asked)(void *owner, uint64_t number, const char *line), void *owner,
                           mw_error *e);
void mw_control_answer(mw_control *c, uint64_t number, const char *text); /* whoever asked may have left */
void mw_control_free(mw_control *c); /* removes the socket; NULL is fine */
