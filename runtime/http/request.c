/* request.c - one request, from its spec to its report. Running: on http's list, with an easy handle inside
 * the multi handle and a deadline of ours (curl's own timeout does not count while a request waits for a free
 * connection). Over: the easy handle is back in the pool, the report is deferred. Reported: off the list. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "http/internal.h"

enum {
    KEEPALIVE_IDLE_S = 30,
    KEEPALIVE_EVERY_S = 15,
    CONNECTION_IDLE_S =
        60, /* an idle connection older than this is not used again: peers drop them silently */
    CONNECTION_LIFE_S = 600, /* so that a changed address is noticed */
};

static bool prepare(mw_http_request *r, const mw_http_spec *spec);
static void set_options(mw_http_request *r, const mw_http_spec *spec);
static void fail(mw_http_request *r, const char *kind, const char *what);
static void fail_by_code(mw_http_request *r, CURLcode code);
static void deadline_passed(mw_timer *t);
static void report(mw_deferred *d);
static void stop(mw_http_request *r);
static void leave(mw_http_request *r);

static uint64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* What is faked takes the time that the spec lets pass. */
static uint64_t time_us(const mw_http_request *r) {
    return r->fake && r->http ? mw_loop_mono_ms(r->http->loop) * 1000 : now_us();
}

static char *copy(const char *s) {
    char *c = s ? strdup(s) : NULL;
    if (s && !c) abort();
    return c;
}

mw_http_request *mw_http_start(mw_http *h, const mw_http_spec *spec,
                               void (*done)(mw_http_request *r, void *arg), void *arg) {
    mw_http_request *r = calloc(1, sizeof *r);
    if (!r) abort();
    r->http = h;
    r->done = done;
    r->arg = arg;
    r->fake = mw_http_fake_wanted();
    r->started_us = time_us(r);
    r->response.max_bytes = spec->max_bytes ? spec->max_bytes : MW_HTTP_MAX_BYTES;
    r->next = h->requests;
    if (r->next) r->next->back = &r->next;
    r->back = &h->requests;
    h->requests = r;
    if (!prepare(r, spec)) {
        mw_defer(h->loop, &r->report, report);
        return r;
    }
    int64_t timeout_ms = spec->timeout_ms > 0 ? spec->timeout_ms : MW_HTTP_TIMEOUT_MS;
    mw_loop_now_update(h->loop);
    if (r->fake) {
        mw_timer_start(h->loop, &r->deadline, timeout_ms, deadline_passed);
        mw_http_fake_add(r);
        return r;
    }
    r->easy = mw_http_easy_take(h);
    mw_loop_outside(h->loop, 1);
    set_options(r, spec);
    mw_timer_start_real(h->loop, &r->deadline, timeout_ms, deadline_passed);
    if (curl_multi_add_handle(h->multi, r->easy)) abort(); /* only for misuse and out of memory */
    return r;
}

void mw_http_request_over(mw_http_request *r, CURLcode result) {
    if (result) {
        fail_by_code(r, result);
    } else if (r->fake) {
        r->status = r->response.status;
    } else {
        long status = 0;
        curl_easy_getinfo(r->easy, CURLINFO_RESPONSE_CODE, &status);
        r->status = (int)status;
    }
    stop(r);
    r->ended_us = time_us(r);
    mw_defer(r->http->loop, &r->report, report);
}

void mw_http_request_failed(mw_http_request *r, const char *kind, const char *what) {
    fail(r, kind, what);
    stop(r);
    r->ended_us = time_us(r);
    mw_defer(r->http->loop, &r->report, report);
}

void mw_http_request_orphan(mw_http_request *r) {
    if (!r->error) fail(r, "cancelled", "cancelled");
    r->status = 0;
    stop(r);
    leave(r);
}

void mw_http_request_free(mw_http_request *r) {
    if (!r) return;
    if (r->http) {
        stop(r);
        leave(r);
    }
    mw_http_response_clear(&r->response);
    free(r->url);
    free(r->host);
    free(r->method);
    free(r->error);
    free(r);
}

/* ---- what came of it ---- */

int mw_http_status(const mw_http_request *r) { return r->error ? 0 : r->status; }
const char *mw_http_error(const mw_http_request *r) { return r->error; }
const char *mw_http_error_kind(const mw_http_request *r) { return r->kind; }

double mw_http_elapsed(const mw_http_request *r) {
    return (double)((r->ended_us ? r->ended_us : time_us(r)) - r->started_us) / 1e6;
}

