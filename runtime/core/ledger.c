#include "core/ledger.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

enum { N = MW_LEDGER_ENTRIES };
static const uint64_t MAGIC = 0x3172656764656c77;

typedef struct name { /* for log lines; the hash decides */
    uint8_t len;
    char id[MW_LEDGER_ID];
} name;

typedef struct table {
    uint32_t high;    /* entries from here on were never used */
    uint64_t hash[N]; /* 0: free. Written last, cleared first */
    name who[N];
} table;

typedef struct page {
    uint64_t magic;
    uint32_t slots, allowed;
    uint32_t live; /* suspects; a worker that reads 0 need not look */
    uint32_t deaths[N];
    int64_t since[N];
    table suspects, begun[];
} page;

struct mw_ledger {
    page *page;
    int fd;
};

static size_t size_for(uint32_t slots) { return sizeof(page) + slots * sizeof(table); }
static uint64_t load(const uint64_t *at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
static void store(uint64_t *at, uint64_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
static uint32_t high_of(const table *t) { return __atomic_load_n(&t->high, __ATOMIC_ACQUIRE); }

static int find(const table *t, uint64_t hash) {
    uint32_t high = high_of(t);
    for (uint32_t i = 0; i < high && i < N; i++)
        if (load(&t->hash[i]) == hash) return (int)i;
    return -1;
}

static void put(table *t, uint32_t i, uint64_t hash, const char *id, size_t len) {
    t->who[i].len = (uint8_t)(len < MW_LEDGER_ID ? len : MW_LEDGER_ID);
    if (len) memcpy(t->who[i].id, id, t->who[i].len);
    store(&t->hash[i], hash);
    if (i >= t->high) __atomic_store_n(&t->high, i + 1, __ATOMIC_RELEASE);
}

/* ---- the supervisor's side ---- */

mw_ledger *mw_ledger_new(uint32_t slots, mw_error *e) {
    mw_ledger *l = calloc(1, sizeof *l);
    if (!l) abort();
    l->page = MAP_FAILED;
    l->fd = memfd_create("moonwire ledger", MFD_CLOEXEC);
    if (l->fd >= 0 && ftruncate(l->fd, (off_t)size_for(slots)) == 0)
        l->page = mmap(NULL, size_for(slots), PROT_READ | PROT_WRITE, MAP_SHARED, l->fd, 0);
    if (l->page == MAP_FAILED) {
        mw_fail(e, errno, false, "shared memory for %u workers: %s", slots, strerror(errno));
        if (l->fd >= 0) close(l->fd);
        free(l);
        return NULL;
    }
    l->page->magic = MAGIC;
    l->page->slots = slots;
    return l;
}

void mw_ledger_free(mw_ledger *l) {
    if (!l) return;
    munmap(l->page, size_for(l->page->slots));
    close(l->fd);
    free(l);
}

int mw_ledger_fd(const mw_ledger *l) { return l->fd; }
void mw_ledger_allow(mw_ledger *l, uint32_t deaths) { l->page->allowed = deaths; }

/* A free entry, or the oldest one: what was never seen again has gone elsewhere. */
static uint32_t room_for_suspect(page *p) {
    uint32_t oldest = 0;
    for (uint32_t i = 0; i < N; i++) {
        if (!load(&p->suspects.hash[i])) {
            __atomic_add_fetch(&p->live, 1, __ATOMIC_RELEASE);
            return i;
        }
        if (p->since[i] < p->since[oldest]) oldest = i;
    }
    return oldest;
}

static void suspect(page *p, uint64_t hash, const name *who, uint32_t slot, int64_t now_ms) {
    int at = find(&p->suspects, hash);
    uint32_t i = at >= 0 ? (uint32_t)at : room_for_suspect(p);
    uint32_t deaths = at >= 0 ? p->deaths[i] + 1 : 1;
    p->since[i] = now_ms;
    __atomic_store_n(&p->deaths[i], deaths, __ATOMIC_RELEASE);
    if (at < 0) put(&p->suspects, i, hash, who->id, who->len);
    mw_log_begin(deaths > 1 ? MW_WARN : MW_DEBUG, "suspect: its worker died while handling it");
    mw_log_str("id", who->id, who->len);
    mw_log_int("worker", slot + 1);
    mw_log_int("deaths", deaths);
    mw_log_end();
}

uint32_t mw_ledger_bury(mw_ledger *l, uint32_t slot, bool own_doing, int64_t now_ms) {
    table *t = &l->page->begun[slot];
    uint32_t count = 0;
    for (uint32_t i = 0; i < t->high && i < N; i++) {
        uint64_t hash = load(&t->hash[i]);
        if (!hash) continue;
        if (own_doing) suspect(l->page, hash, &t->who[i], slot, now_ms);
        store(&t->hash[i], 0); /* after it became a suspect: it is never in neither */
        count++;
    }
    __atomic_store_n(&t->high, 0, __ATOMIC_RELEASE);
    return own_doing ? count : 0;
}

/* ---- a worker's side ---- */

static page *mine;
static uint32_t my_slot;
static uint16_t free_entries[N];
static uint32_t free_count;

int mw_ledger_attach(int fd, uint32_t slot, mw_error *e) {
    struct stat s;
    if (fstat(fd, &s) || (size_t)s.st_size < size_for(slot + 1))
        return mw_fail(e, MW_EUSAGE, false, "there is no supervisor's memory here");
    page *p = mmap(NULL, (size_t)s.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return mw_fail(e, errno, false, "the supervisor's memory: %s", strerror(errno));
    if (p->magic != MAGIC || slot >= p->slots) {
        munmap(p, (size_t)s.st_size);
        return mw_fail(e, MW_EFORMAT, false, "this is not the supervisor's memory");
    }
    mine = p;
    my_slot = slot;
    for (free_count = 0; free_count < N; free_count++)
        free_entries[free_count] = (uint16_t)(N - 1 - free_count); /* low ones first: short to search */
    return 0;
}

bool mw_ledger_on(void) { return mine != NULL; }
int mw_ledger_slot(void) { return mine ? (int)my_slot : -1; }
uint32_t mw_ledger_allowed(void) { return __atomic_load_n(&mine->allowed, __ATOMIC_RELAXED); }

uint32_t mw_ledger_begin(uint64_t hash, const char *id, size_t len) {
    if (!free_count) return 0;
    uint32_t i = free_entries[--free_count];
    put(&mine->begun[my_slot], i, hash, id, len);
    return i + 1;
}

static void strike_out(uint64_t hash) {
    int at = find(&mine->suspects, hash);
    if (at < 0) return;
    uint64_t expected = hash;
    if (__atomic_compare_exchange_n(&mine->suspects.hash[at], &expected, 0, false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_RELAXED))
        __atomic_sub_fetch(&mine->live, 1, __ATOMIC_RELEASE);
}

void mw_ledger_end(uint32_t entry, uint64_t hash) {
    if (__atomic_load_n(&mine->live, __ATOMIC_ACQUIRE)) strike_out(hash);
    if (!entry) return;
    store(&mine->begun[my_slot].hash[entry - 1], 0);
    free_entries[free_count++] = (uint16_t)(entry - 1);
}

int mw_ledger_deaths(uint64_t hash, bool elsewhere) {
    if (__atomic_load_n(&mine->live, __ATOMIC_ACQUIRE)) {
        int at = find(&mine->suspects, hash);
        if (at >= 0) return (int)__atomic_load_n(&mine->deaths[at], __ATOMIC_ACQUIRE);
    }
    for (uint32_t slot = 0; elsewhere && slot < mine->slots; slot++)
        if (slot != my_slot && find(&mine->begun[slot], hash) >= 0) return 0;
    return -1;
}
