/* memory.h - what the files of the memory driver share, and the faults that specs inject (called through
 * FFI). */
#pragma once
#include "base/buf.h"
#include "drivers/memory/broker.h"

typedef enum { MEM_SETTLED, MEM_PUBLISHED, MEM_CLAIMED } mem_answer_kind;

typedef struct mem_answer {
    mem_answer_kind kind;
    mw_source *source;
    void *cookie;
    mw_claim claim;
    int code;         /* 0: all is well */
    const char *text; /* a literal */
} mem_answer;

typedef struct mem_conn {
    mem_broker *broker;
    mw_link *link;
    const mw_host *host;
    bool offsets;
    mw_buf answers;
    mw_deferred answering;
    mw_timer late;
} mem_conn;

struct mem_sub {
    mem_sub *next;
    mem_conn *conn;
    mem_group *group;
    mw_source *source;
    mw_order order;
    mem_list out;  /* handed out, not settled */
    uint64_t lost; /* acks that an injected fault swallowed */
    bool paused;
};

void mem_sub_give_back(mem_sub *s);

/* admin.c */
void mem_browse(mw_conn *conn, const mw_browse *b);
void mem_remove(mw_conn *conn, const mw_removal *r);
void mem_release_key(mw_conn *conn, const char *channel, const char *group, uint64_t lane);

/* faults.c: for specs. `what` is one of fail_publish, fail_settle, lose_ack, hold_ack, duplicate, reorder,
 * delay_ms; false when it is none of them. */
bool mw_memory_fault(const char *broker, const char *what, double amount);
uint32_t mw_memory_held(const char *broker); /* acks that hold_ack kept since the last call */
void mw_memory_cut(const char *broker);      /* every consumer loses its connection and gets a new one */
