#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char *mw_buf_reserve(mw_buf *b, size_t more) {
    if (b->capacity - b->len < more) {
        b->capacity = (b->len + more) * 2;
        b->data = realloc(b->data, b->capacity);
        if (!b->data) abort();
    }
    return b->data + b->len;
}

void mw_buf_add(mw_buf *b, const void *data, size_t len) {
    if (!len) return;
    memcpy(mw_buf_reserve(b, len), data, len);
    b->len += len;
}

void mw_buf_puts(mw_buf *b, const char *text) { mw_buf_add(b, text, strlen(text)); }

void mw_buf_printf(mw_buf *b, const char *format, ...) {
    char *at = mw_buf_reserve(b, 256);
    va_list args;
    va_start(args, format);
    int n = vsnprintf(at, 256, format, args);
    va_end(args);
    if (n >= 256) {
        at = mw_buf_reserve(b, (size_t)n + 1);
        va_start(args, format);
        vsnprintf(at, (size_t)n + 1, format, args);
        va_end(args);
    }
    if (n > 0) b->len += (size_t)n;
}

void mw_buf_json(mw_buf *b, const char *text, size_t len) {
    mw_buf_puts(b, "\"");
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\')
            mw_buf_printf(b, "\\%c", c);
        else if (c < 0x20)
            mw_buf_printf(b, "\\u%04x", c);
        else
            mw_buf_add(b, &text[i], 1);
    }
    mw_buf_puts(b, "\"");
}

void mw_buf_free(mw_buf *b) {
    free(b->data);
    *b = (mw_buf){0};
}
