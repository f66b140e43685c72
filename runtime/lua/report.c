#include "core/tier.h"
#include "lua/report.h"

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "pipeline/insight.h"

enum { PLACES_SHOWN = 256 };
enum { SHOWN = 10, TEXT_SHOWN = 500, PEERS_SHOWN = 32 }; /* an answer stays small whatever is in flight */

static void set_number(lua_State *L, const char *name, double value) {
    lua_pushnumber(L, value);
    lua_setfield(L, -2, name);
}

static void set_ms(lua_State *L, const char *name, int64_t ms) { /* negative: not known */
    if (ms >= 0) set_number(L, name, (double)ms / 1000);
}

static void set_text(lua_State *L, const char *name, const char *text) {
    lua_pushstring(L, text);
    lua_setfield(L, -2, name);
}

static void set_bytes(lua_State *L, const char *name, const char *text, size_t len) { /* its beginning */
    lua_pushlstring(L, text, len < TEXT_SHOWN ? len : TEXT_SHOWN);
    lua_setfield(L, -2, name);
}

static void set_flag(lua_State *L, const char *name, bool value) {
    lua_pushboolean(L, value);
    lua_setfield(L, -2, name);
}

/* ---- status ---- */

static void set_counters(lua_State *L, const mw_counters *given) {
    mw_counters c = *given;
    set_number(L, "received", (double)c.received);
    set_number(L, "handled", (double)c.handled);
    set_number(L, "retried", (double)c.retried);
    set_number(L, "dead", (double)c.dead);
    set_number(L, "dropped", (double)c.dropped);
    set_number(L, "deduped", (double)c.deduped);
    set_number(L, "fenced", (double)c.fenced);
    set_number(L, "published", (double)c.published);
    set_number(L, "parked", (double)c.parked);
    set_number(L, "released", (double)c.released);
}

static void set_depth(lua_State *L, const mw_depth *depth) {
    if (!depth->known) return;
    set_number(L, "lag", (double)depth->ready);
    if (depth->own_share) set_flag(L, "own_share", true);
    set_number(L, "delayed", (double)depth->delayed);
    set_number(L, "parked_now", (double)depth->parked);
    set_number(L, "unsettled", (double)depth->unsettled);
}

static void set_places(lua_State *L, mw_pipeline *p) {
    mw_place list[PLACES_SHOWN];
    size_t count = mw_pipeline_places(p, list, PLACES_SHOWN);
    if (!count) return;
    lua_newtable(L);
    for (size_t i = 0; i < count; i++) {
        lua_newtable(L);
        set_text(L, "name", list[i].name);
        set_number(L, "lag", (double)list[i].lag);
        set_number(L, "unsettled", (double)list[i].unsettled);
        set_number(L, "position", (double)list[i].position);
        set_number(L, "next", (double)list[i].next);
        set_ms(L, "behind", list[i].behind_ms);
        lua_rawseti(L, -2, (int)i + 1);
    }
    lua_setfield(L, -2, "partitions");
}

void mw_report_tally(lua_State *L, const mw_tally *t, const char *name, const char *channel) {
    static const char *const breakers[] = {"closed", "open", "half-open"};
    mw_insight i = t->look;
    lua_newtable(L);
    set_text(L, "name", name);
    set_text(L, "channel", channel);
    set_counters(L, &t->counters);
    set_depth(L, &i.depth);
    set_number(L, "generation", i.generation);
    set_number(L, "rate", i.rate);
    set_number(L, "in_flight", i.in_flight);
    set_number(L, "in_flight_bytes", (double)i.bytes);
    set_number(L, "running", i.running);
    set_number(L, "ready", i.ready);
    set_number(L, "waiting", i.waiting);
    set_number(L, "held", i.held);
    set_number(L, "settling", i.settling);
    set_number(L, "retrying", (double)(i.held + i.depth.delayed));
    set_ms(L, "next_retry", i.next_retry_ms);
    set_ms(L, "oldest", i.oldest_age_ms);
    set_number(L, "held_keys", i.held_keys);
    set_number(L, "dead_keys", i.dead_keys);
    set_number(L, "parked_lanes", i.parked_lanes);
    if (i.p50 >= 0) set_number(L, "p50", i.p50);
    if (i.p99 >= 0) set_number(L, "p99", i.p99);
    set_text(L, "breaker", breakers[i.breaker % 3]);
    set_ms(L, "breaker_left", i.breaker_left_ms);
    set_flag(L, "paused", i.paused);
    set_flag(L, "full", i.full);
    set_flag(L, "draining", i.draining);
}

void mw_report_status(lua_State *L, mw_pipeline *p) {
    mw_report_tally(L, mw_pipeline_look(p), mw_pipeline_name(p), mw_pipeline_settings(p)->channel);
    set_places(L, p);
}

/* ---- connections ---- */

void mw_report_peers(lua_State *L, const char *broker, const mw_peer *peers, size_t count, int64_t now_ms) {
    for (const mw_peer *p = peers; p < peers + count; p++) {
        lua_newtable(L);
        set_text(L, "broker", broker);
        set_text(L, "name", p->name);
        set_text(L, "state", p->state);
        if (p->address[0]) set_text(L, "address", p->address);
        if (p->error[0]) set_text(L, "error", p->error);
        if (p->tls) set_text(L, "tls", p->tls);
        set_ms(L, "since", now_ms > p->since_ms ? now_ms - p->since_ms : 0);
        set_number(L, "connects", (double)p->connects);
        set_number(L, "bytes_in", (double)p->bytes_in);
        set_number(L, "bytes_out", (double)p->bytes_out);
        lua_rawseti(L, -2, (int)lua_objlen(L, -2) + 1);
    }
}

