/* verify.c - whether the pages of a store are what LMDB takes for granted. LMDB trusts its file: a page that
 * a disk or a stray program has changed makes it crash, or write over sound ones. So its trees are walked
 * once, when a store is opened: every page that is pointed to must be of the right kind, lie within the file,
 * be pointed to once, and hold rows that lie within it; pages in the free list must not be in use. The walk
 * ends after PAGES_MOST pages, so that opening a huge store does not mean reading it; bodies are never read.
 *
 * The layout is that of LMDB's data version 1, which the meta page names. Any thread. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "drivers/embedded/store/store.h"

enum {
    PAGES_MOST = 1 << 14,
    DATA_VERSION = 1,
    DEPTH_MOST = 32,
    HEAD = 16, /* of a page: number, pad, flags, then two offsets or a count */
    NODE_HEAD = 8,
    BRANCH = 1, /* flags of pages */
    LEAF = 2,
    OVERFLOW = 4,
    FIXED = 0x20,
    DUPLICATES = 0x40,
    BIG = 1, /* flags of nodes */
    TABLE = 2,
    OTHER_ROWS = 0x76, /* flags of trees: reversed keys, several values to a key; we have none such */
};
static const uint64_t NO_PAGE = UINT64_MAX;

typedef struct tree { /* LMDB's record of a table */
    uint32_t pad;
    uint16_t flags, depth;
    uint64_t branches, leaves, overflows, entries, root;
} tree;

typedef struct meta {
    uint32_t magic, version;
    uint64_t address, map_size;
    tree trees[2]; /* of the free list, and of the tables */
    uint64_t last_page, txn;
} meta;

typedef struct walk {
    const uint8_t *map;
    size_t page_size, pages; /* in the file */
    size_t left;             /* pages that may still be looked at */
    uint8_t *seen;           /* a bit for each page */
    uint64_t bad;            /* the page that is not as it should be */
    const char *why;
} walk;

static int bad(walk *w, uint64_t page, const char *why) {
    w->bad = page;
    w->why = why;
    return -1;
}

static uint16_t get16(const uint8_t *at) {
    uint16_t v;
    memcpy(&v, at, sizeof v);
    return v;
}

/* ---- pages ---- */

/* `count` pages from `page` on are used by this one thing. */
static int claim(walk *w, uint64_t page, uint64_t count) {
    if (page < 2 || count == 0 || page >= w->pages || count > w->pages - page)
        return bad(w, page, "a page outside of the file is pointed to");
    for (uint64_t p = page; p < page + count; p++) {
        if (w->seen[p / 8] >> p % 8 & 1) return bad(w, p, "two rows point to it");
        w->seen[p / 8] |= (uint8_t)(1 << p % 8);
    }
    return 0;
}

static int check_overflow(walk *w, uint64_t page, uint64_t size) {
    uint64_t count = (size + HEAD - 1) / w->page_size + 1, number;
    uint32_t pages;
    if (claim(w, page, count)) return -1;
    const uint8_t *p = w->map + page * w->page_size;
    memcpy(&number, p, sizeof number);
    memcpy(&pages, p + 12, sizeof pages);
    if (number != page || !(get16(p + 10) & OVERFLOW) || pages != count)
        return bad(w, page, "it should hold a large value");
    return 0;
}

static int walk_tree(walk *w, const tree *t, bool tables);

/* What a row points to. `tables`: rows are the records of other trees. */
static int check_value(walk *w, uint64_t page, const uint8_t *node, uint64_t size, bool tables) {
    const uint8_t *value = node + NODE_HEAD + get16(node + 6);
    uint16_t flags = get16(node + 4);
    if (flags & BIG) {
        uint64_t at;
        memcpy(&at, value, sizeof at);
        return check_overflow(w, at, size);
    }
    if (!tables) return flags ? bad(w, page, "a row has unknown flags") : 0;
    if (flags != TABLE || size != sizeof(tree)) return 0; /* a row of another program */
    tree t;
    memcpy(&t, value, sizeof t);
    return walk_tree(w, &t, false);
}

static int walk_page(walk *w, uint64_t page, int depth, bool tables);

static int check_nodes(walk *w, uint64_t page, const uint8_t *p, size_t count, size_t upper, int depth,
                       bool tables) {
    for (size_t i = 0; i < count; i++) {
        size_t at = get16(p + HEAD + 2 * i);
        if (at < upper || at + NODE_HEAD > w->page_size) return bad(w, page, "a row lies outside of it");
        const uint8_t *node = p + at;
        uint64_t low = get16(node) | (uint64_t)get16(node + 2) << 16, rest = get16(node + 4);
        size_t end = at + NODE_HEAD + get16(node + 6);
        if (depth == 1) end += rest & BIG ? sizeof(uint64_t) : low;
        if (end > w->page_size) return bad(w, page, "a row lies outside of it");
        int rc = depth > 1 ? walk_page(w, low | rest << 32, depth - 1, tables)
                           : check_value(w, page, node, low, tables);
        if (rc) return rc;
    }
    return 0;
}

