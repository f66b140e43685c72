/* raw_lmdb.c - the floor under the embedded broker: the least that LMDB must do for a message. A row of
 * `body` bytes and an index row with an 18-byte key are put, and later both deleted, `put` and `delete`
 * messages to a synced commit. raw_lmdb FOLDER MESSAGES PUTS-PER-COMMIT DELETES-PER-COMMIT BODY   -> seconds,
 * wall and CPU, as JSON raw_lmdb FILE                                                      -> how often it
 * was committed to */
#include <lmdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void check(int rc, const char *what) {
    if (!rc) return;
    fprintf(stderr, "raw_lmdb: %s: %s\n", what, mdb_strerror(rc));
    exit(1);
}

static double now(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static MDB_env *env;
static MDB_dbi rows, places;

typedef struct keys {
    uint64_t row;
    unsigned char place[18];
    MDB_val row_key, place_key;
} keys;

static void keys_of(keys *k, uint64_t n) {
    k->row = __builtin_bswap64(n);
    memset(k->place, 1, sizeof k->place);
    memcpy(k->place + sizeof k->place - sizeof k->row, &k->row, sizeof k->row);
    k->row_key = (MDB_val){sizeof k->row, &k->row};
    k->place_key = (MDB_val){sizeof k->place, k->place};
}

static void put_one(MDB_txn *t, uint64_t n, MDB_val *body) {
    keys k;
    keys_of(&k, n);
    uint32_t hash = (uint32_t)n;
    check(mdb_put(t, rows, &k.row_key, body, MDB_APPEND), "put");
    check(mdb_put(t, places, &k.place_key, &(MDB_val){sizeof hash, &hash}, MDB_APPEND), "put");
}

static void delete_one(MDB_txn *t, uint64_t n, MDB_val *body) {
    (void)body;
    keys k;
    keys_of(&k, n);
    check(mdb_del(t, rows, &k.row_key, NULL), "delete");
    check(mdb_del(t, places, &k.place_key, NULL), "delete");
}

static void each(uint64_t count, uint64_t per_commit, void (*one)(MDB_txn *, uint64_t, MDB_val *),
                 MDB_val *body, const char *name) {
    double wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    for (uint64_t n = 0; n < count;) {
        MDB_txn *t;
        check(mdb_txn_begin(env, NULL, 0, &t), "begin");
        for (uint64_t i = 0; i < per_commit && n < count; i++) one(t, ++n, body);
        check(mdb_txn_commit(t), "commit");
    }
    printf("\"%s_wall\":%.6f,\"%s_cpu\":%.6f", name, now(CLOCK_MONOTONIC) - wall, name,
           now(CLOCK_PROCESS_CPUTIME_ID) - cpu);
}

static void open_env(const char *folder, unsigned flags) {
    check(mdb_env_create(&env), "create");
    check(mdb_env_set_maxdbs(env, 32), "maxdbs");
    if (!(flags & MDB_RDONLY)) check(mdb_env_set_mapsize(env, (size_t)4 << 30), "mapsize");
    check(mdb_env_open(env, folder, flags, 0600), folder);
}

static void open_tables(void) {
    MDB_txn *t;
    check(mdb_txn_begin(env, NULL, 0, &t), "begin");
    check(mdb_dbi_open(t, "rows", MDB_CREATE, &rows), "open");
    check(mdb_dbi_open(t, "places", MDB_CREATE, &places), "open");
    check(mdb_txn_commit(t), "commit");
}

int main(int argc, char **argv) {
    if (argc == 2) {
        MDB_envinfo info;
        open_env(argv[1], MDB_RDONLY | MDB_NOSUBDIR);
        check(mdb_env_info(env, &info), "info");
        printf("{\"commits\":%zu}\n", info.me_last_txnid);
        return 0;
    }
    if (argc != 6) return 64;
    open_env(argv[1], 0);
    open_tables();
    uint64_t count = strtoull(argv[2], NULL, 10);
    size_t size = strtoull(argv[5], NULL, 10);
    char *bytes = calloc(1, size);
    if (!bytes) return 70;
    MDB_val body = {size, bytes};
    printf("{");
    each(count, strtoull(argv[3], NULL, 10), put_one, &body, "put");
    printf(",");
    each(count, strtoull(argv[4], NULL, 10), delete_one, &body, "delete");
    printf("}\n");
    return 0;
}
