/* keys.c - the keys that stand beside a stream. In a cluster they must lie where the stream lies: they carry
 * its hash tag, or its whole name as one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/redis/redis.h"

static bool has_tag(const char *name) {
    const char *open = strchr(name, '{'), *close = open ? strchr(open, '}') : NULL;
    return close && close > open + 1;
}

char *mwr_key_beside(const char *stream, const char *what, const char *group) {
    char *key;
    bool tag = has_tag(stream);
    int n = asprintf(&key, "%s%s%s:mw:%s%s%s", tag ? "" : "{", stream, tag ? "" : "}", what,
                     *group ? ":" : "", group);
    if (n < 0) abort();
    return key;
}
