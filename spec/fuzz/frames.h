/* frames.h - the smallest parser there can be on a stream, as an example for feed.h: four bytes of length,
 * then so many bytes. */
#pragma once
#include "feed.h"

enum { LONGEST_FRAME = 1 << 16 };

static void *frames_make(void) { return calloc(1, sizeof(uint64_t)); }

static size_t frames_input(void *owner, const char *data, size_t len, size_t *need) {
    uint64_t *digest = owner;
    size_t used = 0, size;
    for (; len - used >= 4; used += 4 + size) {
        const unsigned char *head = (const unsigned char *)data + used;
        size = (size_t)head[0] << 24 | (size_t)head[1] << 16 | (size_t)head[2] << 8 | head[3];
        if (size > LONGEST_FRAME) return FEED_NONSENSE;
        if (len - used - 4 < size) {
            *need = 4 + size;
            break;
        }
        for (size_t i = 0; i < size; i++) *digest = *digest * 31 + head[4 + i];
        *digest = *digest * 31 + size + 1;
    }
    return used;
}

static uint64_t frames_digest(void *owner) { return *(uint64_t *)owner; }

static const feed_parser frames_parser = {
    .make = frames_make, .input = frames_input, .digest = frames_digest, .free = free};
