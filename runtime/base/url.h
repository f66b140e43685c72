/* url.h - a broker's address, taken apart:
 * scheme:[//[user[:password]@]host[:port][,host[:port]...]][/]path[?name=value&...] "embedded:data/dir" and
 * "memory:" have a path only. Percent escapes are decoded. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

enum { MW_URL_OPTIONS = 32 };

typedef struct mw_url {
    char *scheme, *user, *password, *hosts, *path; /* never NULL; "" when absent */
    struct {
        char *name, *value;
    } options[MW_URL_OPTIONS];
    int option_count;
    char *space; /* what the pointers point into */
} mw_url;

int mw_url_parse(mw_url *u, const char *text, mw_error *e);
void mw_url_free(mw_url *u); /* a zeroed one is fine */
/* The form for logs, headers and people, whatever was given: without a password, without a user that has none
 * (it may be one: redis://secret@host), and without the values of options that sound secret. The caller frees
 * it. */
char *mw_url_shown(const char *url);

const char *mw_url_option(const mw_url *u, const char *name); /* NULL when absent */
/* A size such as 512MB or 16GB (1024-based), within [min, max]. Absent leaves *out. */
int mw_url_size(const mw_url *u, const char *name, uint64_t min, uint64_t max, uint64_t *out, mw_error *e);
/* A whole number within [min, max]. Absent leaves *out. */
int mw_url_number(const mw_url *u, const char *name, int64_t min, int64_t max, int64_t *out, mw_error *e);
/* Fails for an option that is not in the NULL-terminated list, with the nearest right name. */
int mw_url_only(const mw_url *u, const char *const *known, mw_error *e);