const char *mw_http_body(const mw_http_request *r, size_t *len) {
    *len = r->response.body_len;
    return r->response.body_len ? r->response.body : "";
}

bool mw_http_header_at(const mw_http_request *r, size_t i, const char **name, size_t *name_len,
                       const char **value, size_t *value_len) {
    const mw_http_response *p = &r->response;
    if (i >= p->field_count) return false;
    *name = p->head + p->fields[i].name;
    *name_len = p->fields[i].name_len;
    *value = p->head + p->fields[i].value;
    *value_len = p->fields[i].value_len;
    return true;
}

/* ---- starting ---- */

static void add_line(mw_http_request *r, const char *line) {
    struct curl_slist *list = curl_slist_append(r->headers, line);
    if (!list) abort();
    r->headers = list;
}

static bool has_header(const mw_http_request *r, const char *name) {
    for (struct curl_slist *l = r->headers; l; l = l->next)
        if (mw_http_header_is(l->data, name)) return true;
    return false;
}

static bool sends_body(const mw_http_request *r, const mw_http_spec *spec) {
    return spec->body || !strcmp(r->method, "POST") || !strcmp(r->method, "PUT") ||
           !strcmp(r->method, "PATCH");
}

/* Checks the spec and copies what must outlive the call. */
static bool prepare(mw_http_request *r, const mw_http_spec *spec) {
    mw_error e;
    r->method = copy(spec->method ? spec->method : "GET");
    r->host = mw_http_host_of(spec->url);
    if (mw_http_check_method(r->method, &e)) {
        r->method[0] = 0; /* not for a log */
        goto invalid;
    }
    if (mw_http_check_url(spec->url, &e)) goto invalid;
    for (size_t i = 0; i < spec->header_count; i++) {
        char *line = mw_http_header_line(spec->headers[i], &e);
        if (!line) goto invalid;
        add_line(r, line);
        free(line);
    }
    if (spec->body && !strcmp(r->method, "HEAD")) {
        mw_fail(&e, MW_EUSAGE, false, "a HEAD request has no body");
        goto invalid;
    }
    if (!has_header(r, "Expect")) add_line(r, "Expect:"); /* curl would wait a second for a 100 */
    if (sends_body(r, spec) && !has_header(r, "Content-Type"))
        add_line(r, "Content-Type:"); /* nor call it a form */
    r->url = copy(spec->url);
    if (spec->body) {
        r->body = malloc(spec->body_len + 1);
        if (!r->body) abort();
        memcpy(r->body, spec->body, spec->body_len);
        r->body_len = spec->body_len;
    }
    return true;
invalid:
    fail(r, "invalid", e.text);
    r->ended_us = time_us(r);
    return false;
}

static size_t take_header(char *line, size_t size, size_t n, void *request) {
    mw_http_request *r = request;
    if (!mw_http_response_header(&r->response, line, size * n)) return 0;
    /* After "see other" comes a GET; a method set by name would stay: DELETE, 303, DELETE. */
    if (r->response.status == 303) curl_easy_setopt(r->easy, CURLOPT_CUSTOMREQUEST, NULL);
    return size * n;
}

static size_t take_body(char *data, size_t size, size_t n, void *request) {
    mw_http_request *r = request;
    curl_off_t announced = -1;
    if (!r->response.body_len) curl_easy_getinfo(r->easy, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &announced);
    return mw_http_response_body(&r->response, data, size * n, announced) ? size * n : 0;
}

static void set_method(mw_http_request *r, const mw_http_spec *spec) {
    CURL *c = r->easy;
    bool post = !strcmp(r->method, "POST");
    if (!strcmp(r->method, "HEAD")) {
        curl_easy_setopt(c, CURLOPT_NOBODY, 1L);
        return;
    }
    if (sends_body(r, spec)) {
        curl_easy_setopt(c, CURLOPT_POST, 1L);
        curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)(r->body ? spec->body_len : 0));
        curl_easy_setopt(c, CURLOPT_POSTFIELDS, r->body ? r->body : "");
        /* 301 and 302 turn a POST into a GET, by custom; PUT and the others are sent again whole */
        if (!post) curl_easy_setopt(c, CURLOPT_POSTREDIR, (long)(CURL_REDIR_POST_301 | CURL_REDIR_POST_302));
    }
    if (!post && (r->body || strcmp(r->method, "GET") != 0))
        curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, r->method);
}

