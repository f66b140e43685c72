/* desk.h - commands at the supervisor: each is a coroutine of the Lua function `command`, which asks the
 * workers and puts their answers together. A worker that does not answer in time is told as late; nothing
 * waits longer than it says. What the function gets as `s`: s.round(line, seconds, which) -> { { worker, pid,
 * state, text }... }  asks all that run, or those whose number is true in `which`; state: answered | late |
 * gone (it died meanwhile) | absent (not asked) s.sleep(seconds) s.start(line) begins another
 * command s.workers() -> { { worker, pid, state,
 * since, restarts, still, starts_in, pipeline, id }... } s.tallies(worker) -> { pipeline... }  as status
 * tells them, from the shared memory s.begun(worker, what) -> { { pipeline, id }... }  what it has begun of
 * that id or key s.generation([next]) -> number        of what is read next s.pause(worker, pipeline | nil,
 * paused)  for one that cannot be told s.drain(), s.hurry(), s.restart(worker), s.notify("reloading" |
 * "ready") s.keep(worker)  what it has read is what is run from now on s.anew(worker, gate | nil)  it starts
 * with what stands in the folder s.ending() -> boolean */
#pragma once
#include "supervisor/supervisor.h"

mw_desk *mw_desk_new(mw_supervisor *s);                         /* takes `command` from the options */
void mw_desk_free(mw_desk *d);                                  /* NULL is fine */
void mw_desk_ask(mw_desk *d, uint64_t asker, const char *line); /* asker: of mw_control; 0: nobody waits */
void mw_desk_answered(mw_desk *d, const mw_hand *h, uint32_t number, const char *text, size_t len);
void mw_desk_gone(mw_desk *d, const mw_hand *h); /* it will not answer any more */
