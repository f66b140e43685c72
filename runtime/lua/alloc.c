#include "lua/alloc.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK = 64 << 10 };

static size_t list_of(size_t size) { return (size - 1) / MW_ALLOC_STEP; }

static void *cut(mw_alloc *a, size_t size) {
    size = (list_of(size) + 1) * MW_ALLOC_STEP;
    if ((size_t)(a->end - a->at) <
        size) { /* what is left of the old chunk is less than one block: let it go */
        char *chunk = malloc(CHUNK);
        if (!chunk) return NULL;
        mw_buf_add(&a->chunks, &chunk, sizeof chunk);
        a->at = chunk;
        a->end = chunk + CHUNK;
    }
    void *block = a->at;
    a->at += size;
    return block;
}

static void *get(mw_alloc *a, size_t size) {
    if (size > MW_ALLOC_SMALL) return malloc(size);
    void **list = &a->free[list_of(size)], *block = *list;
    if (!block) return cut(a, size);
    memcpy(list, block, sizeof *list); /* a free block begins with the address of the next one */
    return block;
}

static void put(mw_alloc *a, void *block, size_t size) {
    if (size > MW_ALLOC_SMALL) {
        free(block);
        return;
    }
    void **list = &a->free[list_of(size)];
    memcpy(block, list, sizeof *list);
    *list = block;
}

static void *resize(mw_alloc *a, void *block, size_t old, size_t size) {
    if (old > MW_ALLOC_SMALL && size > MW_ALLOC_SMALL) return realloc(block, size);
    if (old <= MW_ALLOC_SMALL && size <= MW_ALLOC_SMALL && list_of(old) == list_of(size)) return block;
    void *moved = get(a, size);
    if (!moved) return NULL;
    memcpy(moved, block, old < size ? old : size);
    put(a, block, old);
    return moved;
}

void *mw_alloc_block(void *alloc, void *block, size_t old, size_t size) {
    mw_alloc *a = alloc;
    void *result = NULL;
    if (!size) {
        if (old) put(a, block, old);
    } else if (!old) {
        result = get(a, size);
    } else {
        result = resize(a, block, old, size);
    }
    if (result || !size) a->used += size - old;
    return result;
}

void mw_alloc_free(mw_alloc *a) {
    for (size_t i = 0; i < a->chunks.len / sizeof(void *); i++) free(((void **)(void *)a->chunks.data)[i]);
    mw_buf_free(&a->chunks);
}
