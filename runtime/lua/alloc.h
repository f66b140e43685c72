/* alloc.h - the memory of one lua_State. Lua tells the size of every block it gives back, so small blocks
 * need no header: they come from free lists by size, cut from chunks that all go at once with the state.
 * Larger ones are malloc's. The bytes are counted. */
#pragma once
#include <stddef.h>

#include "base/buf.h"

enum { MW_ALLOC_STEP = 16, MW_ALLOC_SMALL = 1024 };

typedef struct mw_alloc {
    void *free[MW_ALLOC_SMALL / MW_ALLOC_STEP]; /* lists of blocks, by size */
    char *at, *end;                             /* the rest of the newest chunk */
    mw_buf chunks;                              /* of void * */
    size_t used;                                /* bytes Lua holds */
} mw_alloc;                                     /* zero-initialised is empty */

void *mw_alloc_block(void *alloc, void *block, size_t old, size_t size); /* a lua_Alloc */
void mw_alloc_free(mw_alloc *a);                                         /* after lua_close */
