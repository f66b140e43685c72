/* internal.h - what the files of runtime/http share. multi.c owns the multi handle, its sockets and the pool
 * of easy handles; request.c owns requests; response.c collects what the peer sends; check.c judges a spec.
 */
#pragma once
#include <curl/curl.h>
#include <stdint.h>

#include "base/error.h"
#include "loop/loop.h"
#include "http/http.h"

typedef struct mw_http_socket mw_http_socket;

struct mw_http {
    mw_loop *loop;
    CURLM *multi;
    mw_timer timer;           /* the one timeout curl asks for */
    mw_deferred soon;         /* the same when it asks for "now" */
    mw_http_socket **sockets; /* by fd; a record stays for the next socket of that number */
    int socket_count;
    CURL **pool;
    int pool_count;
    bool ca_path;              /* the system keeps its CA certificates in a directory by hash */
    mw_http_request *requests; /* those whose done is still to come */
};

CURL *mw_http_easy_take(mw_http *h);
void mw_http_easy_give(mw_http *h, CURL *easy); /* removed from the multi handle by then */
int mw_http_close_socket(void *http, curl_socket_t fd);

/* A response as it comes in. Bounded by max_bytes and MW_HTTP_MAX_HEADER_BYTES. */
typedef struct mw_http_field {
    uint32_t name, name_len, value, value_len; /* places in mw_http_response.head */
} mw_http_field;

typedef struct mw_http_response {
    char *body;
    size_t body_len, body_capacity, max_bytes;
    char *head;
    size_t head_len, head_capacity;
    mw_http_field *fields;
    size_t field_count, field_capacity;
    size_t head_seen; /* bytes of headers, trailers and interim responses */
    int status;       /* of the block being read */
    bool in_head;
    const char *too_large; /* what was: "body", "headers" */
} mw_http_response;

/* Both return false when a limit is passed. */
bool mw_http_response_header(mw_http_response *p, const char *line, size_t len);
bool mw_http_response_body(mw_http_response *p, const char *data, size_t len, curl_off_t announced);
void mw_http_response_clear(mw_http_response *p); /* keeps max_bytes and too_large */

struct mw_http_request {
    mw_http *http; /* NULL once done was called, or http is gone */
    mw_http_request *next, **back;
    CURL *easy;              /* while it runs */
    mw_timer deadline, late; /* late: a faked answer that takes its time */
    mw_http_request *fake_next, **fake_back;
    bool fake;
    mw_deferred report;
    void (*done)(mw_http_request *r, void *arg);
    void *arg;
    double waiter; /* bind.c's */
    char *url, *host, *method, *body;
    size_t body_len;
    struct curl_slist *headers;
    mw_http_response response;
    uint64_t started_us, ended_us;
    int status;
    const char *kind;
    char *error;
    char curl_text[CURL_ERROR_SIZE];
};

/* The transfer is over as far as curl is concerned. Called outside of curl's callbacks. */
void mw_http_request_over(mw_http_request *r, CURLcode result);
void mw_http_request_failed(mw_http_request *r, const char *kind, const char *what); /* kind: static */
void mw_http_request_orphan(mw_http_request *r);                                     /* http goes away */

/* fake.c */
bool mw_http_fake_wanted(void);
void mw_http_fake_add(mw_http_request *r);
void mw_http_fake_remove(mw_http_request *r); /* not queued is fine */

/* Pure checks: 0, or -1 and why not. */
int mw_http_check_method(const char *method, mw_error *e);
int mw_http_check_url(const char *url, mw_error *e);
char *mw_http_host_of(const char *url); /* host[:port] for messages, never credentials; to be freed */
/* The line as curl wants it, to be freed; NULL when it cannot be sent. */
char *mw_http_header_line(const char *line, mw_error *e);
bool mw_http_header_is(const char *line, const char *name);
