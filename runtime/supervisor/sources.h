/* sources.h - the files that the workers' code was read from, kept in memory. A worker that is started to
 * replace another runs what the others run, whatever stands in the folder by then: code that was refused, or
 * is half written, must not become current because a worker died. Each worker has a file of its own (fd
 * MW_WORKER_SOURCES_FD): it begins with what it is to run, and gets what the worker reads for a reload. What
 * became current is copied out of it, because a worker that has gone mad may write on. */
#pragma once

int mw_sources_new(
    int from); /* a file, above those that workers get; -1: errno. from: a copy of that; -1: empty */
void mw_sources_free(int *fd); /* -1 is fine */
