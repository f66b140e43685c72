/* faults.c - what specs do to the memory broker: fail, lose, double, turn round, delay, cut. */
#include <string.h>

#include "drivers/memory/memory.h"

static mem_broker *borrow(const char *name) { /* a reference that is given back by the caller */
    return mem_broker_get(NULL, name);
}

bool mw_memory_fault(const char *broker, const char *what, double amount) {
    mem_broker *b = borrow(broker);
    mem_faults *f = &b->faults;
    const struct {
        const char *name;
        uint32_t *count;
    } counts[] = {{"fail_publish", &f->fail_publish}, {"fail_settle", &f->fail_settle},
                  {"lose_ack", &f->lose_ack},         {"hold_ack", &f->hold_ack},
                  {"duplicate", &f->duplicate},       {"reorder", &f->reorder}};
    bool known = strcmp(what, "delay_ms") == 0;
    if (known) f->delay_ms = (int64_t)amount;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        if (strcmp(counts[i].name, what) != 0) continue;
        *counts[i].count = (uint32_t)amount;
        known = true;
    }
    mem_broker_release(b);
    return known;
}

uint32_t mw_memory_held(const char *broker) {
    mem_broker *b = borrow(broker);
    uint32_t held = b->faults.held;
    b->faults.held = 0;
    mem_broker_release(b);
    return held;
}

void mw_memory_cut(const char *broker) {
    mem_broker *b = borrow(broker);
    uint32_t at = 0;
    for (mem_channel *c; (c = mw_map_next(&b->channels, &at, NULL));)
        for (mem_group *g = c->groups; g; g = g->next)
            for (mem_sub *s = g->subs; s; s = s->next) {
                s->conn->host->fence(s->source, MW_UNIT_ALL);
                mem_sub_give_back(s);
            }
    mem_broker_release(b);
}
