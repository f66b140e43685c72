/* peer.h - what can be told about one connection to a server, for people: plain data, filled by
 * mw_stream_look, shown by `moonwire status`. */
#pragma once
#include <stdint.h>

#include "base/error.h"

enum { MW_ADDRESS_TEXT = 128 };

typedef struct mw_peer {
    const char *name;  /* what the driver uses it for: "reader", "commands"; static */
    const char *state; /* "resolving", "connecting", "up", "waiting" (for the next attempt); static */
    char address[MW_ADDRESS_TEXT]; /* of this or the last attempt: 127.0.0.1:6379, [::1]:6379, /run/x.sock */
    char error[MW_ERROR_TEXT];     /* the last one; "" when there was none */
    int64_t since_ms;              /* wall time of the last change of state */
    uint64_t connects;             /* how often it came up */
    uint64_t bytes_in, bytes_out;
    const char *tls; /* version in use, or NULL; static */
} mw_peer;
