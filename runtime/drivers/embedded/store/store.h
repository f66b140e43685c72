/* store.h - one LMDB environment of this process, the thread that writes it, and the worker file that tells
 * other processes we live. A store is opened once per process and folder, and shared by its connections.
 *
 * Threads: reads happen on the loop's thread in short read-only transactions (mwe_read_begin / _end); every
 * write happens on the store's writer thread, inside an mwe_txn. What crosses over is an mwe_op: built on the
 * loop's thread, applied by the writer, finished (answered and freed) on the loop's thread. */
#pragma once
#include <lmdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/hash.h"
#include "core/driver.h"
#include "drivers/embedded/store/record.h"

typedef struct mwe_store mwe_store;
typedef struct mwe_txn mwe_txn;
typedef struct mwe_op mwe_op;

enum {
    MWE_META,      /* magic, format, next channel and group id */
    MWE_CHANNELS,  /* name */
    MWE_GROUPS,    /* channel, name */
    MWE_MESSAGES,  /* channel, seq */
    MWE_PIECES,    /* channel, seq, number: what does not fit the message's row */
    MWE_REFS,      /* channel, seq: how many groups still want it; only where that is not plainly one */
    MWE_READY,     /* channel, group, priority, seq */
    MWE_DUE,       /* channel, group, due time, priority, seq */
    MWE_PARKED,    /* channel, group, lane, priority, seq */
    MWE_ERRORS,    /* channel, group, seq: the first error's text */
    MWE_MARKS,     /* channel, group, lane */
    MWE_OWNERS,    /* channel, group: who owns which slot */
    MWE_CONSUMERS, /* channel, group, consumer */
    MWE_DEDUPE,    /* key */
    MWE_EXPIRY,    /* expiry, hash: when to look at a dedupe row again */
    MWE_TABLES
};

/* ---- worker.c: the file that says we live, and what we are handling ---- */

typedef struct mwe_worker mwe_worker;
typedef enum { MWE_ALIVE, MWE_SILENT, MWE_DEAD } mwe_life;

uint64_t mwe_random(void); /* never 0 */
mwe_worker *mwe_worker_open(const char *folder, mw_error *e);
void mwe_worker_close(mwe_worker *w); /* removes the file; NULL is fine */
uint64_t mwe_worker_id(const mwe_worker *w);
void mwe_worker_beat(mwe_worker *w); /* any thread */
/* A handler starts: returns where that is noted, or 0 when there was no room. Loop threads. */
uint32_t mwe_worker_begin(mwe_worker *w, uint32_t channel, uint32_t group, uint64_t seq, uint8_t priority,
                          uint32_t attempt);
void mwe_worker_end(mwe_worker *w, uint32_t place); /* 0 is fine */

/* Within a transaction: a dead worker stays locked until the transaction ends, so one process buries it. */
mwe_life mwe_worker_look(mwe_txn *t, uint64_t id, int64_t lease_ms);
/* Counts an attempt for what the worker was handling: everything when it is dead, or what lies in the `taken`
 * slots of one group when it is only silent. 0, or an LMDB error. */
int mwe_worker_bury(mwe_txn *t, uint64_t id);
int mwe_worker_blame(mwe_txn *t, uint64_t id, uint32_t channel, uint32_t group, uint32_t slots,
                     uint64_t taken);
int mwe_workers_sweep(mwe_txn *t);                 /* buries every dead worker */
void mwe_workers_done(mwe_txn *t, bool committed); /* the writer, after each transaction */

/* ---- channels this process has named ---- */

typedef struct mwe_tchannel mwe_tchannel;

typedef struct mwe_channel {         /* lives as long as the store */
    struct mwe_channel *next;        /* of the same hash */
    struct mwe_channel *older;       /* all of them */
    atomic_uint_fast64_t changes;    /* commits that brought something new to its consumers */
    atomic_bool kept;                /* has retention limits: swept */
    mwe_tchannel *open;              /* writer: its rows in the current transaction */
    uint64_t sweep_from, sweep_kept; /* writer: where the retention sweep goes on, and what it left behind */
    size_t len;
    char name[];
} mwe_channel;

/* NULL when the name is empty or too long. */
mwe_channel *mwe_channel_named(mwe_store *s, const char *name);

/* ---- the store ---- */

typedef struct mwe_grave { /* a worker looked at in this transaction */
    uint64_t id;
    mwe_life life;
    int fd;      /* of a dead one, locked by us; else -1 */
    bool buried; /* its unfinished messages were counted: the file may go */
    int64_t beat;
} mwe_grave;

