/* text.h - short immutable strings with a reference count, for error texts that many records share.
 * A small cache hands out the same object for the same recent text, so that a million retries with one
 * cause cost one string. Loop thread only. */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef struct mw_text {
    uint32_t refs;
    uint32_t len;
    char data[]; /* NUL-terminated */
} mw_text;

mw_text *mw_text_new(const char *data, size_t len);            /* one reference for the caller */
mw_text *mw_text_ref(mw_text *t);                              /* NULL is fine */
void mw_text_unref(mw_text *t);                                /* NULL is fine */
size_t mw_text_clip(const char *data, size_t len, size_t max); /* at most max, not inside a UTF-8 character */
void mw_text_cache_clear(void);                                /* at exit, so that nothing counts as leaked */
