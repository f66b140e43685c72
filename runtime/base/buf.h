/* buf.h - a growing byte buffer. */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef struct mw_buf {
    char *data;
    size_t len, capacity;
} mw_buf; /* zero-initialised is empty */

char *mw_buf_reserve(mw_buf *b, size_t more); /* room for `more` bytes at the end; returns where they go */
void mw_buf_add(mw_buf *b, const void *data, size_t len);
void mw_buf_puts(mw_buf *b, const char *text);
void mw_buf_printf(mw_buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
void mw_buf_json(mw_buf *b, const char *text, size_t len); /* as a string in JSON, with its quotes */
void mw_buf_free(mw_buf *b);
