/* admin.c - looking into a stream and taking entries out of it from outside. A position is the entry's id.
 * Delayed messages are not in the stream yet, and not shown. */
#include <stdlib.h>
#include <string.h>

#include "drivers/redis/redis.h"

enum { PAGE = 200 };

/* ---- browse ---- */

typedef struct browsing {
    void *cookie;
    mwr_channel *channel;
    mw_position last;
    bool newest;
    size_t count;
    mw_entry entries[PAGE];
} browsing;

static void found(browsing *b, const mwr_unit *u) {
    size_t len;
    mwr_id id;
    const mwr_node *fields = mwr_child(u->node, 1);
    const char *text = mwr_text(u, mwr_child(u->node, 0), &len);
    if (!fields || !mwr_id_read(text, len, &id)) return;
    b->last = (mw_position){id.ms, id.seq};
    if (b->newest || b->count == PAGE) return;
    b->entries[b->count++] =
        (mw_entry){.position = b->last, .msg = mwr_entry_message(b->channel, u, fields, id)};
}

static void answer(mw_conn *c, browsing *b, const mw_error *e) {
    c->host->browsed(c->link, b->cookie, b->entries, e ? 0 : b->count, b->last, e);
    for (size_t i = 0; i < b->count; i++) mw_message_unref(b->entries[i].msg);
    free(b);
}

/* Those that wait for a retry stand in the stream like all others. */
static void dues(void *owner, void *cookie, const mwr_unit *u, bool more, const mw_error *e) {
    (void)more;
    browsing *b = cookie;
    for (size_t i = 0; !e && u->node->type == MWR_ARRAY && i < b->count && i < u->node->count; i++)
        b->entries[i].due_ms = mwr_number(u, mwr_child(u->node, (uint32_t)i));
    answer(owner, b, e && !u ? e : NULL);
}

static void ask_dues(mw_conn *c, browsing *b) {
    char *key = mwr_key_beside(b->channel->name, "retries", "");
    mw_buf *o = mwr_command(c->client, 5 + b->count, dues, b, 0);
    mwr_write_text(o, "EVALSHA");
    mwr_write(o, mwr_script_sha(MWR_DUES), 40);
    mwr_write_text(o, "1");
    mwr_write_text(o, b->channel->name);
    mwr_write_text(o, key);
    for (size_t i = 0; i < b->count; i++)
        mwr_write_id(o, (mwr_id){b->entries[i].position.high, b->entries[i].position.low});
    mwr_flush(c->client);
    free(key);
}

static void browsed(void *owner, void *cookie, const mwr_unit *u, bool more, const mw_error *e) {
    mw_conn *c = owner;
    browsing *b = cookie;
    if (!e && u->node->type == MWR_ARRAY && u->node->count) found(b, u);
    if (more) return;
    if (e || !b->count || c->closing)
        answer(c, b, e);
    else
        ask_dues(c, b);
}

void mwr_browse(mw_conn *c, const mw_browse *want) {
    browsing *b = mwr_alloc(sizeof *b);
    *b = (browsing){.cookie = want->cookie,
                    .channel = mwr_channel_of(c, want->channel),
                    .last = want->newest ? (mw_position){0} : want->after,
                    .newest = want->newest};
    char after[MWR_ID_TEXT + 1] = "(";
    mwr_id_print((mwr_id){want->after.high, want->after.low}, after + 1);
    bool begin = !want->after.high && !want->after.low;
    mw_buf *o = mwr_command(c->client, 6, browsed, b, 1);
    mwr_write_text(o, want->newest ? "XREVRANGE" : "XRANGE");
    mwr_write_text(o, want->channel);
    mwr_write_text(o, want->newest ? "+" : begin ? "-" : after);
    mwr_write_text(o, want->newest ? "-" : "+");
    mwr_write_text(o, "COUNT");
    mwr_write_number(o, want->newest ? 1 : (int64_t)(want->max < PAGE ? want->max : PAGE));
    mwr_flush(c->client);
}

/* ---- remove ---- */

static void removed(void *owner, void *cookie, const mwr_unit *u, bool more, const mw_error *e) {
    (void)more;
    mw_conn *c = owner;
    c->host->removed(c->link, cookie, e ? 0 : (size_t)mwr_number(u, u->node), e);
}

void mwr_remove(mw_conn *c, const mw_removal *r) {
    size_t arguments = 3 + 1 + r->publish_count + r->count;
    for (size_t i = 0; i < r->publish_count; i++) arguments += mwr_publication_count(&r->publish[i]);
    mw_buf *b = mwr_command(c->client, arguments, removed, r->cookie, 0);
    mwr_write_text(b, "EVALSHA");
    mwr_write(b, mwr_script_sha(MWR_REMOVE), 40);
    mwr_write_number(b, (int64_t)(1 + r->publish_count));
    mwr_write_text(b, r->channel);
    for (size_t i = 0; i < r->publish_count; i++) {
        char *key = mwr_publication_key(&r->publish[i]);
        mwr_write_text(b, key);
        free(key);
    }
    for (size_t i = 0; i < r->count; i++) {
        mwr_write_id(b, (mwr_id){r->positions[i].high, r->positions[i].low});
        if (r->publish_count) mwr_publication_write(c, b, &r->publish[i]);
    }
    mwr_flush(c->client);
}
