/* options.c - TLS in a broker's URL, alike for all drivers. */
#include <string.h>

#include "net/stream.h"

static int parse_insecure(const char *text, bool *out, mw_error *e) {
    *out = text && strcmp(text, "true") == 0;
    if (!text || *out || strcmp(text, "false") == 0) return 0;
    return mw_fail(e, MW_EUSAGE, false, "option insecure=%s: expected true or false", text);
}

int mw_tls_from_url(const mw_url *u, mw_tls_options *out, mw_error *e) {
    static const char *const names[] = {MW_TLS_OPTION_NAMES, NULL};
    for (int i = 0; names[i] && !out->on; i++)
        if (mw_url_option(u, names[i]))
            return mw_fail(e, MW_EUSAGE, false, "option %s is for TLS, and %s: is without", names[i],
                           u->scheme);
    out->ca = mw_url_option(u, "ca");
    out->cert = mw_url_option(u, "cert");
    out->key = mw_url_option(u, "key");
    out->name = mw_url_option(u, "tls_name");
    return parse_insecure(mw_url_option(u, "insecure"), &out->insecure, e);
}
