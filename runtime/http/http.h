/* http.h - HTTP requests on the worker's loop: libcurl's multi interface behind mw_io, mw_timer, mw_defer.
 * Loop thread only. Whoever starts a request owns it and frees it, whatever became of it; nothing that was
 * passed to mw_http_start needs to live longer than that call. Names are resolved in threads, so no call here
 * waits. The process must ignore SIGPIPE. ffi.cdef can read this file (without its # lines):
 * lua/moonwire/http.lua calls these functions. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

typedef struct mw_http mw_http;
typedef struct mw_http_request mw_http_request;
struct mw_loop;
struct mw_vm;

enum {
    MW_HTTP_TIMEOUT_MS = 30000,
    MW_HTTP_CONNECT_TIMEOUT_MS = 10000,
    MW_HTTP_MAX_BYTES = 16 << 20,
    MW_HTTP_MAX_HEADER_BYTES = 64 << 10,
    MW_HTTP_MAX_REDIRECTS = 5,
};

typedef struct mw_http_spec { /* zeroed means the defaults; only url is required */
    const char *method;       /* "GET" */
    const char *url;          /* http:// or https:// */
    const char *body;         /* NULL: none */
    size_t body_len;
    const char *const *headers; /* lines "Name: value" */
    size_t header_count;
    const char *ca_file;              /* PEM; instead of the system's */
    const char *cert_file, *key_file; /* PEM; the client's */
    const char *user, *password;      /* basic authentication; not sent on to another host */
    size_t max_bytes;                 /* of the decoded response body; MW_HTTP_MAX_BYTES */
    int timeout_ms;                   /* the whole request, waiting for a free connection included */
    int connect_timeout_ms;           /* name, TCP and TLS */
    bool follow;                      /* redirects, MW_HTTP_MAX_REDIRECTS at most, never from https to http */
    bool insecure;                    /* any certificate will do */
    bool env_proxy;                   /* http_proxy, https_proxy, no_proxy count */
} mw_http_spec;

mw_http *mw_http_new(struct mw_loop *l);
/* Ends everything that runs: no callback comes after this. Requests not freed yet stay valid, "cancelled",
 * and are still their owners' to free. NULL is fine. */
void mw_http_free(mw_http *h);

/* Never NULL. done comes exactly once, from a deferred call, unless the request or h is freed before. A spec
 * that cannot be sent (kind "invalid") is reported the same way, and through mw_http_error at once. */
mw_http_request *mw_http_start(mw_http *h, const mw_http_spec *spec,
                               void (*done)(mw_http_request *r, void *arg), void *arg);
/* The same for a handler that waits: done is mw_vm_complete(vm, waiter). Calls nothing of Lua. */
mw_http_request *mw_http_start_for(struct mw_vm *vm, mw_http *h, const mw_http_spec *spec, double waiter);
void mw_http_request_free(mw_http_request *r); /* cancels what still runs; fine inside done; NULL is fine */

/* For specs: while on, requests do not go out. They are taken one by one, and each is given its headers
 * (lines, the status line first), then an answer; or a failure of one of the kinds below. Never answered, it
 * times out. */
void mw_http_fake(bool on);
bool mw_http_fake_pending(void);
mw_http_request *mw_http_fake_next(void); /* NULL: none */
const char *mw_http_fake_method(const mw_http_request *r);
const char *mw_http_fake_url(const mw_http_request *r);
const char *mw_http_fake_body(const mw_http_request *r, size_t *len); /* NULL: none */
const char *mw_http_fake_header(const mw_http_request *r, size_t i);  /* "Name: value"; NULL past the last */
void mw_http_fake_head(mw_http_request *r, const char *line, size_t len);
void mw_http_fake_answer(mw_http_request *r, const char *body, size_t len, double delay_ms);
void mw_http_fake_fail(mw_http_request *r, const char *kind, const char *text);

/* What came of it; texts live as long as the request. */
int mw_http_status(const mw_http_request *r);        /* 0 on failure, and before done */
double mw_http_elapsed(const mw_http_request *r);    /* seconds from start to end */
const char *mw_http_error(const mw_http_request *r); /* host, what failed, after how long; NULL: it did not */
/* "timeout" "connect" "dns" "tls" "too_large" "invalid" "cancelled" "other"; NULL without an error */
const char *mw_http_error_kind(const mw_http_request *r);
const char *mw_http_body(const mw_http_request *r, size_t *len); /* never NULL; NUL-terminated */
/* The i-th header of the final response, from 0; false past the last. */
bool mw_http_header_at(const mw_http_request *r, size_t i, const char **name, size_t *name_len,
                       const char **value, size_t *value_len);
