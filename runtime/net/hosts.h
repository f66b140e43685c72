/* hosts.h - the places a stream may go to, as a user or a server wrote them: host[:port],[v6]:port,... or the
 * path of a Unix socket. Only taken apart and checked here; names are looked up elsewhere. */
#pragma once
#include <stdbool.h>

#include "base/error.h"

typedef struct mw_host_name {
    const char *name; /* without brackets; the path of a Unix socket */
    int port;
} mw_host_name;

typedef struct mw_hosts {
    mw_host_name *list;
    unsigned count;
    bool unix_socket;
    char *space; /* what the names point into */
} mw_hosts;      /* zero-initialised is empty */

int mw_hosts_parse(mw_hosts *h, const char *text, int default_port,
                   mw_error *e); /* unchanged when it fails */
void mw_hosts_free(mw_hosts *h);
