/* driver.h - the contract between the core and a broker driver, in both directions.
 *
 * A driver is one const struct (mw_driver) named in drivers.c. The core opens connections and subscriptions
 * through it; the driver answers through mw_host. The driver never sees core structs, the core never sees a
 * socket. Everything below happens on the loop's thread; a driver with threads of its own comes back through
 * an mw_wake. No call may block.
 *
 * Re-entrancy: a driver may call mw_host functions from inside any driver call except `settle`, `publish`,
 * `dedupe`, `browse`, `remove`, `groups`, `remove_group`, `topology`, `request`: their answers come in a
 * later deferred call, so that the core's lists are never changed under its feet.
 *
 * The core may call any driver function from inside a host call.
 *
 * The life of a delivery:
 *   driver --deliver--> core --begin--> (handler) --settle--> driver --settled--> core
 * Each delivered message gets exactly one settlement that ends it (ACK, RETRY without hold, PARK, RELEASE),
 * unless it is fenced first. Each settlement gets exactly one `settled`. A settlement for a tag whose unit
 * was fenced is answered with MW_EFENCED.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "loop/loop.h"
#include "base/text.h"
#include "base/url.h"
#include "core/message.h"
#include "core/spec.h"
#include "net/peer.h"

typedef struct mw_conn mw_conn;     /* the driver's: one connection; each driver defines and casts its own */
typedef struct mw_sub mw_sub;       /* the driver's: one subscription */
typedef struct mw_source mw_source; /* the core's: opaque to drivers */
typedef struct mw_link mw_link;     /* the core's: opaque to drivers, one per connection */

typedef enum { MW_ORDER_NONE, MW_ORDER_KEY, MW_ORDER_SOURCE } mw_order;

/* What a broker can do by itself. The core fills the rest, or refuses the setting at start. */
enum {
    MW_CAN_DELAY = 1 << 0,    /* publish with a delay */
    MW_CAN_PRIORITY = 1 << 1, /* a higher priority is delivered first */
    MW_CAN_ATOMIC = 1 << 2,   /* settlements carry publications on the same connection, in one transaction */
    /* PARK, and key marks: on_dead = "hold_key" and "dead_key"; put_back: lanes larger than the window. */
    MW_CAN_PARK = 1 << 3,
    MW_CAN_DEDUPE = 1 << 4,   /* claim / done / release */
    MW_CAN_BROWSE = 1 << 5,   /* read a channel without consuming it */
    MW_CAN_REMOVE = 1 << 6,   /* remove single messages: dlq replay and purge */
    MW_CAN_RETRY = 1 << 7,    /* RETRY without hold: the broker delivers again when due */
    MW_CAN_RETAIN = 1 << 8,   /* keep acknowledged messages by age and count */
    MW_CAN_GROUPS = 1 << 9,   /* tell the groups of a channel, and remove one */
    MW_CAN_SEEK = 1 << 10,    /* a new group may begin at a time or an offset */
    MW_CAN_TIERS = 1 << 11,   /* reads a channel's retry channels along, each message when it is due */
    MW_CAN_EXACTLY = 1 << 12, /* settlements carry publications, as with ATOMIC, where a subscription asks */
};

/* ---- from the core to the driver ---- */

typedef struct mw_subscription {
    const char *channel, *group;
    mw_order order;
    /* Lanes are keyed by the pipeline, not by the message's key: order across workers needs one consumer. */
    bool own_key;
    /* A group that does not exist yet begins with the oldest message, else with the next one. */
    bool from_start;
    bool exactly_once;        /* MW_CAN_EXACTLY */
    mw_start_kind start_kind; /* MW_CAN_SEEK: instead of from_start */
    int64_t start_at;
    const int64_t *tiers_ms; /* MW_CAN_TIERS: the delays of the retry channels; see core/tier.h */
    size_t tier_count;
    int64_t lease_ms;    /* how long a silent consumer may keep what it was given */
    size_t buffer_bytes; /* how much the pipeline keeps at most: more need not be fetched ahead */
    mw_source *source;
} mw_subscription;

typedef struct mw_origin { /* of a dead letter */
    uint64_t tag;
    uint32_t unit;
    const mw_message *msg;
    const char *reason;
    size_t reason_len;
} mw_origin;

typedef struct mw_publication {
    const char *channel;
    /* The caller keeps its reference until `published` or, inside a settlement, `settled`. */
    mw_message *msg;
    int64_t delay_ms;
    void *cookie;
} mw_publication;

typedef enum {
    MW_SETTLE_ACK,   /* handled: publications confirmed (or in the same transaction), then gone */
    MW_SETTLE_RETRY, /* failed: see hold */
    /* Its lane is blocked: keep it out of the way, in order, until the lane is unparked; no attempt is
     * counted. */
    MW_SETTLE_PARK,
    MW_SETTLE_RELEASE, /* given back unhandled (drain); no attempt is counted */
} mw_settle_op;

