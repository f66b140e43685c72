/* greeting.c - what a client says first on every connection, all at once: its login, database and name, what
 * the server is, and the scripts. Each answer is looked at in its turn; the client (client.c) owns them. */
#include <stdio.h>
#include <string.h>

#include "redis/client_defs.h"

typedef enum { STEP_LOGIN, STEP_DB, STEP_NAME, STEP_ID, STEP_ROLE, STEP_MODE, STEP_SCRIPT } greeting_step;

static void step(mwr_client *c, greeting_step s) { c->steps[c->step_count++] = (uint8_t)s; }

void mwr_greeting_write(mwr_client *c) {
    const mwr_target *t = c->o.target;
    mw_buf b = {0};
    c->step_count = c->step_at = 0;
    c->rejected = false;
    if (*t->password) {
        mwr_write_array(&b, *t->user ? 3 : 2);
        mwr_write_text(&b, "AUTH");
        if (*t->user) mwr_write_text(&b, t->user);
        mwr_write_text(&b, t->password);
        step(c, STEP_LOGIN);
    }
    if (t->db >= 0) { /* also when it is 0: this tells whether a password is wanted */
        mwr_write_array(&b, 2);
        mwr_write_text(&b, "SELECT");
        mwr_write_number(&b, t->db);
        step(c, STEP_DB);
    }
    mwr_write_array(&b, 3);
    mwr_write_text(&b, "CLIENT");
    mwr_write_text(&b, "SETNAME");
    mwr_write_text(&b, c->o.name);
    step(c, STEP_NAME);
    mwr_write_array(&b, 2);
    mwr_write_text(&b, "CLIENT");
    mwr_write_text(&b, "ID");
    step(c, STEP_ID);
    if (!c->o.any_role && (c->o.sentinel || strchr(t->hosts, ','))) {
        mwr_write_array(&b, 1);
        mwr_write_text(&b, "ROLE");
        step(c, STEP_ROLE);
    }
    if (c->o.scripts) {
        mwr_write_array(&b, 1);
        mwr_write_text(&b, "HELLO");
        step(c, STEP_MODE);
    }
    for (const char *const *text = c->o.scripts; text && *text; text++) {
        mwr_write_array(&b, 3);
        mwr_write_text(&b, "SCRIPT");
        mwr_write_text(&b, "LOAD");
        mwr_write_text(&b, *text);
        step(c, STEP_SCRIPT);
    }
    mw_stream_write(c->stream, b.data, b.len);
    mw_buf_free(&b);
}

static void reject(mwr_client *c, const mw_error *e) {
    c->rejected = true;
    mw_stream_fail(c->stream, e);
}

static void no_database(const mwr_client *c, mw_error *e) {
    char said[200];
    snprintf(said, sizeof said, "%.190s", e->text);
    mw_fail(e, MW_EUSAGE, false,
            "%s: database %lld cannot be used; this does not heal by itself: correct the number in the "
            "address, or the "
            "server's setting `databases`",
            said, (long long)c->o.target->db);
}

/* From pairs of names and values */
static bool is_cluster(const mwr_unit *u) {
    const mwr_node *n = u->node + 1;
    for (uint32_t i = 0; u->node->type == MWR_ARRAY && i + 1 < u->node->count; i += 2) {
        const mwr_node *value = n + n->span;
        if (mwr_is(u, n, "mode")) return mwr_is(u, value, "cluster");
        n = value + value->span;
    }
    return false;
}

/* A name that cannot be set, or a number that cannot be asked for, is no reason not to work. */
bool mwr_greeting_reply(mwr_client *c, const mwr_unit *u) {
    greeting_step s = (greeting_step)c->steps[c->step_at++];
    mw_error e;
    if (c->rejected) return false;
    if (u->node->type == MWR_ERROR) {
        mwr_error_of(u->base + u->node->at, u->node->len, &e);
        if (s == STEP_DB && mwr_error_begins(u, "ERR")) no_database(c, &e);
        bool vital = s != STEP_NAME && s != STEP_ID && s != STEP_ROLE && s != STEP_MODE;
        if (vital || mwr_error_begins(u, "NOAUTH") || mwr_error_begins(u, "LOADING")) {
            reject(c, &e);
            return false;
        }
    } else if (s == STEP_ID) {
        c->id = mwr_number(u, u->node);
    } else if (s == STEP_MODE) {
        c->clustered = is_cluster(u);
    } else if (s == STEP_ROLE) {
        const mwr_node *role = mwr_child(u->node, 0);
        if (role && !mwr_is(u, role, "master")) {
            mw_fail(&e, MW_ECLOSED, true, "redis: this server is a replica");
            reject(c, &e);
            return false;
        }
    }
    return c->step_at == c->step_count;
}
