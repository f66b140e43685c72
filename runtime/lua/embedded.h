/* embedded.h - the Lua library, compiled into the binary as text by cmake/EmbedLua.cmake. */
#pragma once
#include <stddef.h>

typedef struct mw_embedded {
    const char *name; /* path in the source tree, such as lua/moonwire/init.lua */
    const char *data;
    size_t len;
} mw_embedded;

extern const mw_embedded mw_embedded_files[]; /* ends with a NULL name */
