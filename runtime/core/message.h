/* message.h - an immutable message: body, key, headers, id, content type, publish time, priority.
 * Reference counted; one allocation holds the record and its bytes. A driver that already has the body in
 * memory of its own passes `owner` and `release` to mw_message_borrow instead of copying it; one for which id
 * and headers are work makes an unread message. Loop thread only (the count is not atomic), except that a
 * thread may build one before it hands it over. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "core/parts.h"

typedef struct mw_message mw_message;

enum {
    MW_PRIORITY_DEFAULT = 4, /* 0 lowest .. 9 highest */
    MW_PRIORITY_MAX = 9,
    MW_ID_MAX = 255,
    MW_KEY_MAX = 1 << 20,
    MW_HEADER_NAME_MAX = 255,
    MW_HEADERS_MAX = 1 << 20,      /* all of them, encoded */
    MW_HEADERS_OWN_MAX = 64 << 10, /* on top of it: what we add to a dead letter */
    /* What is read back: others may fill both, and then it dies. */
    MW_HEADERS_READ_MAX = MW_HEADERS_MAX + 2 * MW_HEADERS_OWN_MAX,
};
#define MW_BODY_MAX ((size_t)1 << 30)

int mw_message_check(const mw_parts *p, mw_error *e); /* lengths, header block, priority: 0 or -1 */

/* Copies everything. The parts were checked. One reference for the caller. */
mw_message *mw_message_new(const mw_parts *p);
/* Copies everything but the body; calls release(owner) when the last reference goes. */
mw_message *mw_message_borrow(const mw_parts *p, void (*release)(void *owner), void *owner);

/* An unread message: it has body, key and time; id, type, headers and priority are read from where they came
 * when somebody asks for them, which a simple handler never does. Its order is that of the default priority,
 * and its size without them. */
typedef struct mw_unread {
    size_t size;                      /* of the owner, a multiple of 16: it stands in front of the message */
    mw_message *(*read)(void *owner); /* a message that has those four parts; the reference passes */
    void (*release)(void *owner);     /* read by now, or never to be */
} mw_unread;
mw_message *mw_message_new_unread(const mw_parts *p, const mw_unread *kind, void **owner);
void mw_message_read(const mw_message *m); /* now, if it is not yet; a borrowed or whole one always is */

mw_message *mw_message_ref(mw_message *m);
void mw_message_unref(mw_message *m); /* NULL is fine */

void mw_message_parts(const mw_message *m, mw_parts *out); /* pointers live as long as m */
/* The same without reading anything: an unread one has no id, type and headers here. For signal handlers,
 * too.
 */
void mw_message_known(const mw_message *m, mw_parts *out);
size_t mw_message_size(const mw_message *m);   /* what it costs in memory: the unit of byte limits */
uint64_t mw_message_lane(const mw_message *m); /* hash of the key; 0 without a key */
uint8_t mw_message_priority(const mw_message *m);

/* ---- header blocks: repeated { u16 name length, u32 value length, name, value }, little endian ---- */

typedef struct mw_header {
    const char *name, *value;
    size_t name_len, value_len;
} mw_header;

/* Walks a block: *at starts at 0; false at the end. On a malformed block it ends early; check first. */
bool mw_headers_next(const char *block, size_t len, size_t *at, mw_header *out);
bool mw_headers_find(const char *block, size_t len, const char *name,
                     mw_header *out); /* the first of that name */
bool mw_headers_valid(const char *block, size_t len);

/* A growing block. */
typedef struct mw_headers {
    char *data;
    size_t len, capacity;
} mw_headers; /* zero-initialised is empty */
void mw_headers_add(mw_headers *h, const char *name, size_t name_len, const char *value, size_t value_len);
void mw_headers_addf(mw_headers *h, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void mw_headers_free(mw_headers *h);
