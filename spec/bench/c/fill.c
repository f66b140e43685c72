/* fill.c - what the benchmarks need inside the process and the product does not have: a way to put messages
 * into a memory broker or to publish them in whole batches without going through Lua, the same messages in a
 * bare C loop, and the numbers the kernel keeps about us. A shared object that bench.lua loads with ffi.load;
 * it finds the runtime's functions in the binary that loads it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "core/link.h"
#include "drivers/memory/broker.h"

/* Declared once more in bench.lua. */
double mw_bench_now(bool cpu);
void mw_bench_fill(const char *broker, const char *channel, uint32_t count, uint32_t keys, uint32_t body);
double mw_bench_bare(uint32_t count, uint32_t keys, uint32_t body, bool cpu);
void mw_bench_publish(mw_link *l, const char *channel, uint32_t count, uint32_t keys, uint32_t body,
                      bool typed);
uint32_t mw_bench_unconfirmed(void);
double mw_bench_rss(void);

double mw_bench_now(bool cpu) {
    struct timespec t;
    clock_gettime(cpu ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- messages: an order in JSON, padded to `body` bytes, a UUID-sized id, `keys` keys in turn (0: none)
 * ---- */

static mw_message *make(uint32_t n, uint32_t keys, uint32_t body, bool typed) {
    static char process[32]; /* the end of its ids: no two processes make the same ones */
    char id[64], key[24], text[65536];
    if (!*process)
        snprintf(process, sizeof process, "-0000-7000-8000-%012llx",
                 (unsigned long long)(mw_bench_now(false) * 1e6) & 0xffffffffffff);
    if (body >= sizeof text) body = sizeof text - 1;
    int id_len = snprintf(id, sizeof id, "%08x", n);
    memcpy(id + id_len, process, 28);
    id_len += 28;
    int key_len = keys ? snprintf(key, sizeof key, "customer-%05u", n % keys) : 0;
    int used =
        snprintf(text, sizeof text,
                 body < 64 ? "{\"number\":%u}"
                           : "{\"number\":%u,\"total\":129.95,\"customer\":{\"id\":\"c-%05u\"},\"note\":\"",
                 n, n % 1000);
    size_t len = (size_t)used;
    if (body >= 64) {
        if (len + 2 < body) {
            memset(text + len, 'x', body - 2 - len);
            len = body - 2;
        }
        memcpy(text + len, "\"}", 2);
        len += 2;
    } else {
        while (len < body) text[len++] = ' ';
    }
    mw_parts p = {.body = text,
                  .body_len = len,
                  .key = key,
                  .key_len = (size_t)key_len,
                  .has_key = keys > 0,
                  .id = id,
                  .id_len = (size_t)id_len,
                  .type = "application/json",
                  .type_len = typed && body >= 64 ? 16 : 0,
                  .priority = MW_PRIORITY_DEFAULT,
                  .time_ms = (int64_t)time(NULL) * 1000};
    return mw_message_new(&p);
}

void mw_bench_fill(const char *broker, const char *channel, uint32_t count, uint32_t keys, uint32_t body) {
    mem_broker *b = mem_broker_get(NULL, broker);
    mem_channel *c = mem_channel_get(b, channel);
    for (uint32_t i = 0; i < count; i++) {
        mw_message *m = make(i, keys, body, true);
        mem_publish(c, m, 0);
        mw_message_unref(m);
    }
    mem_broker_release(b);
}

/* ---- the floor: the same messages in a list, a C handler behind a pointer, freed after it ---- */

typedef struct node {
    struct node *next;
    mw_message *msg;
} node;

static uint64_t seen;
static int c_handler(const mw_message *m) {
    seen += mw_message_size(m);
    return 0;
}
static int (*volatile handler)(const mw_message *m) = c_handler;

double mw_bench_bare(uint32_t count, uint32_t keys, uint32_t body, bool cpu) {
    node *first = NULL, **tail = &first;
    for (uint32_t i = 0; i < count; i++) {
        node *n = malloc(sizeof *n);
        if (!n) abort();
        *n = (node){.msg = make(i, keys, body, true)};
        *tail = n;
        tail = &n->next;
    }
    double began = mw_bench_now(cpu);
    for (node *n = first, *next; n; n = next) {
        next = n->next;
        if (handler(n->msg)) abort();
        mw_message_unref(n->msg);
        free(n);
    }
    return mw_bench_now(cpu) - began;
}

/* ---- publishing through the driver's front door, as mw.publish with now = true does ---- */

typedef struct outgoing {
    mw_confirm confirm;
    mw_message *msg;
    struct outgoing *next;
} outgoing;

static uint32_t unconfirmed;
static outgoing *spare; /* what is measured is the publishing, not this */

static void confirmed(mw_confirm *c, const mw_error *e) {
    outgoing *o = mw_container_of(c, outgoing, confirm);
    if (e) {
        fprintf(stderr, "bench: publish: %s\n", e->text);
        exit(1);
    }
    mw_message_unref(o->msg);
    o->next = spare;
    spare = o;
    unconfirmed--;
}

void mw_bench_publish(mw_link *l, const char *channel, uint32_t count, uint32_t keys, uint32_t body,
                      bool typed) {
    for (uint32_t i = 0; i < count; i++) {
        outgoing *o = spare;
        if (o)
            spare = o->next;
        else if (!(o = malloc(sizeof *o)))
            abort();
        *o = (outgoing){.confirm.done = confirmed, .msg = make(i, keys, body, typed)};
        unconfirmed++;
        mw_publication p = {.channel = channel, .msg = o->msg};
        mw_link_publish(l, &p, &o->confirm);
    }
}

uint32_t mw_bench_unconfirmed(void) { return unconfirmed; }

/* ---- memory ---- */

double mw_bench_rss(void) { /* bytes */
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%*d %ld", &pages) != 1) pages = 0;
    if (f) fclose(f);
    return (double)pages * 4096;
}
