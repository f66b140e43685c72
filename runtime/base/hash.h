/* hash.h - a 64-bit hash that is the same in every process and version (it is stored on disk), and an
 * open-addressing map from non-zero 64-bit keys to pointers. Not for secrets: a chosen collision merges two
 * lanes, no more. */
#pragma once
#include <stddef.h>
#include <stdint.h>

uint64_t mw_hash64(const void *data, size_t len); /* never 0 */

typedef struct mw_map {
    uint64_t *keys;
    void **values;
    uint32_t capacity; /* a power of two, or 0 */
    uint32_t count;
} mw_map; /* zero-initialised is empty */

void *mw_map_get(const mw_map *m, uint64_t key);       /* NULL when absent */
void mw_map_put(mw_map *m, uint64_t key, void *value); /* replaces; key and value are not 0 */
void **mw_map_place(mw_map *m,
                    uint64_t key); /* where its value stands, NULL when it is new: to be set at once */
void *mw_map_remove(mw_map *m, uint64_t key);                    /* what stood there, or NULL */
void *mw_map_next(const mw_map *m, uint32_t *at, uint64_t *key); /* start with *at = 0; NULL at the end */
void mw_map_free(mw_map *m);
