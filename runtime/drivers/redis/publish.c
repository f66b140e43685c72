/* publish.c - publishing: XADD, in a pipeline; delayed messages stand in a sorted set until a member of any
 * group of the stream moves them. And dedupe records: a key each, with a token while it is claimed and "done"
 * after. */
#include <stdlib.h>
#include <string.h>

#include "base/uuid.h"
#include "drivers/redis/redis.h"

static void published(void *owner, void *cookie, const mwr_unit *u, bool more, const mw_error *e) {
    (void)u, (void)more;
    mw_conn *c = owner;
    c->host->published(c->link, cookie, e);
}

static void add_now(mw_conn *c, const mw_publication *p, const mwr_channel *channel, const mw_parts *parts,
                    mwr_on_reply *reply, void *cookie) {
    bool trim = channel->trim_count > 0;
    mw_buf *b = mwr_command(c->client, 3 + (trim ? 3 : 0) + mwr_entry_count(parts), reply, cookie, 0);
    mwr_write_text(b, "XADD");
    mwr_write_text(b, p->channel);
    if (trim) {
        mwr_write_text(b, "MAXLEN");
        mwr_write_text(b, "~");
        mwr_write_number(b, (int64_t)channel->trim_count);
    }
    mwr_write_text(b, "*");
    mwr_entry_write(b, channel, parts);
}

static void add_later(mw_conn *c, const mw_publication *p, const mwr_channel *channel, const mw_parts *parts,
                      mwr_on_reply *reply, void *cookie) {
    char *key = mwr_key_beside(p->channel, "delayed", "");
    mw_buf *b = mwr_command(c->client, 6 + mwr_entry_count(parts), reply, cookie, 0);
    mwr_write_text(b, "EVALSHA");
    mwr_write(b, mwr_script_sha(MWR_DELAY), 40);
    mwr_write_text(b, "1");
    mwr_write_text(b, key);
    mwr_write_number(b, p->delay_ms);
    mwr_write_number(b, (int64_t)(mw_random64() >> 1));
    mwr_entry_write(b, channel, parts);
    free(key);
}

void mwr_publish_one(mw_conn *c, const mw_publication *p, mwr_on_reply *reply, void *cookie) {
    mw_parts parts;
    mw_message_parts(p->msg, &parts);
    mwr_channel *channel = mwr_channel_of(c, p->channel);
    if (p->delay_ms > 0)
        add_later(c, p, channel, &parts, reply, cookie);
    else
        add_now(c, p, channel, &parts, reply, cookie);
}

void mwr_publish(mw_conn *c, const mw_publication *list, size_t count) {
    for (size_t i = 0; i < count; i++) {
        mw_error e;
        if (mwr_publication_check(c, &list[i], &e))
            mwr_answer_later(c, NULL, list[i].cookie, &e);
        else
            mwr_publish_one(c, &list[i], published, list[i].cookie);
    }
    mwr_flush(c->client);
}

/* ---- dedupe ---- */

static void claimed(void *owner, void *cookie, const mwr_unit *u, bool more, const mw_error *e) {
    (void)more;
    mw_conn *c = owner;
    static const mw_claim CLAIMS[] = {MW_CLAIM_YOURS, MW_CLAIM_BUSY, MW_CLAIM_SEEN};
    int64_t n = e ? 0 : mwr_number(u, u->node);
    c->host->claimed(c->link, cookie, CLAIMS[n >= 0 && n <= 2 ? n : 1], e);
}

void mwr_dedupe(mw_conn *c, const mw_dedupe *list, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const mw_dedupe *d = &list[i];
        bool claim = d->op == MW_DEDUPE_CLAIM, release = d->op == MW_DEDUPE_RELEASE;
        mw_buf *b = mwr_command(c->client, release ? 5 : 6, claim ? claimed : NULL, d->cookie, 0);
        mwr_write_text(b, "EVALSHA");
        mwr_write(b, mwr_script_sha(claim ? MWR_CLAIM : release ? MWR_RELEASE : MWR_DONE), 40);
        mwr_write_text(b, "1");
        mwr_write_dedupe_key(c, b, d->key, d->key_len);
        mwr_write_text(b, c->token);
        if (!release) mwr_write_number(b, d->ttl_ms > 0 ? d->ttl_ms : 1);
    }
    mwr_flush(c->client);
}
