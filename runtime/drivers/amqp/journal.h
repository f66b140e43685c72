/* journal.h - what the two files of the journal share: journal.c keeps the notes and writes them,
 * journal_read.c reads them once when a consumer begins. What the rest of the driver may ask for stands in
 * amqp.h. */
#pragma once
#include "drivers/amqp/amqp.h"

/* What is written: a queue's journal, or that of a group on a stream, which has its place in front. */
enum { MAGIC = 0x4d574a33, STREAM_MAGIC = 0x4d574a34, ERROR_MAX = 1000 };

typedef struct note { /* what is known of one message */
    uint32_t failures;
    uint8_t flags; /* journal.c */
    uint64_t who;  /* set the flags */
    int64_t due_ms;
    mw_text *error;
} note;

struct rmq_journal {
    rmq_sub *sub;
    char name[300];
    mw_map notes;  /* identity -> note */
    rmq_chan chan; /* to read it; beside the consumer's */
    enum { UNREAD, READING, READ } state;
    uint64_t version, written; /* of the notes; of what the broker has confirmed */
    uint64_t met_version;      /* of the last message that was met */
    bool pump_after, clean, mute;
    int64_t again_ms; /* until the next try to write */
    struct writing *writing;
    mw_buf waiters;
    mw_buf begun, begun_before; /* of uint64_t: tags, of this turn and of the one before */
    mw_deferred turn;
    mw_timer tidy;
    void (*quiet)(rmq_sub *s);
    mw_timer quiet_limit;
    mw_timer look; /* until it is asked again, or was not answered */
    uint32_t looks;
};

note *rmq_journal_note(rmq_journal *j, uint64_t identity); /* made when there is none */
void rmq_journal_write_later(rmq_journal *j);              /* at the end of the turn, what has changed */