/* A mark on a key, durable where the driver can park. */
typedef enum { MW_MARK_KEEP, MW_MARK_NONE, MW_MARK_HOLD, MW_MARK_DEAD } mw_mark;

typedef struct mw_settlement {
    mw_settle_op op;
    uint64_t tag;
    uint32_t unit;
    uint32_t attempt; /* RETRY: the number of the attempt that just failed */
    int64_t delay_ms; /* RETRY: until the next attempt */
    /* RETRY with hold: the core keeps the delivery (its lane must not move) and runs it again by itself; the
     * driver only makes attempt, due time and error durable, so that a crash resumes there. Without hold the
     * driver forgets it and delivers it again when due. */
    bool hold;
    mw_text *error; /* RETRY: what went wrong; kept by the driver as the first error when it has none yet */
    uint64_t lane;  /* PARK, marks: the key's hash */
    mw_mark mark;   /* ACK: set or clear the mark of `lane` in the same step; clearing unparks the lane */
    const mw_publication *publish; /* ACK with MW_CAN_ATOMIC; valid until `settled` */
    size_t publish_count;
    /* ACK with MW_CAN_ATOMIC: this claim of the same connection becomes DONE in the same step; NULL: none. */
    const char *done_key;
    size_t done_len;
    int64_t done_ttl_ms;
    void *cookie;
} mw_settlement;

typedef enum { MW_DEDUPE_CLAIM, MW_DEDUPE_DONE, MW_DEDUPE_RELEASE } mw_dedupe_op;
typedef enum { MW_CLAIM_YOURS, MW_CLAIM_BUSY, MW_CLAIM_SEEN } mw_claim;

/* Operations given to one connection take effect in the order given: a DONE that precedes an ACK is never
 * durable after it. */
typedef struct mw_dedupe {
    mw_dedupe_op op;
    const char *key; /* includes the pipeline's name; copied by the driver */
    size_t key_len;
    int64_t ttl_ms; /* CLAIM: the lease; DONE: how long it is remembered */
    void *cookie;   /* CLAIM only: answered by `claimed`; DONE and RELEASE are not answered */
} mw_dedupe;

typedef struct mw_browse {
    const char *channel;
    mw_position after; /* zero: from the oldest */
    size_t max;
    bool newest; /* ignore `after`: only tell the position of the newest message, with no entries */
    void *cookie;
} mw_browse;

/* Removes messages and publishes their replacements, in one transaction where the broker has them. */
typedef struct mw_removal {
    const char *channel;
    const mw_position *positions; /* those that are gone already are no error */
    size_t count;
    /* publish[i] replaces positions[i], and is sent only when that one was still there. */
    const mw_publication *publish;
    size_t publish_count; /* 0, or count */
    void *cookie;
} mw_removal;

typedef struct mw_channel_options {
    int64_t retain_age_ms; /* 0: not kept for its age */
    uint64_t retain_count; /* 0: not kept for its place */
    /* What only this driver knows, checked before by lua/moonwire/internal/config/channels.lua; valid during
     * the call. */
    const mw_setting *settings;
    size_t setting_count;
} mw_channel_options;

typedef struct mw_depth {
    uint64_t ready;     /* waiting */
    uint64_t delayed;   /* waiting for a time: delays and retries */
    uint64_t parked;    /* waiting for their key */
    uint64_t unsettled; /* handed out */
    int64_t oldest_ms;  /* publish time of the oldest message not settled; 0 when there is none */
    /* Wall time at which the next delayed one is due; 0: none, or the driver cannot tell. */
    int64_t next_due_ms;
    bool known;     /* false: the broker has not said yet */
    bool own_share; /* counts what this consumer has to do, not what the whole group has */
} mw_depth;

enum { MW_PLACE_NAME = 64 };
typedef struct mw_place { /* a part of a channel that this consumer has, such as a partition */
    char name[MW_PLACE_NAME];
    uint64_t lag;       /* not delivered yet */
    uint64_t unsettled; /* delivered */
    uint64_t position;  /* everything before it is settled, as far as the broker knows */
    uint64_t next;      /* everything before it was delivered */
    int64_t behind_ms;  /* the age of the oldest one not delivered yet; 0: there is none; -1: not known */
} mw_place;

typedef struct mw_token { /* to authenticate with; SASL OAUTHBEARER */
    const char *token, *principal;
    const char *const *extensions; /* name, value, … */
    size_t extension_count;        /* names and values */
    int64_t expires_ms;            /* wall time */
    const char *failure;           /* there is none now, because of this; else NULL */
} mw_token;