static void set_tls(mw_http_request *r, const mw_http_spec *spec) {
    CURL *c = r->easy;
    curl_easy_setopt(c, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
    curl_easy_setopt(c, CURLOPT_SSL_VERIFYPEER, spec->insecure ? 0L : 1L);
    curl_easy_setopt(c, CURLOPT_SSL_VERIFYHOST, spec->insecure ? 0L : 2L);
    /* Not both: with a path curl trusts it besides ca_file, and parsing the system's bundle holds up the loop
     * for tens of milliseconds, while a path is asked for the one certificate that is needed. */
    if (spec->ca_file) {
        curl_easy_setopt(c, CURLOPT_CAINFO, spec->ca_file);
        curl_easy_setopt(c, CURLOPT_CAPATH, NULL);
    } else {
        curl_easy_setopt(c, r->http->ca_path ? CURLOPT_CAINFO : CURLOPT_CAPATH, NULL);
    }
    if (spec->cert_file) curl_easy_setopt(c, CURLOPT_SSLCERT, spec->cert_file);
    if (spec->key_file) curl_easy_setopt(c, CURLOPT_SSLKEY, spec->key_file);
}

static void set_options(mw_http_request *r, const mw_http_spec *spec) {
    CURL *c = r->easy;
    curl_easy_setopt(c, CURLOPT_PRIVATE, r);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_QUICK_EXIT, 1L); /* else cancelling joins the resolver's thread */
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, r->curl_text);
    curl_easy_setopt(c, CURLOPT_CLOSESOCKETFUNCTION, mw_http_close_socket);
    curl_easy_setopt(c, CURLOPT_CLOSESOCKETDATA, r->http);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, r);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, r);

    curl_easy_setopt(c, CURLOPT_URL, r->url);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    bool tls = strncasecmp(r->url, "https:", 6) == 0;
    curl_easy_setopt(c, CURLOPT_REDIR_PROTOCOLS_STR, tls ? "https" : "http,https");
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, spec->follow ? 1L : 0L);
    curl_easy_setopt(c, CURLOPT_MAXREDIRS, (long)MW_HTTP_MAX_REDIRECTS);
    if (!spec->env_proxy) curl_easy_setopt(c, CURLOPT_PROXY, "");
    curl_easy_setopt(c, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl_easy_setopt(c, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, r->headers);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "moonwire/" MW_VERSION);
    curl_easy_setopt(c, CURLOPT_ACCEPT_ENCODING, "");
    if (spec->user) {
        curl_easy_setopt(c, CURLOPT_HTTPAUTH, (long)CURLAUTH_BASIC);
        curl_easy_setopt(c, CURLOPT_USERNAME, spec->user);
        curl_easy_setopt(c, CURLOPT_PASSWORD, spec->password ? spec->password : "");
    }

    curl_easy_setopt(
        c, CURLOPT_CONNECTTIMEOUT_MS,
        (long)(spec->connect_timeout_ms > 0 ? spec->connect_timeout_ms : MW_HTTP_CONNECT_TIMEOUT_MS));
    curl_easy_setopt(c, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(c, CURLOPT_TCP_KEEPIDLE, (long)KEEPALIVE_IDLE_S);
    curl_easy_setopt(c, CURLOPT_TCP_KEEPINTVL, (long)KEEPALIVE_EVERY_S);
    curl_easy_setopt(c, CURLOPT_MAXAGE_CONN, (long)CONNECTION_IDLE_S);
    curl_easy_setopt(c, CURLOPT_MAXLIFETIME_CONN, (long)CONNECTION_LIFE_S);
    set_method(r, spec);
    set_tls(r, spec);
}

/* ---- ending ---- */

static void deadline_passed(mw_timer *t) {
    mw_http_request *r = mw_container_of(t, mw_http_request, deadline);
    if (r->fake)
        mw_http_request_failed(r, "timeout", "timed out waiting for the response");
    else
        mw_http_request_over(r, CURLE_OPERATION_TIMEDOUT);
}

static void report(mw_deferred *d) {
    mw_http_request *r = mw_container_of(d, mw_http_request, report);
    leave(r);
    r->done(r, r->arg); /* may free r */
}

/* Takes the request out of curl. Not from inside a callback of curl's. */
static void stop(mw_http_request *r) {
    mw_timer_stop(&r->deadline);
    mw_timer_stop(&r->late);
    mw_http_fake_remove(r);
    if (r->easy) {
        mw_loop_outside(r->http->loop, -1);
        curl_multi_remove_handle(r->http->multi, r->easy);
        mw_http_easy_give(r->http, r->easy);
        r->easy = NULL;
    }
    curl_slist_free_all(r->headers);
    free(r->body);
    r->headers = NULL;
    r->body = NULL;
    if (r->error) mw_http_response_clear(&r->response); /* half a response is none */
}

