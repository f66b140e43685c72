/* parts.h - the parts of a message, as plain data; also read by LuaJIT's FFI, so it holds declarations only.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The headers are one encoded block: see mw_headers_* in message.h. */
typedef struct mw_parts {
    const char *body, *key, *id, *type, *headers;
    size_t body_len, key_len, id_len, type_len, headers_len;
    bool has_key; /* a missing key and an empty key are different things */
    uint8_t priority;
    int64_t time_ms; /* when it was published, since 1970 */
} mw_parts;