/* ---- from the driver to the core ---- */

typedef struct mw_incoming {
    mw_message *msg;    /* the reference passes to the core */
    uint64_t tag;       /* names the delivery in its settlement; unique within its unit */
    uint32_t unit;      /* partition, slot or 0: what is fenced together, and the lane of order = "source" */
    uint32_t attempt;   /* of this delivery, from 1 */
    int64_t not_before; /* wall ms; a held retry that was interrupted waits until then; 0 = now */
    mw_text *first_error; /* of earlier attempts, or NULL; the reference passes to the core */
    bool held; /* MW_CAN_PARK: the last of its key that go_on allowed; nothing follows before the next one */
    /* Static, or NULL. It could not be read whole, and why: no handler sees it, it becomes a dead letter. */
    const char *invalid;
} mw_incoming;

typedef struct mw_entry {
    mw_position position;
    mw_message *msg; /* valid during the call; take a reference to keep it */
    int64_t due_ms;  /* 0, or the wall time it is delayed until */
} mw_entry;

typedef struct mw_group_info {
    const char *channel, *group;     /* valid during the call */
    uint64_t ready, delayed, parked; /* messages that wait for it; ready: those handed out, too */
    uint32_t consumers;              /* that live */
} mw_group_info;

enum { MW_UNIT_ALL = UINT32_MAX };

typedef struct mw_host {
    /* How many messages, and bytes, the source takes now. 0: paused; `resume` is called when there is room
     * again. */
    size_t (*room)(mw_source *s, size_t *bytes);
    void (*deliver)(mw_source *s, const mw_incoming *in, size_t count);
    void (*fence)(mw_source *s, uint32_t unit); /* what was delivered for this unit is no longer ours */
    /* This unit is about to be taken away: what no handler has begun is forgotten, as if it had never been
     * delivered. Returns how many are left; they may still be settled until the unit is fenced. */
    uint32_t (*recall)(mw_source *s, uint32_t unit);
    void (*settled)(mw_source *s, void *cookie, const mw_error *e);
    /* Known marks, before the first delivery and when they change. */
    void (*mark)(mw_source *s, uint64_t lane, mw_mark mark);
    void (*closed)(mw_source *s); /* the answer to unsubscribe: the last call for s */
    /* What is sent for this source, acks too, stands above the high mark, because the broker does not read:
     * no handler begins and nothing is taken until it is below the low one. `true` may be told from any
     * driver call. Optional: bytes and messages that wait are bounded without it. */
    void (*full)(mw_source *s, bool full);

    void (*published)(mw_link *l, void *cookie, const mw_error *e);
    void (*claimed)(mw_link *l, void *cookie, mw_claim claim, const mw_error *e);
    /* last: the position to continue after. */
    void (*browsed)(mw_link *l, void *cookie, const mw_entry *entries, size_t count, mw_position last,
                    const mw_error *e);
    void (*removed)(mw_link *l, void *cookie, size_t count, const mw_error *e);
    void (*grouped)(mw_link *l, void *cookie, const mw_group_info *groups, size_t count, const mw_error *e);
    void (*topology)(mw_link *l, void *cookie, const char *answer, size_t len, const mw_error *e);
    /* The reference passes to the core; NULL with an error. */
    void (*replied)(mw_link *l, void *cookie, mw_message *m, const mw_error *e);
    /* The connection is lost or back, for logs and status. */
    void (*state)(mw_link *l, bool up, const mw_error *why);
} mw_host;

