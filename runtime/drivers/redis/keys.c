/* keys.c - the keys that stand beside a stream, and where keys lie in a cluster. What a script touches must
 * lie in one slot there: the keys beside a stream carry its hash tag, or its whole name as one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/redis/redis.h"

/* What stands between the first brace and the next closing one, when there is something; else all of it. */
static const char *hashed(const char *key, size_t len, size_t *out_len) {
    const char *open = memchr(key, '{', len);
    const char *close = open ? memchr(open, '}', len - (size_t)(open - key)) : NULL;
    bool tag = close && close > open + 1;
    *out_len = tag ? (size_t)(close - open - 1) : len;
    return tag ? open + 1 : key;
}

char *mwr_key_beside(const char *stream, const char *what, const char *group) {
    char *key;
    size_t len;
    bool tag = hashed(stream, strlen(stream), &len) != stream;
    int n = asprintf(&key, "%s%s%s:mw:%s%s%s", tag ? "" : "{", stream, tag ? "" : "}", what,
                     *group ? ":" : "", group);
    if (n < 0) abort();
    return key;
}

unsigned mwr_slot(const char *key, size_t len) {
    unsigned crc = 0; /* CRC16, XMODEM */
    key = hashed(key, len, &len);
    for (size_t i = 0; i < len; i++) {
        crc ^= (unsigned)(unsigned char)key[i] << 8;
        for (int bit = 0; bit < 8; bit++) crc = (crc << 1 ^ (crc & 0x8000 ? 0x1021 : 0)) & 0xffff;
    }
    return crc % 16384;
}

/* In a cluster a record lies where the streams of its connection lie: with the first of them, by name. */
void mwr_dedupe_key(const mw_conn *c, const char *key, size_t len, mw_buf *out) {
    const char *stream = NULL;
    for (const mw_sub *s = c->subs; s && mwr_client_clustered(c->client); s = s->next)
        if (!stream || strcmp(s->channel->name, stream) < 0) stream = s->channel->name;
    mw_buf_puts(out, "mw:dedupe:");
    if (stream) {
        size_t tag_len;
        const char *tag = hashed(stream, strlen(stream), &tag_len);
        mw_buf_printf(out, "{%.*s}:", (int)tag_len, tag);
    }
    mw_buf_add(out, key, len);
}

void mwr_write_dedupe_key(const mw_conn *c, mw_buf *b, const char *key, size_t len) {
    mw_buf text = {0};
    mwr_dedupe_key(c, key, len, &text);
    mwr_write(b, text.data, text.len);
    mw_buf_free(&text);
}
