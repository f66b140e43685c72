/* check.c - whether a request can be sent at all. Everything that reaches the wire from a handler's data
 * passes here first: a line break in a header would be a second header, or a second request. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "http/internal.h"

static size_t token_length(const char *s) {
    return strspn(s, "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ");
}

int mw_http_check_method(const char *method, mw_error *e) {
    size_t n = token_length(method);
    if (n == 0 || n > 32 || method[n]) return mw_fail(e, MW_EUSAGE, false, "the method is not a token");
    if (strcasecmp(method, "CONNECT") == 0)
        return mw_fail(e, MW_EUSAGE, false, "the method CONNECT is not for requests");
    return 0;
}

int mw_http_check_url(const char *url, mw_error *e) {
    if (!url || !*url) return mw_fail(e, MW_EUSAGE, false, "the URL is missing");
    for (const char *p = url; *p; p++)
        if ((unsigned char)*p <= ' ' || *p == 0x7f)
            return mw_fail(e, MW_EUSAGE, false, "the URL contains %s",
                           *p == ' ' ? "a space (write it as %20)" : "a control character");
    if (strncasecmp(url, "http://", 7) != 0 && strncasecmp(url, "https://", 8) != 0)
        return mw_fail(e, MW_EUSAGE, false, "the URL must begin with http:// or https://");
    if (strchr(url, '/')[2] == '/') return mw_fail(e, MW_EUSAGE, false, "the URL has no host");
    CURLU *u = curl_url();
    if (!u) abort();
    CURLUcode code = curl_url_set(u, CURLUPART_URL, url, 0);
    curl_url_cleanup(u);
    if (code) return mw_fail(e, MW_EUSAGE, false, "the URL is not valid: %s", curl_url_strerror(code));
    return 0;
}

char *mw_http_host_of(const char *url) {
    char *host = NULL, *port = NULL, *text = NULL;
    CURLU *u = curl_url();
    if (!u) abort();
    if (url && !curl_url_set(u, CURLUPART_URL, url, 0)) {
        curl_url_get(u, CURLUPART_HOST, &host, 0);
        curl_url_get(u, CURLUPART_PORT, &port, 0);
    }
    if (host) {
        size_t size = strlen(host) + (port ? strlen(port) : 0) + 2;
        text = malloc(size);
        if (!text) abort();
        snprintf(text, size, "%s%s%s", host, port ? ":" : "", port ? port : "");
    }
    curl_free(host);
    curl_free(port);
    curl_url_cleanup(u);
    return text;
}

bool mw_http_header_is(const char *line, const char *name) {
    size_t n = strlen(name);
    return strncasecmp(line, name, n) == 0 && (line[n] == ':' || line[n] == ';');
}

char *mw_http_header_line(const char *line, mw_error *e) {
    size_t n = token_length(line);
    if (n == 0 || line[n] != ':') {
        mw_fail(e, MW_EUSAGE, false, "a header is not \"Name: value\" with a valid name");
        return NULL;
    }
    if (mw_http_header_is(line, "Content-Length") || mw_http_header_is(line, "Transfer-Encoding")) {
        mw_fail(e, MW_EUSAGE, false, "the header %.*s follows from the body and cannot be set", (int)n, line);
        return NULL;
    }
    const char *value = line + n + 1;
    for (const char *p = value; *p; p++) {
        if (((unsigned char)*p >= ' ' && *p != 0x7f) || *p == '\t') continue;
        mw_fail(e, MW_EUSAGE, false, "the value of header %.*s contains a line break or control character",
                (int)(n < 100 ? n : 100), line);
        return NULL;
    }
    value += strspn(value, " \t");
    size_t len = strlen(value);
    while (len && (value[len - 1] == ' ' || value[len - 1] == '\t')) len--;
    char *text = malloc(n + len + 3);
    if (!text) abort();
    /* to curl "Name:" means "leave it out"; "Name;" sends it empty */
    sprintf(text, len ? "%.*s: %.*s" : "%.*s;", (int)n, line, (int)len, value);
    return text;
}