static void leave(mw_http_request *r) {
    mw_deferred_cancel(r->http->loop, &r->report);
    *r->back = r->next;
    if (r->next) r->next->back = r->back;
    r->http = NULL;
}

static void fail(mw_http_request *r, const char *kind, const char *what) {
    r->kind = kind;
    double after = (double)(time_us(r) - r->started_us) / 1e6;
    int length = r->host ? asprintf(&r->error, "%s%s%s: %s (after %.3f s)", r->method,
                                    r->method[0] ? " " : "", r->host, what, after)
                         : asprintf(&r->error, "%s%s%s", r->method, r->method[0] ? ": " : "", what);
    if (length < 0) abort();
}

/* How far it came. From the end backwards: a reused connection has no times for its beginning. */
static const char *timeout_text(mw_http_request *r) {
    static const struct {
        CURLINFO reached;
        const char *text;
    } phases[] = {
        {CURLINFO_STARTTRANSFER_TIME_T, "timed out in the middle of the response"},
        {CURLINFO_PRETRANSFER_TIME_T, "timed out waiting for the response"},
        {CURLINFO_NAMELOOKUP_TIME_T, "timed out connecting (TCP or TLS)"},
    };
    for (size_t i = 0; i < sizeof phases / sizeof *phases; i++) {
        curl_off_t us = 0;
        curl_easy_getinfo(r->easy, phases[i].reached, &us);
        if (us) return phases[i].text;
    }
    return "timed out before the name was resolved or a connection was free";
}

static const char *kind_of(const mw_http_request *r, CURLcode code) {
    switch (code) {
    case CURLE_OPERATION_TIMEDOUT: return "timeout";
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY: return "dns";
    case CURLE_COULDNT_CONNECT: return "connect";
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_CLIENTCERT: return "tls";
    default: return r->response.too_large ? "too_large" : "other";
    }
}

/* What failed, in words; NULL where curl's own text says it best. */
static const char *text_of(mw_http_request *r, CURLcode code, char *space, size_t size) {
    long number = 0;
    switch (code) {
    case CURLE_OPERATION_TIMEDOUT: return timeout_text(r);
    case CURLE_COULDNT_RESOLVE_HOST: return "the name cannot be resolved";
    case CURLE_COULDNT_CONNECT:
        curl_easy_getinfo(r->easy, CURLINFO_OS_ERRNO, &number);
        if (!number) return NULL;
        snprintf(space, size, "cannot connect: %s", strerror((int)number));
        return space;
    case CURLE_GOT_NOTHING: return "the peer closed the connection without an answer";
    case CURLE_PARTIAL_FILE: return "the peer closed the connection in the middle of the response";
    case CURLE_UNSUPPORTED_PROTOCOL:
        curl_easy_getinfo(r->easy, CURLINFO_RESPONSE_CODE, &number);
        return number >= 300 ? "redirected to a protocol that is not allowed" : "the answer is not HTTP";
    case CURLE_WEIRD_SERVER_REPLY: /* what later versions say of a status line that is none */
        curl_easy_getinfo(r->easy, CURLINFO_RESPONSE_CODE, &number);
        return number ? NULL : "the answer is not HTTP";
    case CURLE_TOO_MANY_REDIRECTS: return "too many redirects";
    case CURLE_WRITE_ERROR:
        if (!r->response.too_large) return NULL;
        if (r->response.too_large[0] == 'h')
            snprintf(space, size, "the response has more than %d bytes of headers", MW_HTTP_MAX_HEADER_BYTES);
        else
            snprintf(space, size, "the response body is larger than %zu bytes", r->response.max_bytes);
        return space;
    default: return NULL;
    }
}

static void fail_by_code(mw_http_request *r, CURLcode code) {
    char space[200];
    long hops = 0;
    curl_easy_getinfo(r->easy, CURLINFO_REDIRECT_COUNT, &hops);
    if (hops) { /* it failed somewhere else than where it was sent */
        char *url = NULL;
        curl_easy_getinfo(r->easy, CURLINFO_EFFECTIVE_URL, &url);
        char *host = mw_http_host_of(url);
        if (host) {
            free(r->host);
            r->host = host;
        }
    }
    const char *what = text_of(r, code, space, sizeof space);
    if (!what) what = r->curl_text[0] ? r->curl_text : curl_easy_strerror(code);
    fail(r, kind_of(r, code), what);
}
