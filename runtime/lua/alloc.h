/* alloc.h - the memory of one lua_State. Small blocks come from free lists over slabs: Lua tells the old size
 * when it frees, so no block needs a header, and a table or string costs a pointer pop. Large ones go to
 * malloc, which moves a megabyte body several times faster than LuaJIT's own allocator. The slabs go back all
 * at once, with the state. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

enum { MW_ALLOC_STEP = 16, MW_ALLOC_SMALL = 512, MW_ALLOC_CLASSES = MW_ALLOC_SMALL / MW_ALLOC_STEP };

typedef struct mw_alloc {
    void *free[MW_ALLOC_CLASSES]; /* by size; each block begins with the next one */
    char *fresh;                  /* the rest of the newest slab */
    size_t fresh_left;
    void *slabs;                         /* each begins with the next one */
    size_t bytes;                        /* in use */
    size_t cap;                          /* of bytes; 0 = none */
    size_t limit;                        /* 0 = none */
    size_t level;                        /* of bytes, above which `crowded` is called, once; 0 = never */
    void (*crowded)(struct mw_alloc *a); /* from inside of an allocation: must only note */
} mw_alloc;                              /* zero-initialised is empty */

void *mw_alloc_lua(void *alloc, void *block, size_t old, size_t size); /* a lua_Alloc */
void mw_alloc_free(mw_alloc *a);                                       /* after lua_close */

/* A handler that goes over the limit is told so by `crowded`. Twice the limit and a little more is where Lua
 * is refused memory: what it asks for at once may be huge. */
void mw_alloc_limit(mw_alloc *a, size_t bytes, void (*crowded)(mw_alloc *a));
static inline void mw_alloc_strict(mw_alloc *a, bool strict) { a->level = strict ? a->limit : 0; }