static int walk_page(walk *w, uint64_t page, int depth, bool tables) {
    if (w->left == 0) return 0;
    w->left--;
    if (claim(w, page, 1)) return -1;
    const uint8_t *p = w->map + page * w->page_size;
    uint64_t number;
    memcpy(&number, p, sizeof number);
    uint16_t flags = get16(p + 10);
    size_t lower = get16(p + 12), upper = get16(p + 14), count = (lower - HEAD) / 2;
    if (number != page) return bad(w, page, "it has the number of another one");
    if (flags & (OVERFLOW | FIXED | DUPLICATES) || !(flags & (depth > 1 ? BRANCH : LEAF)))
        return bad(w, page, "it is of another kind than it should be");
    if (lower < HEAD || lower % 2 || lower > upper || upper > w->page_size || count == 0)
        return bad(w, page, "its head makes no sense");
    return check_nodes(w, page, p, count, upper, depth, tables);
}

static int walk_tree(walk *w, const tree *t, bool tables) {
    if (t->flags & OTHER_ROWS) return bad(w, t->root, "its tree is of another kind than it should be");
    if (t->root == NO_PAGE) return 0;
    if (t->depth == 0 || t->depth > DEPTH_MOST) return bad(w, t->root, "its tree has an impossible depth");
    return walk_page(w, t->root, t->depth, tables);
}

/* ---- the free list ---- */

/* A page that is in use and in the free list would be written over. */
static int check_free(walk *w, MDB_txn *txn) {
    MDB_cursor *c;
    MDB_val key, list;
    int rc = mdb_cursor_open(txn, 0, &c);
    while (!rc && (rc = mdb_cursor_get(c, &key, &list, MDB_NEXT)) == 0) {
        const uint64_t *pages = list.mv_data;
        size_t n = list.mv_size / sizeof *pages;
        if (n == 0 || pages[0] >= n) rc = bad(w, 0, "the free list is longer than its row");
        for (size_t i = 1; rc == 0 && i <= pages[0]; i++) {
            if (pages[i] < 2 || (i > 1 && pages[i] >= pages[i - 1]))
                rc = bad(w, pages[i], "the free list is out of order");
            else if (pages[i] < w->pages && w->seen[pages[i] / 8] >> pages[i] % 8 & 1)
                rc = bad(w, pages[i], "it is in use, and in the free list");
        }
        if (rc) break;
    }
    mdb_cursor_close(c);
    return rc == MDB_NOTFOUND ? 0 : rc;
}

/* ---- all of it ---- */

/* The meta page of this very snapshot; a writer may have gone on since. */
static bool find_meta(const walk *w, uint64_t txn, meta *m) {
    for (int i = 0; i < 2; i++) {
        memcpy(m, w->map + i * w->page_size + HEAD, sizeof *m);
        if (m->txn == txn && m->version == DATA_VERSION) return true;
    }
    return false;
}

static int walk_all(walk *w, MDB_txn *txn) {
    meta m;
    w->seen = calloc(w->pages / 8 + 1, 1);
    if (!w->seen) abort();
    if (w->pages < 2 || !find_meta(w, mdb_txn_id(txn), &m)) return 0; /* nothing was written yet */
    int rc = walk_tree(w, &m.trees[0], false);
    if (!rc) rc = walk_tree(w, &m.trees[1], true);
    return rc ? rc : check_free(w, txn);
}

int mwe_verify(mwe_store *s, const char *file, mw_error *e) {
    MDB_txn *txn;
    struct stat st;
    int fd, rc = mdb_txn_begin(s->env, NULL, MDB_RDONLY, &txn);
    if (rc) return mw_fail(e, MW_EFORMAT, false, "cannot open %s: %s", file, mdb_strerror(rc));
    walk w = {.page_size = s->page_size, .left = PAGES_MOST};
    if (mdb_env_get_fd(s->env, &fd) || fstat(fd, &st) < 0) {
        mdb_txn_abort(txn);
        return mw_fail(e, errno, false, "cannot read %s: %s", file, strerror(errno));
    }
    w.pages = (size_t)st.st_size / s->page_size;
    void *map = w.pages ? mmap(NULL, w.pages * s->page_size, PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (map != MAP_FAILED) {
        w.map = map;
        rc = walk_all(&w, txn);
        munmap(map, w.pages * s->page_size);
    }
    free(w.seen);
    mdb_txn_abort(txn);
    if (!rc) return 0;
    return mw_fail(e, MW_EFORMAT, false,
                   "%s is damaged: page %llu: %s; nothing was changed: put a backup in its place", file,
                   (unsigned long long)w.bad, w.why ? w.why : mdb_strerror(rc));
}
