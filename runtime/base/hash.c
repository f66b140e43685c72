#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

/* ---- hash: 128-bit multiply-and-fold over 16-byte steps ---- */

static const uint64_t K0 = 0x9e3779b97f4a7c15u, K1 = 0xd1b54a32d192ed03u, K2 = 0x8bb84b93962eacc9u;

static uint64_t load(const unsigned char *p, size_t n) { /* n <= 8, little endian on every machine */
    uint64_t v = 0;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    if (n == 8) {
        memcpy(&v, p, 8);
        return v;
    }
#endif
    for (size_t i = 0; i < n; i++) v |= (uint64_t)p[i] << (8 * i);
    return v;
}

static uint64_t fold(uint64_t a, uint64_t b) {
    __uint128_t r = (__uint128_t)a * b;
    return (uint64_t)r ^ (uint64_t)(r >> 64);
}

uint64_t mw_hash64(const void *data, size_t len) {
    const unsigned char *p = data;
    uint64_t h = K0 ^ (len * K1);
    size_t left = len;
    for (; left >= 16; left -= 16, p += 16) h = fold(h ^ load(p, 8) ^ K1, load(p + 8, 8) ^ K2);
    if (left >= 8) {
        h = fold(h ^ load(p, 8) ^ K1, K2);
        p += 8;
        left -= 8;
    }
    h = fold(h ^ load(p, left) ^ K2, K0);
    h = fold(h ^ K1, h ^ len ^ K2);
    return h ? h : 1;
}

/* ---- map: linear probing, backward-shift deletion ---- */

static uint32_t home(const mw_map *m, uint64_t key) {
    return (uint32_t)((key * K0) >> 32) & (m->capacity - 1);
}

void *mw_map_get(const mw_map *m, uint64_t key) {
    if (!m->capacity) return NULL;
    for (uint32_t i = home(m, key);; i = (i + 1) & (m->capacity - 1)) {
        if (m->keys[i] == key) return m->values[i];
        if (!m->keys[i]) return NULL;
    }
}

static void grow(mw_map *m) {
    mw_map old = *m;
    m->capacity = old.capacity ? old.capacity * 2 : 64;
    m->keys = calloc(m->capacity, sizeof *m->keys);
    m->values = calloc(m->capacity, sizeof *m->values);
    if (!m->keys || !m->values) abort();
    m->count = 0;
    for (uint32_t i = 0; i < old.capacity; i++)
        if (old.keys[i]) mw_map_put(m, old.keys[i], old.values[i]);
    mw_map_free(&old);
}

void **mw_map_place(mw_map *m, uint64_t key) {
    if (m->count * 4 >= m->capacity * 3) grow(m);
    uint32_t i = home(m, key);
    while (m->keys[i] && m->keys[i] != key) i = (i + 1) & (m->capacity - 1);
    if (!m->keys[i]) m->count++;
    m->keys[i] = key;
    return &m->values[i];
}

void mw_map_put(mw_map *m, uint64_t key, void *value) { *mw_map_place(m, key) = value; }

void *mw_map_remove(mw_map *m, uint64_t key) {
    if (!m->capacity) return NULL;
    uint32_t mask = m->capacity - 1, i = home(m, key);
    while (m->keys[i] != key) {
        if (!m->keys[i]) return NULL;
        i = (i + 1) & mask;
    }
    void *value = m->values[i];
    for (uint32_t j = (i + 1) & mask; m->keys[j]; j = (j + 1) & mask) {
        uint32_t h = home(m, m->keys[j]);
        if (((j - h) & mask) >= ((j - i) & mask)) { /* j may move back to the hole at i */
            m->keys[i] = m->keys[j];
            m->values[i] = m->values[j];
            i = j;
        }
    }
    m->keys[i] = 0;
    m->values[i] = NULL;
    m->count--;
    return value;
}

void *mw_map_next(const mw_map *m, uint32_t *at, uint64_t *key) {
    while (*at < m->capacity) {
        uint32_t i = (*at)++;
        if (m->keys[i]) {
            if (key) *key = m->keys[i];
            return m->values[i];
        }
    }
    return NULL;
}

void mw_map_free(mw_map *m) {
    free(m->keys);
    free(m->values);
    *m = (mw_map){0};
}