struct mwe_store {
    mwe_store *next;
    unsigned users;
    dev_t device;
    ino_t inode;
    char *folder;

    MDB_env *env;
    MDB_dbi table[MWE_TABLES];
    unsigned page_size;
    pthread_rwlock_t map; /* held shared while a transaction runs, exclusively while the map is resized */
    mwe_worker *worker;
    int wake_fd;
    atomic_uint_fast64_t commits; /* ours: LMDB's own number minus this one is what others did */

    pthread_t writer;
    pthread_mutex_t lock; /* guards all below but what is marked */
    pthread_cond_t work, finished;
    mwe_op *queue, **queue_tail;
    mw_conn *conns;
    mw_map channels;
    mwe_channel *all_channels;
    bool stop;

    /* the writer thread's own */
    mwe_op *active, **active_tail;
    MDB_txn *free_reader;
    uint32_t limit;  /* items per transaction; shrinks when the map is full */
    uint32_t turned; /* commits made only to get at free pages, since the last that did something */
    int64_t last_beat;
    atomic_bool broken; /* LMDB takes nothing more until the file is opened again */
};

/* store.c. Folder problems, foreign and damaged files fail here, before anything is changed. */
mwe_store *mwe_store_open(const char *folder, uint64_t size, mw_error *e); /* size 0: the default */
void mwe_store_close(mwe_store *s);
int mwe_store_resized(mwe_store *s); /* another process made the file larger than our map */
void mwe_store_error(mwe_store *s, int code, mw_error *e); /* code: MW_E*, MDB_*, errno */
int64_t mwe_wall_ms(void);
int64_t mwe_boot_ms(void); /* goes on while the machine sleeps, and is never set */

/* A snapshot for the loop's thread; *reader is kept by the caller between calls, NULL at first. 0 or a code.
 */
int mwe_read_begin(mwe_store *s, MDB_txn **reader);
void mwe_read_end(mwe_store *s, MDB_txn *reader);

int mwe_verify(mwe_store *s, const char *file, mw_error *e); /* verify.c: when it is opened */

/* ---- writer.c ---- */

enum {                        /* internal codes */
       MWE_TOO_LARGE = 20001, /* will never fit */
       MWE_LATER,             /* there will be room in a later transaction; nothing was done */
       MWE_GONE,              /* the group was removed from outside */
};

typedef struct mwe_op_kind {
    /* Writer thread: applies item i. An error of the item alone is noted in the item; what is returned ends
     * the whole transaction, except MWE_LATER, which commits what came before. May be called again for the
     * same item after such an end. */
    int (*apply)(mwe_txn *t, mwe_op *op, uint32_t i);
    void (*finish)(mwe_op *op); /* loop's thread: answers, frees */
    /* How often it is tried when transactions fail, before it is given back with the error: 1 for what is
     * answered, more for what nobody is told about. A closing connection waits for no more than a few. */
    uint32_t tries;
} mwe_op_kind;

enum { MWE_TRY_ONCE = 1, MWE_TRY_SOME = 40 };
#define MWE_TRY_ALWAYS UINT32_MAX

struct mwe_op {
    mwe_op *next;
    const mwe_op_kind *kind;
    mw_conn *conn;
    uint32_t count, applied, done; /* items: in the running transaction, committed */
    uint32_t failures;
    int rc; /* why the items from `done` on were not committed */
};

int mwe_writer_start(mwe_store *s, mw_error *e);
void mwe_writer_stop(mwe_store *s); /* finishes what is queued */
void mwe_submit(mw_conn *c, mwe_op *op);
void mwe_drain(mw_conn *c);     /* loop's thread: finishes what the writer is done with */
void mwe_conn_join(mw_conn *c); /* connects to the writer */
void mwe_conn_part(mw_conn *c); /* waits for its ops (bounded), finishes them, disconnects */
static inline int mwe_code(const mwe_op *op, uint32_t i, int item) { return i < op->done ? item : op->rc; }

/* ---- txn.c: a write transaction, with the rows that many items share read and written once ---- */

typedef struct mwe_tgroup {
    mwe_group_row row;
    mwe_owners owners;
    bool dirty, owners_loaded, owners_dirty;
    size_t len;
    char name[];
} mwe_tgroup;

struct mwe_tchannel {
    mwe_tchannel *next;
    mwe_channel *channel;
    mwe_channel_row row;
    bool exists, dirty, groups_loaded;
    bool news; /* its consumers should look */
    mwe_tgroup **groups;
    size_t group_count;
};

