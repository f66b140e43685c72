/* response.c - the response as it comes in, piece by piece, from a peer that may be hostile. Keeps the
 * headers of the last block only: interim (1xx) answers and redirects are forgotten, trailers are dropped. */
#include <stdlib.h>
#include <string.h>

#include "http/internal.h"

static void *grow(void *data, size_t *capacity, size_t need, size_t unit) {
    if (need <= *capacity) return data;
    size_t next = *capacity ? *capacity * 2 : 256;
    if (next < need) next = need;
    data = realloc(data, next * unit);
    if (!data) abort();
    *capacity = next;
    return data;
}

static uint32_t keep(mw_http_response *p, const char *data, size_t len) {
    uint32_t at = (uint32_t)p->head_len;
    p->head = grow(p->head, &p->head_capacity, p->head_len + len, 1);
    memcpy(p->head + at, data, len);
    p->head_len += len;
    return at;
}

static void trim(const char **s, size_t *len) {
    while (*len && ((*s)[0] == ' ' || (*s)[0] == '\t')) (*s)++, (*len)--;
    while (*len && strchr(" \t\r\n", (*s)[*len - 1])) (*len)--;
}

static void begin_block(mw_http_response *p, const char *line, size_t len) {
    if (p->status >= 300) p->head_seen = len; /* a redirect's headers do not count against the next hop */
    p->head_len = p->field_count = p->body_len = 0;
    p->in_head = true;
    p->status = 0;
    const char *space = memchr(line, ' ', len);
    for (size_t i = 1; space && i <= 3 && space + i < line + len; i++)
        if (space[i] >= '0' && space[i] <= '9') p->status = p->status * 10 + (space[i] - '0');
}

/* A line that begins with white space continues the value before it (obsolete, still seen). */
static void continue_value(mw_http_response *p, const char *line, size_t len) {
    if (!p->field_count) return;
    trim(&line, &len);
    keep(p, " ", 1);
    keep(p, line, len);
    p->fields[p->field_count - 1].value_len += (uint32_t)len + 1;
}

bool mw_http_response_header(mw_http_response *p, const char *line, size_t len) {
    p->head_seen += len;
    if (p->head_seen > MW_HTTP_MAX_HEADER_BYTES) {
        p->too_large = "headers";
        return false;
    }
    if (len >= 5 && memcmp(line, "HTTP/", 5) == 0) {
        begin_block(p, line, len);
        return true;
    }
    if (!p->in_head) return true;
    if (line[0] == ' ' || line[0] == '\t') {
        continue_value(p, line, len);
        return true;
    }
    const char *colon = memchr(line, ':', len);
    if (!colon || colon == line) {
        if (line[0] == '\r' || line[0] == '\n') p->in_head = false;
        return true;
    }
    const char *name = line, *value = colon + 1;
    size_t name_len = (size_t)(colon - line), value_len = len - name_len - 1;
    trim(&name, &name_len);
    trim(&value, &value_len);
    p->fields = grow(p->fields, &p->field_capacity, p->field_count + 1, sizeof *p->fields);
    mw_http_field *f = &p->fields[p->field_count++];
    f->name = keep(p, name, name_len);
    f->name_len = (uint32_t)name_len;
    f->value = keep(p, value, value_len);
    f->value_len = (uint32_t)value_len;
    return true;
}

bool mw_http_response_body(mw_http_response *p, const char *data, size_t len, curl_off_t announced) {
    /* what is announced may be a lie: it can refuse early, but it reserves little */
    if (len > p->max_bytes - p->body_len || (announced > 0 && (uint64_t)announced > p->max_bytes)) {
        p->too_large = "body";
        return false;
    }
    size_t need = p->body_len + len + 1;
    if (announced > 0 && announced < 1 << 20 && need < (size_t)announced + 1) need = (size_t)announced + 1;
    p->body = grow(p->body, &p->body_capacity, need, 1);
    memcpy(p->body + p->body_len, data, len);
    p->body_len += len;
    p->body[p->body_len] = 0;
    return true;
}

void mw_http_response_clear(mw_http_response *p) {
    free(p->body);
    free(p->head);
    free(p->fields);
    *p = (mw_http_response){.max_bytes = p->max_bytes, .too_large = p->too_large};
}
