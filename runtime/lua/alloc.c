#include "lua/alloc.h"

#include <stdlib.h>
#include <string.h>

enum { SLAB = 64 * 1024 };

static size_t class_of(size_t size) { return (size + MW_ALLOC_STEP - 1) / MW_ALLOC_STEP - 1; }

static void *carve(mw_alloc *a, size_t size) {
    if (a->fresh_left <
        size) { /* what is left of the old slab is under 512 bytes: not worth keeping track of */
        void **slab = malloc(SLAB);
        if (!slab) return NULL;
        *slab = a->slabs;
        a->slabs = slab;
        a->fresh = (char *)slab + MW_ALLOC_STEP;
        a->fresh_left = SLAB - MW_ALLOC_STEP;
    }
    void *block = a->fresh;
    a->fresh += size;
    a->fresh_left -= size;
    return block;
}

static void *small_new(mw_alloc *a, size_t size) {
    size_t class = class_of(size);
    void **block = a->free[class];
    if (!block) return carve(a, (class + 1) * MW_ALLOC_STEP);
    a->free[class] = *block;
    return block;
}

static void small_free(mw_alloc *a, void *block, size_t size) {
    size_t class = class_of(size);
    *(void **)block = a->free[class];
    a->free[class] = block;
}

static void *move(mw_alloc *a, void *block, size_t old, size_t size) {
    if (old > MW_ALLOC_SMALL && size > MW_ALLOC_SMALL) return realloc(block, size);
    if (old <= MW_ALLOC_SMALL && size <= MW_ALLOC_SMALL && class_of(old) == class_of(size)) return block;
    void *moved = size <= MW_ALLOC_SMALL ? small_new(a, size) : malloc(size);
    if (!moved) return NULL;
    memcpy(moved, block, old < size ? old : size);
    if (old <= MW_ALLOC_SMALL)
        small_free(a, block, old);
    else
        free(block);
    return moved;
}

void *mw_alloc_lua(void *alloc, void *block, size_t old, size_t size) {
    mw_alloc *a = alloc;
    void *result = NULL;
    if (!block) old = 0; /* Lua passes a kind there */
    if (size > old && a->cap && size - old > a->cap - (a->bytes < a->cap ? a->bytes : a->cap)) return NULL;
    if (!size) {
        if (block && old <= MW_ALLOC_SMALL)
            small_free(a, block, old);
        else
            free(block);
    } else {
        if (block)
            result = move(a, block, old, size);
        else
            result = size <= MW_ALLOC_SMALL ? small_new(a, size) : malloc(size);
        if (!result) return NULL;
    }
    a->bytes += size - old;
    if (a->level && a->bytes > a->level) {
        a->level = 0;
        a->crowded(a);
    }
    return result;
}

void mw_alloc_limit(mw_alloc *a, size_t bytes, void (*crowded)(mw_alloc *a)) {
    a->limit = bytes;
    a->cap = 2 * bytes + (64 << 20);
    a->crowded = crowded;
}

void mw_alloc_free(mw_alloc *a) {
    for (void *slab = a->slabs, *next; slab; slab = next) {
        next = *(void **)slab;
        free(slab);
    }
    *a = (mw_alloc){0};
}