struct mwe_txn {
    mwe_store *store;
    MDB_txn *mdb;
    int64_t now;
    MDB_cursor *cursor[MWE_TABLES];
    mwe_tchannel *channels;
    mwe_grave *graves;
    size_t grave_count;
    bool wrote;   /* there is something to commit */
    bool refuse;  /* no publications: the map is full */
    bool patient; /* what has no room now may wait for the next transaction */
    size_t bytes; /* published so far */
    /* room.c: bytes that may be written now, that come free with this commit or came with the last one, and
     * that are kept for those who free as much as they take; and the code when they do not suffice */
    int64_t room, coming, kept;
    int full;
};

int mwe_txn_begin(mwe_txn *t, mwe_store *s, bool refuse);
int mwe_txn_commit(mwe_txn *t); /* ends it either way */
void mwe_txn_abort(mwe_txn *t);
MDB_cursor *mwe_cursor(mwe_txn *t, int table); /* one per table and transaction; NULL: out of memory */
int mwe_get(mwe_txn *t, int table, MDB_val *key, MDB_val *value);
int mwe_put(mwe_txn *t, int table, MDB_val *key, MDB_val *value, unsigned flags);
int mwe_del(mwe_txn *t, int table, MDB_val *key); /* MDB_NOTFOUND when absent */
int mwe_del_here(mwe_txn *t, int table);          /* where the table's cursor stands */

/* These answer MW_EFORMAT for a damaged row, before anything was written: an error of the item alone. */
int mwe_txn_channel(mwe_txn *t, mwe_channel *c, bool create, mwe_tchannel **out); /* *out NULL: absent */
int mwe_txn_groups(mwe_txn *t, mwe_tchannel *c);
mwe_tgroup *mwe_txn_group_named(mwe_tchannel *c, const char *name, size_t len);
mwe_tgroup *mwe_txn_group(mwe_tchannel *c, uint32_t id);
int mwe_txn_group_new(mwe_txn *t, mwe_tchannel *c, const char *name, size_t len, uint32_t slots,
                      mwe_tgroup **out);
int mwe_txn_group_drop(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g); /* its row; frees g */
int mwe_txn_owners(mwe_txn *t, mwe_tchannel *c, mwe_tgroup *g);
/* Channel and group of a subscription, owners loaded. MW_EFORMAT when they are gone. */
int mwe_txn_open(mwe_txn *t, mwe_channel *channel, uint32_t group, mwe_tchannel **c, mwe_tgroup **g);

/* ---- lock.c ---- */

int mwe_lock_room(const char *file, unsigned readers, mw_error *e);

/* ---- room.c: who may write how much ---- */

void mwe_room_look(mwe_txn *t);
int64_t mwe_room_cost(const mwe_txn *t, size_t record, const mwe_tchannel *c);    /* of a message, in bytes */
int64_t mwe_room_of(const mwe_txn *t, const MDB_val *row, const mwe_tchannel *c); /* of one that is there */
/* Asks for room for `need` bytes by something that frees `freed` in the same transaction: 0, MWE_LATER, or 0
 * with *code set when there is none. */
int mwe_room_take(mwe_txn *t, int64_t need, int64_t freed, int *code);
int mwe_room_turn(mwe_txn *t); /* writes next to nothing: free pages come within reach with each commit */

/* ---- pieces.c: messages as rows ---- */

static inline size_t mwe_piece_size(const mwe_store *s) { return s->page_size - 32; } /* less its head */
int mwe_record_put(mwe_txn *t, uint32_t channel, uint64_t seq, const mw_parts *p, int64_t due_ms);
int mwe_record_drop(mwe_txn *t, uint32_t channel, uint64_t seq); /* MDB_NOTFOUND when absent */
/* From its row in messages; NULL when it is damaged. One reference for the caller. */
mw_message *mwe_record_message(mwe_store *s, MDB_txn *txn, uint32_t channel, uint64_t seq, const MDB_val *row,
                               int64_t *due_ms);

/* ---- rows that stand for others ---- */

/* How many groups still want a message; -1 with *rc on trouble. And the change of that number. */
int mwe_refs_get(mwe_txn *t, mwe_tchannel *c, uint64_t seq, uint32_t *refs);
int mwe_refs_set(mwe_txn *t, mwe_tchannel *c, uint64_t seq, uint32_t refs);
int mwe_message_drop(mwe_txn *t, mwe_tchannel *c, uint64_t seq); /* its row and refs; absent is fine */
