/* fifo.h - bytes that are put in at the end and taken from the front, in one piece of memory. It grows with
 * what is in it and gives memory back. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

enum { MW_FIFO_LEAST = 16 << 10 };

typedef struct mw_fifo {
    char *data;
    size_t at, end; /* what is in it: from `at` to `end` */
    size_t capacity, peak;
} mw_fifo; /* zero-initialised is empty */

static inline size_t mw_fifo_size(const mw_fifo *f) { return f->end - f->at; }
char *mw_fifo_reserve(mw_fifo *f, size_t room); /* at least so much at the end; what is in it may move */
void mw_fifo_filled(mw_fifo *f, size_t len);    /* so much of it */
void mw_fifo_taken(mw_fifo *f, size_t len);     /* off the front */
void mw_fifo_trim(mw_fifo *f);                  /* gives back what was not needed since the last call */
void mw_fifo_free(mw_fifo *f);
