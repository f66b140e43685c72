#include "core/message.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

struct mw_message { /* 28 bytes; the bytes follow: id, key, type, headers, then the body unless borrowed */
    int64_t time_ms;
    uint32_t refs;
    uint32_t body_len, key_len, headers_len;
    uint8_t id_len, type_len, priority;
    bool has_key : 1, borrowed : 1, lazy : 1;
    char bytes[];
};
enum { RECORD = offsetof(mw_message, bytes) };

typedef struct mw_loan { /* stands right in front of a borrowed message */
    void (*release)(void *owner);
    void *owner;
    const char *body;
} mw_loan;

static mw_loan *loan_of(const mw_message *m) { return (mw_loan *)(uintptr_t)m - 1; }

typedef struct mw_later { /* stands right in front of a lazy message, and the owner in front of it */
    const mw_unread *kind;
    mw_message *rest; /* what was read: id, type, headers, priority */
} mw_later;

static mw_later *later_of(const mw_message *m) { return (mw_later *)(uintptr_t)m - 1; }
static void *owner_of(mw_later *l) { return (char *)l - l->kind->size; }

int mw_message_check(const mw_parts *p, mw_error *e) {
    if (p->body_len > MW_BODY_MAX)
        return mw_fail(e, MW_EUSAGE, false, "body of %zu bytes is over the limit of %zu", p->body_len,
                       MW_BODY_MAX);
    if (p->key_len > MW_KEY_MAX)
        return mw_fail(e, MW_EUSAGE, false, "key of %zu bytes is over the limit of %d", p->key_len,
                       MW_KEY_MAX);
    if (p->id_len > MW_ID_MAX)
        return mw_fail(e, MW_EUSAGE, false, "id of %zu bytes is over the limit of %d", p->id_len, MW_ID_MAX);
    if (p->type_len > MW_ID_MAX)
        return mw_fail(e, MW_EUSAGE, false, "content type of %zu bytes is over the limit of %d", p->type_len,
                       MW_ID_MAX);
    if (p->priority > MW_PRIORITY_MAX)
        return mw_fail(e, MW_EUSAGE, false, "priority %u is over the highest, %d", p->priority,
                       MW_PRIORITY_MAX);
    if (p->headers_len > MW_HEADERS_READ_MAX)
        return mw_fail(e, MW_EUSAGE, false, "headers of %zu bytes are over the limit of %d", p->headers_len,
                       MW_HEADERS_MAX);
    if (!mw_headers_valid(p->headers, p->headers_len))
        return mw_fail(e, MW_EFORMAT, false, "the header block is malformed");
    return 0;
}

/* ---- memory: messages come and go by hundreds, more than malloc keeps at hand for a thread, and then it
 * joins and splits its blocks each time. What is freed is kept for the next one of about that size.
 * Sanitizers get to see every block by itself. ---- */

enum { CLASSES = 64 }; /* by 16 bytes: malloc's own steps for the small ones */
#ifdef __SANITIZE_ADDRESS__
enum { KEPT_MAX = 0 };
#else
enum { KEPT_MAX = 4 << 20 };
#endif

static _Thread_local struct {
    void *first[CLASSES]; /* by size; each block begins with the next one */
    size_t bytes;
} kept;

static size_t class_of(size_t size) { return (size + 15) / 16; }
static size_t class_size(size_t class) { return class * 16; }

static void *new_space(size_t size) {
    size_t class = class_of(size);
    void *space = class < CLASSES ? kept.first[class] : NULL;
    if (space) {
        kept.first[class] = *(void **)space;
        kept.bytes -= class_size(class);
        return space;
    }
    if (!(space = malloc(class < CLASSES ? class_size(class) : size))) abort();
    return space;
}

static void free_space(void *space, size_t size) {
    size_t class = class_of(size);
    if (class >= CLASSES || kept.bytes + size > KEPT_MAX) {
        free(space);
        return;
    }
    *(void **)space = kept.first[class];
    kept.first[class] = space;
    kept.bytes += class_size(class);
}

/* ---- making ---- */

static char *append(char *at, const char *data, size_t len) {
    if (len) memcpy(at, data, len);
    return at + len;
}

static mw_message *build(void *space, const mw_parts *p, bool borrowed) {
    mw_message *m = space; /* not assigned as a whole: its padding would reach into the bytes */
    m->time_ms = p->time_ms;
    m->refs = 1;
    m->body_len = (uint32_t)p->body_len;
    m->key_len = p->has_key ? (uint32_t)p->key_len : 0;
    m->headers_len = (uint32_t)p->headers_len;
    m->id_len = (uint8_t)p->id_len;
    m->type_len = (uint8_t)p->type_len;
    m->priority = p->priority;
    m->has_key = p->has_key;
    m->borrowed = borrowed;
    m->lazy = false;
    char *at = append(m->bytes, p->id, p->id_len);
    at = append(at, p->key, m->key_len);
    at = append(at, p->type, p->type_len);
    at = append(at, p->headers, p->headers_len);
    if (!borrowed) append(at, p->body, p->body_len);
    return m;
}

static size_t meta_size(const mw_parts *p) {
    return p->id_len + (p->has_key ? p->key_len : 0) + p->type_len + p->headers_len;
}

mw_message *mw_message_new(const mw_parts *p) {
    return build(new_space(RECORD + meta_size(p) + p->body_len), p, false);
}

mw_message *mw_message_borrow(const mw_parts *p, void (*release)(void *owner), void *owner) {
    mw_loan *loan = new_space(sizeof *loan + RECORD + meta_size(p));
    *loan = (mw_loan){release, owner, p->body};
    return build(loan + 1, p, true);
}