void mw_report_connections(lua_State *L, const mw_link *l, int64_t now_ms) {
    const mw_driver *driver = mw_link_driver(l);
    mw_peer peers[PEERS_SHOWN];
    if (!driver->peers || !mw_link_conn(l)) return;
    mw_report_peers(L, mw_link_url(l), peers, driver->peers(mw_link_conn(l), peers, PEERS_SHOWN), now_ms);
}

/* ---- explain ---- */

static void push_delivery(lua_State *L, const mw_delivery *d) {
    mw_delivery_view v;
    mw_delivery_look(d, &v);
    lua_newtable(L);
    set_bytes(L, "id", v.parts.id, v.parts.id_len);
    if (v.parts.has_key) set_bytes(L, "key", v.parts.key, v.parts.key_len);
    set_text(L, "state", v.state);
    set_number(L, "attempt", v.attempt);
    set_ms(L, "since", v.since_ms);
    set_ms(L, "left", v.left_ms);
    if (v.fate) set_text(L, "fate", v.fate);
    if (v.error) set_bytes(L, "error", v.error->data, v.error->len);
    set_flag(L, "fenced", v.fenced);
}

static void set_mark(lua_State *L, mw_mark mark) {
    if (mark == MW_MARK_HOLD) set_text(L, "mark", "hold");
    if (mark == MW_MARK_DEAD) set_text(L, "mark", "dead");
}

/* `of`: a message of the lane whose place in it is asked for, or NULL */
static void set_lane(lua_State *L, const mw_pipeline *p, const mw_lane_view *v, const mw_delivery *of) {
    char hash[20];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)v->lane);
    lua_newtable(L);
    set_text(L, "hash", hash);
    set_mark(L, v->mark);
    set_flag(L, "parked", v->parked);
    set_flag(L, "canary", mw_pipeline_would_try(p, v->lane));
    set_number(L, "waiting", v->waiting);
    if (v->holder) {
        push_delivery(L, v->holder);
        lua_setfield(L, -2, "holder");
    }
    lua_newtable(L);
    int n = 0;
    uint32_t ahead = of && of != v->holder ? 1 : 0;
    for (const mw_delivery *d = v->first; d && n < SHOWN; d = mw_delivery_behind(d)) {
        push_delivery(L, d);
        lua_rawseti(L, -2, ++n);
    }
    lua_setfield(L, -2, "behind");
    if (of) {
        for (const mw_delivery *d = v->first; ahead && d && d != of; d = mw_delivery_behind(d)) ahead++;
        set_number(L, "ahead", ahead);
    }
    lua_setfield(L, -2, "lane");
}

static bool is(const char *what, size_t len, const char *text, size_t text_len) {
    return len == text_len && (len == 0 || memcmp(what, text, len) == 0);
}

/* The message of that id, and the first few of that key where keys make no lanes. */
static const mw_delivery *search(lua_State *L, mw_pipeline *p, const char *what, size_t len, bool lanes) {
    const mw_delivery *found = NULL;
    double count = 0;
    int n = 0;
    lua_newtable(L);
    for (const mw_delivery *d = NULL; (d = mw_pipeline_each(p, d));) {
        mw_parts parts;
        mw_message_parts(mw_delivery_message(d), &parts);
        if (!found && is(what, len, parts.id, parts.id_len)) found = d;
        if (lanes || !parts.has_key || !is(what, len, parts.key, parts.key_len)) continue;
        count++;
        if (n == SHOWN) continue;
        push_delivery(L, d);
        lua_rawseti(L, -2, ++n);
    }
    lua_setfield(L, -2, "of_key");
    set_number(L, "of_key_count", count);
    return found;
}

static void set_retry_channels(lua_State *L, const mw_pipeline_spec *spec) {
    if (!spec->tier_count) return;
    lua_newtable(L);
    for (uint32_t i = 0; i < spec->tier_count; i++) {
        char channel[MW_TIER_CHANNEL];
        mw_tier_channel(channel, spec->channel, spec->tiers_ms[i]);
        lua_pushstring(L, channel);
        lua_rawseti(L, -2, (int)i + 1);
    }
    lua_setfield(L, -2, "retry_channels");
}

void mw_report_explain(lua_State *L, mw_pipeline *p, const char *what, size_t len) {
    static const char *const orders[] = {"none", "key", "source"};
    const mw_pipeline_spec *spec = mw_pipeline_settings(p);
    mw_lane_view lane;
    bool lanes = spec->order == MW_ORDER_KEY;
    mw_report_status(L, p);
    set_text(L, "order", orders[spec->order]);
    set_flag(L, "own_key", spec->own_key);
    set_number(L, "concurrency", spec->concurrency);
    set_text(L, "dead_channel", spec->dead_channel);
    set_retry_channels(L, spec);
    set_text(L, "broker", mw_link_url(spec->from));
    set_text(L, "address", mw_link_key(spec->from));
    set_text(L, "dead_address", mw_link_key(spec->dead));
    const mw_delivery *d = search(L, p, what, len, lanes && !spec->own_key);
    if (d) {
        mw_delivery_view v;
        push_delivery(L, d);
        lua_setfield(L, -2, "message");
        mw_delivery_look(d, &v);
        if (!v.lane) return;
        mw_lane_look(p, v.lane, &lane);
        set_lane(L, p, &lane, d);
    } else if (lanes) {
        mw_lane_look(p, mw_hash64(what, len), &lane);
        if (lane.holder || lane.mark) set_lane(L, p, &lane, NULL);
    }
}
