#include "base/text.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

enum { CACHE_SLOTS = 64 };
static mw_text *cache[CACHE_SLOTS];

mw_text *mw_text_new(const char *data, size_t len) {
    mw_text **slot = &cache[mw_hash64(data, len) % CACHE_SLOTS];
    if (*slot && (*slot)->len == len && memcmp((*slot)->data, data, len) == 0) return mw_text_ref(*slot);
    mw_text *t = malloc(sizeof *t + len + 1);
    if (!t) abort();
    t->refs = 2; /* the cache's and the caller's */
    t->len = (uint32_t)len;
    memcpy(t->data, data, len);
    t->data[len] = 0;
    mw_text_unref(*slot);
    *slot = t;
    return t;
}

mw_text *mw_text_ref(mw_text *t) {
    if (t) t->refs++;
    return t;
}

void mw_text_unref(mw_text *t) {
    if (t && --t->refs == 0) free(t);
}

size_t mw_text_clip(const char *data, size_t len, size_t max) {
    if (len <= max) return len;
    for (len = max; len && ((unsigned char)data[len] & 0xc0) == 0x80;) len--;
    return len;
}

void mw_text_cache_clear(void) {
    for (int i = 0; i < CACHE_SLOTS; i++) {
        mw_text_unref(cache[i]);
        cache[i] = NULL;
    }
}
