/* feed.h - for fuzz targets and tests of parsers that run on a stream (net/stream.h): gives bytes to an
 * `input` function as runtime/net/input.c would, in arbitrary splits, and checks both sides of the contract:
 *   what is shown stands alone on the heap, where ASan sees a byte too many, and moves with every call;
 *   no more is consumed than was shown;
 *   neither what is understood nor whether it is nonsense depends on how the bytes were split.
 * A fuzz target calls feed with what libFuzzer gives it; a test calls feed_mutated with good samples. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FEED_MAX_INPUT = 1 << 24 }; /* *need above it is nonsense, as above a stream's max_input */
#define FEED_NONSENSE SIZE_MAX

typedef struct feed_parser {
    void *(*make)(void); /* one connection's worth of state */
    /* As mw_stream_events.input, or FEED_NONSENSE where a driver would call mw_stream_fail. */
    size_t (*input)(void *owner, const char *data, size_t len, size_t *need);
    uint64_t (*digest)(void *owner); /* of all that was understood */
    void (*free)(void *owner);
} feed_parser;

static inline void feed_die(const char *what) {
    fprintf(stderr, "feed: %s\n", what);
    abort();
}

static inline uint64_t feed_random(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* How many bytes arrive next: often one, sometimes many. */
static inline size_t feed_split(uint64_t *seed, size_t left) {
    uint64_t random = feed_random(seed);
    size_t n = random & 3 ? 1 + (random >> 2) % 7 : 1 + (random >> 2) % 300;
    return n < left ? n : left;
}

static inline size_t feed_show(const feed_parser *p, void *owner, const uint8_t *data, size_t len,
                               size_t *need) {
    char *copy = malloc(len);
    if (!copy) abort();
    memcpy(copy, data, len);
    *need = 0;
    size_t used = p->input(owner, copy, len, need);
    free(copy);
    if (used != FEED_NONSENSE && used > len) feed_die("more consumed than shown");
    return used != FEED_NONSENSE && *need > FEED_MAX_INPUT ? FEED_NONSENSE : used;
}

/* seed 0: all at once. False: nonsense. */
static inline bool feed_once(const feed_parser *p, const uint8_t *data, size_t size, uint64_t seed,
                             uint64_t *digest) {
    void *owner = p->make();
    size_t at = 0, end = 0, need = 0, used = 0;
    while (end < size && used != FEED_NONSENSE) {
        end += seed ? feed_split(&seed, size - end) : size - end;
        if (end - at < need) continue;
        used = feed_show(p, owner, data + at, end - at, &need);
        if (used != FEED_NONSENSE) at += used;
    }
    *digest = p->digest(owner);
    p->free(owner);
    return used != FEED_NONSENSE;
}

static inline void feed_both(const feed_parser *p, const uint8_t *data, size_t size, uint64_t seed) {
    uint64_t whole, split;
    bool good = feed_once(p, data, size, 0, &whole);
    if (feed_once(p, data, size, seed, &split) != good)
        feed_die("whether it is nonsense depends on the splits");
    if (whole != split) feed_die("what is understood depends on the splits");
}

/* For LLVMFuzzerTestOneInput. The first two bytes choose the splits. */
static inline int feed(const feed_parser *p, const uint8_t *data, size_t size) {
    if (size > 2) feed_both(p, data + 2, size - 2, 1 + ((uint64_t)data[0] << 8 | data[1]));
    return 0;
}

/* For tests: a good sample, cut, with bytes changed, left out, doubled, and strange numbers put in. */
static inline void feed_mutated(const feed_parser *p, const void *sample, size_t size, int rounds,
                                uint64_t seed) {
    static const char strange[][5] = {"\xff\xff\xff\xff", "\x7f\xff\xff\xff", "\x80\0\0\0",
                                      "\0\0\0\0",         "\r\n\r\n",         "9999"};
    for (int i = 0; i < rounds; i++) {
        size_t len = size;
        uint8_t *data = malloc(2 * size + 8);
        if (!data) abort();
        memcpy(data, sample, size);
        for (uint64_t changes = i ? feed_random(&seed) % 4 : 0; changes && len; changes--) {
            size_t at = feed_random(&seed) % len, n = feed_random(&seed) % (len - at) + 1;
            switch (feed_random(&seed) % 5) {
            case 0: data[at] = (uint8_t)feed_random(&seed); break;
            case 1: memcpy(data + at, strange[feed_random(&seed) % 6], len - at < 4 ? len - at : 4); break;
            case 2: len = at; break;
            case 3:
                memmove(data + at, data + at + n, len - at - n);
                len -= n;
                break;
            default:
                if (len + n > 2 * size) break;
                memmove(data + at + n, data + at, len - at);
                len += n;
            }
        }
        if (len) feed_both(p, data, len, 1 + feed_random(&seed));
        free(data);
    }
}
