/* fake.c - requests that a spec answers. While fakes are on, a request does not reach curl: it queues here
 * until the spec takes it and says what the peer would have. Its deadline is on the loop's clock, which is
 * virtual then. */
#include <stdlib.h>
#include <string.h>

#include "http/internal.h"

static bool on;
static mw_http_request *first, **tail = &first;

void mw_http_fake(bool wanted) { on = wanted; }
bool mw_http_fake_wanted(void) { return on; }

void mw_http_fake_add(mw_http_request *r) {
    r->fake_next = NULL;
    r->fake_back = tail;
    *tail = r;
    tail = &r->fake_next;
}

void mw_http_fake_remove(mw_http_request *r) {
    if (!r->fake_back) return;
    *r->fake_back = r->fake_next;
    if (r->fake_next)
        r->fake_next->fake_back = r->fake_back;
    else
        tail = r->fake_back;
    r->fake_next = NULL;
    r->fake_back = NULL;
}

bool mw_http_fake_pending(void) { return first != NULL; }

mw_http_request *mw_http_fake_next(void) {
    mw_http_request *r = first;
    if (r) mw_http_fake_remove(r);
    return r;
}

const char *mw_http_fake_method(const mw_http_request *r) { return r->method; }
const char *mw_http_fake_url(const mw_http_request *r) { return r->url; }

const char *mw_http_fake_body(const mw_http_request *r, size_t *len) {
    *len = r->body_len;
    return r->body;
}

const char *mw_http_fake_header(const mw_http_request *r, size_t i) {
    const struct curl_slist *l = r->headers;
    while (l && i--) l = l->next;
    return l ? l->data : NULL;
}

void mw_http_fake_head(mw_http_request *r, const char *line, size_t len) {
    mw_http_response_header(&r->response, line, len);
}

static void answered(mw_timer *t) {
    mw_http_request *r = mw_container_of(t, mw_http_request, late);
    mw_http_request_over(r, r->response.too_large ? CURLE_WRITE_ERROR : CURLE_OK);
}

void mw_http_fake_answer(mw_http_request *r, const char *body, size_t len, double delay_ms) {
    mw_http_response_body(&r->response, body, len, -1);
    if (delay_ms > 0)
        mw_timer_start(r->http->loop, &r->late, (int64_t)delay_ms, answered);
    else
        answered(&r->late);
}

void mw_http_fake_fail(mw_http_request *r, const char *kind, const char *text) {
    static const char *const kinds[] = {"timeout", "connect", "dns", "tls", "too_large", "other"};
    size_t i = 0;
    while (i + 1 < sizeof kinds / sizeof *kinds && strcmp(kinds[i], kind) != 0) i++;
    mw_http_request_failed(r, kinds[i], text);
}