mw_message *mw_message_new_unread(const mw_parts *p, const mw_unread *kind, void **owner) {
    mw_parts now = {.body = p->body,
                    .body_len = p->body_len,
                    .key = p->key,
                    .key_len = p->key_len,
                    .has_key = p->has_key,
                    .priority = MW_PRIORITY_DEFAULT,
                    .time_ms = p->time_ms};
    char *space = new_space(kind->size + sizeof(mw_later) + RECORD + meta_size(&now) + now.body_len);
    mw_later *later = (mw_later *)(void *)(space + kind->size);
    *later = (mw_later){kind, NULL};
    mw_message *m = build(later + 1, &now, false);
    m->lazy = true;
    *owner = space;
    return m;
}

void mw_message_read(const mw_message *m) {
    if (!m->lazy || later_of(m)->rest) return;
    mw_later *l = later_of(m);
    l->rest = l->kind->read(owner_of(l));
    l->kind->release(owner_of(l));
}

mw_message *mw_message_ref(mw_message *m) {
    m->refs++;
    return m;
}

void mw_message_unref(mw_message *m) {
    if (!m || --m->refs) return;
    if (m->lazy) {
        mw_later *later = later_of(m);
        if (!later->rest) later->kind->release(owner_of(later));
        mw_message_unref(later->rest);
        free_space(owner_of(later), later->kind->size + sizeof *later + mw_message_size(m));
    } else if (m->borrowed) {
        mw_loan *loan = loan_of(m);
        loan->release(loan->owner);
        free_space(loan, sizeof *loan + mw_message_size(m) - m->body_len);
    } else {
        free_space(m, mw_message_size(m));
    }
}

void mw_message_known(const mw_message *m, mw_parts *out) {
    const char *key = m->bytes + m->id_len, *type = key + m->key_len, *headers = type + m->type_len;
    *out = (mw_parts){.body = m->borrowed ? loan_of(m)->body : headers + m->headers_len,
                      .body_len = m->body_len,
                      .key = key,
                      .key_len = m->key_len,
                      .has_key = m->has_key,
                      .id = m->bytes,
                      .id_len = m->id_len,
                      .type = type,
                      .type_len = m->type_len,
                      .headers = headers,
                      .headers_len = m->headers_len,
                      .priority = m->priority,
                      .time_ms = m->time_ms};
}

void mw_message_parts(const mw_message *m, mw_parts *out) {
    mw_message_known(m, out);
    if (!m->lazy) return;
    mw_message_read(m);
    mw_parts rest;
    mw_message_known(later_of(m)->rest, &rest);
    out->id = rest.id;
    out->id_len = rest.id_len;
    out->type = rest.type;
    out->type_len = rest.type_len;
    out->headers = rest.headers;
    out->headers_len = rest.headers_len;
    out->priority = rest.priority;
}

size_t mw_message_size(const mw_message *m) {
    return RECORD + m->body_len + m->key_len + m->headers_len + m->id_len + m->type_len;
}

uint8_t mw_message_priority(const mw_message *m) { return m->priority; }

uint64_t mw_message_lane(const mw_message *m) {
    return m->has_key ? mw_hash64(m->bytes + m->id_len, m->key_len) : 0;
}

/* ---- header blocks ---- */

enum { HEADER_PREFIX = 6 };

bool mw_headers_next(const char *block, size_t len, size_t *at, mw_header *out) {
    if (len - *at < HEADER_PREFIX || *at >= len) return false;
    const unsigned char *p = (const unsigned char *)block + *at;
    size_t name_len = p[0] | (size_t)p[1] << 8;
    size_t value_len = p[2] | (size_t)p[3] << 8 | (size_t)p[4] << 16 | (size_t)p[5] << 24;
    size_t left = len - *at - HEADER_PREFIX;
    if (name_len > left || value_len > left - name_len) return false;
    out->name = block + *at + HEADER_PREFIX;
    out->name_len = name_len;
    out->value = out->name + name_len;
    out->value_len = value_len;
    *at += HEADER_PREFIX + name_len + value_len;
    return true;
}

bool mw_headers_find(const char *block, size_t len, const char *name, mw_header *out) {
    size_t at = 0, want = strlen(name);
    while (mw_headers_next(block, len, &at, out))
        if (out->name_len == want && memcmp(out->name, name, want) == 0) return true;
    return false;
}

bool mw_headers_valid(const char *block, size_t len) {
    size_t at = 0;
    mw_header h;
    while (mw_headers_next(block, len, &at, &h))
        if (h.name_len == 0 || h.name_len > MW_HEADER_NAME_MAX) return false;
    return at == len;
}

void mw_headers_add(mw_headers *h, const char *name, size_t name_len, const char *value, size_t value_len) {
    size_t need = h->len + HEADER_PREFIX + name_len + value_len;
    if (need > h->capacity) {
        h->capacity = need * 2;
        h->data = realloc(h->data, h->capacity);
        if (!h->data) abort();
    }
    unsigned char *p = (unsigned char *)h->data + h->len;
    for (int i = 0; i < 2; i++) p[i] = (unsigned char)(name_len >> (8 * i));
    for (int i = 0; i < 4; i++) p[2 + i] = (unsigned char)(value_len >> (8 * i));
    append(append((char *)p + HEADER_PREFIX, name, name_len), value, value_len);
    h->len = need;
}

void mw_headers_addf(mw_headers *h, const char *name, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t len = n < 0 ? 0 : (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    mw_headers_add(h, name, strlen(name), text, len);
}

void mw_headers_free(mw_headers *h) {
    free(h->data);
    *h = (mw_headers){0};
}