typedef struct mw_driver {
    const char *name;
    const char *const *schemes; /* NULL-terminated */
    unsigned can;               /* MW_CAN_* */
    /* Settlements are answered by commits, many at once and late: up to this many buffers of messages that
     * are handled and wait for theirs do not count against the pipeline's buffer. 0: they do. */
    uint32_t handled_buffers;

    /* Optional: what can be said against the address without touching anything. */
    int (*check)(const mw_url *url, mw_error *e);
    /* Optional, likewise: against this subscription at this address; its source is not there yet. */
    int (*check_source)(const mw_url *url, const mw_subscription *s, mw_error *e);

    /* Connections. open checks the URL and everything that can be checked without waiting; a broker that is
     * away is not an error. */
    mw_conn *(*open)(mw_loop *loop, const mw_url *url, mw_link *link, const mw_host *host, mw_error *e);
    void (*close)(mw_conn *c); /* subscriptions are closed or closing; no host call comes after it returns */

    /* Optional. Before the channel is subscribed to or published to, and again when a reload gives it other
     * options. */
    int (*declare)(mw_conn *c, const char *channel, const mw_channel_options *o, mw_error *e);

    /* Consuming. */
    mw_sub *(*subscribe)(mw_conn *c, const mw_subscription *s, mw_error *e);
    void (*resume)(mw_sub *s); /* there is room again */
    /* Optional: a handler starts on it; a crash from here on counts as an attempt. */
    void (*begin)(mw_sub *s, uint64_t tag, uint32_t unit);
    void (*settle)(mw_sub *s, const mw_settlement *list, size_t count); /* list is valid during the call */
    /* With MW_CAN_PARK: deliver again what was parked for this lane, in order. While a lane has parked
     * messages the driver delivers nothing newer of that key, except what carries the header mw-replay: those
     * wait behind the parked ones. "Has parked": from the settle that parks the first one to the moment from
     * which all that was unparked will be delivered before anything newer, whatever is still being
     * written. */
    void (*unpark)(mw_sub *s, uint64_t lane);
    /* With MW_CAN_PARK, for lanes longer than the window; nothing is written, nothing answered. put_back: its
     * lane is long enough. The delivery never was, and until go_on the driver delivers nothing of this key;
     * the core gives back the rest of its batch the same way. go_on: so many more of it, the oldest first;
     * the last one carries `held`, and is followed by the next go_on. A lane that has caught up before is
     * free again. */
    void (*put_back)(mw_sub *s, uint64_t tag, uint32_t unit, uint64_t lane);
    void (*go_on)(mw_sub *s, uint64_t lane, uint32_t count);
    /* Optional, for brokers where a message's id is work to read (mw_message_new_unread): writes the place
     * where it stands, which is the same at every delivery, and returns its length. What was begun is kept
     * under this name, so that it need not be read for that. Signal handlers call it, too. */
    size_t (*locate)(const mw_sub *s, uint64_t tag, uint32_t unit, char *out, size_t size);
    /* Optional: adds to a dead letter's headers where exactly the message stood. */
    void (*origin)(mw_sub *s, const mw_origin *o, mw_headers *out);
    bool (*depth)(mw_sub *s, mw_depth *out);                /* what is known now, without waiting */
    size_t (*places)(mw_sub *s, mw_place *out, size_t max); /* optional, likewise: how many it filled */
    void (*pause)(mw_sub *s);                               /* drain: deliver nothing more */
    void (*unsubscribe)(mw_sub *s); /* what was not settled becomes available again; answered by `closed` */

    /* Publishing. */
    void (*publish)(mw_conn *c, const mw_publication *list, size_t count); /* list is valid during the call */

    /* Optional, by capability. */
    void (*dedupe)(mw_conn *c, const mw_dedupe *list, size_t count);
    void (*browse)(mw_conn *c, const mw_browse *b);
    void (*remove)(mw_conn *c, const mw_removal *r); /* what it points to is valid until `removed` */
    /* Clears a mark from outside. */
    void (*release_key)(mw_conn *c, const char *channel, const char *group, uint64_t lane);
    /* How the connections to servers behind this one stand, for `moonwire status`; how many were told. */
    size_t (*peers)(mw_conn *c, mw_peer *out, size_t max);
    /* The groups of a channel, or of all when it is NULL; answered by `grouped`. */
    void (*groups)(mw_conn *c, const char *channel, void *cookie);
    /* Messages no longer wait for this group: those that no other wants are gone. Refused while a consumer
     * lives, unless forced; such a consumer loses what it has and begins as a new group. Answered by
     * `removed`, with how many messages were waiting for it. */
    void (*remove_group)(mw_conn *c, const char *channel, const char *group, bool force, void *cookie);
    /* Topics, queues, exchanges: compares what is wanted with what there is, and makes it so. Both ways JSON:
     *
     *   request  { "op": "plan" | "apply" | "show", "force": bool,
     *              "items": [{ "kind", "name", "settings": {} }] }
     *   answer   { "items": [{ "kind", "name", "state", "error", "note",
     *                          "differences": [{ "field", "wanted", "found" }] }] }
     *   state    missing, same, different (plan); created, changed, failed (apply); present (show)
     *
     * What would lose messages fails without "force". The request is copied. */
    void (*topology)(mw_conn *c, const char *request, size_t len, void *cookie);
    /* Publishes a message with the headers reply-to ("amq.rabbitmq.reply-to") and correlation-id, and answers
     * with the one that comes back under that id. Without it requests go through a channel of their own. */
    void (*request)(mw_conn *c, const mw_publication *p, int64_t timeout_ms);
    /* For addresses with token=function: what the project's function gave (copied), for connections that are
     * made from now on; and whether the broker has refused it. */
    int (*take_token)(mw_conn *c, const mw_token *t, mw_error *e);
    bool (*token_refused)(mw_conn *c);
} mw_driver;

extern const mw_driver *const mw_drivers[]; /* NULL-terminated: drivers.c */
const mw_driver *mw_driver_find(const char *scheme);
