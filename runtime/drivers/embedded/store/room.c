/* room.c - how much a transaction may still write, and who may write it. A store that is full must be able to
 * become empty, so room is kept back in two steps:
 *
 *   - KEPT_*: for settlements alone. They free pages, but LMDB changes a page by writing another one.
 *   - SWAP_*: for those that free as much as they take: a handler that moves messages on, a dead letter, a
 *     replay. What they free cannot be used by themselves, so their publications need room for a moment.
 *
 * Others get what is left. Pages that a commit frees can be used by the second commit after it, and only when
 * no reader still looks at the state before. So one that would fit then is told to come later (MWE_LATER),
 * and when nothing else is there to be committed, mwe_room_turn makes the commits that bring it within reach:
 * without them a store whose last commit freed everything would be full for ever. Writer thread only. */
#include <errno.h>
#include <sys/statvfs.h>

#include "drivers/embedded/store/store.h"

enum {
    KEPT_SHARE = 20, /* of the map: a twentieth */
    KEPT_PAGES = 64, /* at least */
    SWAP_SHARE = 8,
    KEPT_DISK_PAGES = 256,
    SWAP_DISK_PAGES = 256,
    COMMIT_PAGES = 24, /* what a transaction rewrites whatever it does */
    ENOUGH_PAGES = 1 << 16,
    ROW_COST = 160,       /* what a message costs beside its bytes: index rows, page heads, half-full pages */
    GROUP_COST = 64,      /* and again per group */
    OVERFLOW_FROM = 1900, /* larger rows get pages of their own */
};

/* Free pages, counted up to `enough`: those within reach of this transaction, and those that the last commit
 * freed. LMDB shows its free list to readers only. */
static void count_free(mwe_txn *t, int64_t enough, int64_t *now, int64_t *coming) {
    mwe_store *s = t->store;
    MDB_cursor *c;
    MDB_val key, list;
    *now = *coming = 0;
    int rc = s->free_reader ? mdb_txn_renew(s->free_reader)
                            : mdb_txn_begin(s->env, NULL, MDB_RDONLY, &s->free_reader);
    if (rc) return;
    if (mdb_cursor_open(s->free_reader, 0, &c) == 0) {
        while (*now < enough && mdb_cursor_get(c, &key, &list, MDB_NEXT) == 0) {
            size_t freed_by, count;
            if (!mwe_read_row(&key, &freed_by, sizeof freed_by) || list.mv_size < sizeof count) continue;
            memcpy(&count, list.mv_data, sizeof count);
            *(freed_by + 1 < mdb_txn_id(t->mdb) ? now : coming) += (int64_t)count;
        }
        mdb_cursor_close(c);
    }
    mdb_txn_reset(s->free_reader);
}

void mwe_room_look(mwe_txn *t) {
    mwe_store *s = t->store;
    MDB_envinfo info;
    struct statvfs disk;
    mdb_env_info(s->env, &info);
    int64_t all = (int64_t)(info.me_mapsize / s->page_size), now = 0, coming = 0;
    int64_t left = all - (int64_t)info.me_last_pgno - 1, kept = all / KEPT_SHARE, swap = all / SWAP_SHARE;
    if (kept < KEPT_PAGES) kept = KEPT_PAGES;
    t->full = MW_EFULL;
    if (fstatvfs(s->wake_fd, &disk) == 0) {
        int64_t on_disk = (int64_t)(disk.f_bavail * disk.f_frsize / s->page_size);
        if (on_disk < left) {
            left = on_disk;
            kept = KEPT_DISK_PAGES;
            swap = SWAP_DISK_PAGES;
            t->full = ENOSPC;
        }
    }
    if (left - kept - swap < ENOUGH_PAGES) count_free(t, ENOUGH_PAGES, &now, &coming);
    t->room = (left + now - kept - COMMIT_PAGES) * s->page_size;
    t->coming = coming * s->page_size;
    t->kept = swap * s->page_size;
}

int64_t mwe_room_cost(const mwe_txn *t, size_t record, const mwe_tchannel *c) {
    int64_t page = t->store->page_size, piece = (int64_t)mwe_piece_size(t->store), size = (int64_t)record;
    int64_t index = ROW_COST + (int64_t)(c ? c->group_count : 0) * GROUP_COST;
    if (size < OVERFLOW_FROM) return (size + index) * 3 / 2;
    int64_t pieces = (size + piece - 1) / piece;
    return pieces * (page + GROUP_COST) + index;
}

int64_t mwe_room_of(const mwe_txn *t, const MDB_val *row, const mwe_tchannel *c) {
    mwe_record r;
    return mwe_record_head(row, &r) ? mwe_room_cost(t, mwe_record_size(&r), c) : 0;
}

/* A message that moves on may grow a little (a dead letter has headers of its own), as long as half of what
 * is kept is left for those that do not. */
static int64_t kept_from(const mwe_txn *t, int64_t more, int64_t freed) {
    if (freed && more <= GROUP_COST) return 0;
    return freed && more <= t->store->page_size ? t->kept / 2 : t->kept;
}

int mwe_room_take(mwe_txn *t, int64_t need, int64_t freed, int *code) {
    MDB_envinfo info;
    int64_t all = t->room + t->coming, more = need - freed, kept = kept_from(t, more, freed);
    bool fits = !t->refuse && need <= all && (kept == 0 || more <= all - kept);
    if (fits && need <= t->room) {
        t->room -= need;
        t->coming += freed;
        return 0;
    }
    if (fits && t->patient) return MWE_LATER;
    mdb_env_info(t->store->env, &info);
    *code = need > (int64_t)(info.me_mapsize / 4 * 3) ? MWE_TOO_LARGE : t->refuse ? MW_EFULL : t->full;
    return 0;
}

int mwe_room_turn(mwe_txn *t) {
    uint64_t turn = mdb_txn_id(t->mdb);
    MDB_val key = {4, "turn"}, value = {sizeof turn, &turn};
    return mwe_put(t, MWE_META, &key, &value, 0);
}
