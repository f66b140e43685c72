/* embedded_file_test.c - the embedded broker's file: how messages lie in it, what happens when it is full,
 * and when it is not what it should be. embedded_file_test [NAME]      all cases, or those whose name
 * contains NAME */
#include <sched.h>
#include <sys/mount.h>

#include "embedded_host.h"

/* ---- cases: pieces and room ---- */

/* Messages of every size around those at which a record is cut, and with keys and headers that are cut
 * themselves: delivered as they were, to a group that came first and to one that came late. */
static void test_pieces(void) {
    enum { MORE = 1 << 20, LONGEST = 3 << 20 };
    static const size_t sizes[] = {0,    1900, 4000, 4020, 4030,  4031,   4032,
                                   4033, 4064, 8090, 8100, 65536, LONGEST};
    enum { COUNT = sizeof sizes / sizeof *sizes };
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    mw_source *a = subscribe_as(c, "work", "a", MW_ORDER_KEY, 10000);
    char *bytes = malloc(LONGEST);
    for (size_t i = 0; i < LONGEST; i++) bytes[i] = (char)(i * 2654435761u >> 13);
    mw_headers headers = {0};
    mw_headers_add(&headers, "h", 1, bytes, MORE - 100);
    mw_publication list[COUNT * 2];
    for (size_t i = 0; i < COUNT * 2; i++) {
        bool large = i >= COUNT;
        mw_parts p = {.body = bytes, .body_len = sizes[i % COUNT], .priority = 4, .time_ms = 1};
        p.key = bytes, p.key_len = large ? MORE : 10, p.has_key = true;
        if (large) p.headers = headers.data, p.headers_len = headers.len;
        list[i] = (mw_publication){.channel = "work", .msg = mw_message_new(&p)};
    }
    D->publish(c, list, COUNT * 2);
    RUN_UNTIL(l.published == COUNT * 2, 10000);
    CHECK(l.refused == 0, "%s", l.error.text);
    for (size_t i = 0; i < COUNT * 2; i++) mw_message_unref(list[i].msg);
    mw_source *b = subscribe_as(c, "work", "b", MW_ORDER_KEY, 10000);
    RUN_UNTIL(a->count == COUNT * 2 && b->count == COUNT * 2, 10000);
    for (size_t i = 0; i < COUNT * 2; i++)
        for (int side = 0; side < 2; side++) {
            got *g = &(side ? b : a)->got[i];
            CHECK(g->size == sizes[i % COUNT] && g->hash == mw_hash64(bytes, g->size),
                  "message %zu: %zu bytes", i, g->size);
        }
    audit_store();
    size_t acked = 0;
    ack_new(a, &acked);
    acked = 0;
    ack_new(b, &acked);
    RUN_UNTIL(a->settled == COUNT * 2 && b->settled == COUNT * 2, 10000);
    browse(c, &l, 0);
    CHECK(l.entries == 0 && a->errors + b->errors == 0);
    mw_headers_free(&headers);
    free(bytes);
    unsubscribe(a);
    unsubscribe(b);
    D->close(c);
}

/* Publishes, 20 at a time, until the store refuses; *sent counts what it took. */
static void fill(mw_conn *c, mw_link *l, size_t size, int *sent) {
    enum { AT_ONCE = 20 };
    char *body = malloc(size);
    memset(body, '7', size);
    letter w = {"work", NULL, body, .size = size};
    mw_message *m = message_of(&w);
    for (int refused = l->refused; l->refused == refused;) {
        mw_publication list[AT_ONCE];
        int before = l->published;
        for (int i = 0; i < AT_ONCE; i++) list[i] = (mw_publication){.channel = "work", .msg = m};
        D->publish(c, list, AT_ONCE);
        RUN_UNTIL(l->published == before + AT_ONCE, 5000);
        *sent += AT_ONCE - (l->refused - refused);
    }
    mw_message_unref(m);
    free(body);
}

static void test_full(void) {
    static const char *const sizes[] = {"?size=4MB", "?size=8MB"};
    for (int round = 0; round < 4; round++) {
        mw_link l = {0};
        fresh_folder();
        mw_conn *c = open_with(sizes[round / 2], &l);
        mw_source *s = subscribe(c, "work");
        int sent = 0;
        size_t acked = 0;
        s->room = 100000;
        for (int again = 0; again < 3; again++) {
            int before = sent;
            fill(c, &l, round % 2 ? 5000 : 300, &sent);
            CHECK(l.error.code == MW_EFULL && l.error.retryable && strstr(l.error.text, "size="));
            CHECK(sent - before > 20, "round %d.%d: only %d fitted", round, again, sent - before);
            RUN_UNTIL(s->count == (size_t)sent, 5000);
            ack_new(s, &acked);
            RUN_UNTIL(s->settled == sent, 10000);
            CHECK(s->errors == 0, "%s", s->error.text);
        }
        unsubscribe(s);
        D->close(c);
    }
}

/* What the last commit freed can be used two commits later; nobody else is there to make them. */
static void test_freed_at_last(void) {
    enum { SIZE = 400000 };
    static uint64_t all[64];
    mw_link l = {0};
    mw_conn *c = open_with("?size=4MB", &l);
    char *body = malloc(SIZE);
    memset(body, '7', SIZE);
    for (int round = 0; round < 5; round++) {
        int sent = 0;
        fill(c, &l, SIZE, &sent);
        CHECK(sent >= 5, "round %d: only %d fitted", round, sent);
        size_t there = positions_in(c, &l, "work", all, 64);
        CHECK(there == (size_t)sent);
        remove_from(c, &l, "work", all, there);
        mw_error e = send_one(c, &l, (letter){"work", NULL, body, .size = SIZE});
        CHECK(e.code == 0, "round %d: empty, and yet %s", round, e.text);
        CHECK(positions_in(c, &l, "work", all, 64) == 1);
        remove_from(c, &l, "work", all, 1);
    }
    free(body);
    D->close(c);
}

/* Free pages lie scattered between live ones: a large message must not need them side by side. */
static void test_scattered(void) {
    enum { SMALL = 3000, LARGE = 400000, EVERY = 20 };
    static uint64_t all[2000], gone[2000];
    mw_link l = {0};
    mw_conn *c = open_with("?size=4MB", &l);
    int sent = 0;
    fill(c, &l, SMALL, &sent);
    size_t there = positions_in(c, &l, "work", all, 2000), count = 0;
    CHECK(there == (size_t)sent && there > 500, "%zu", there);
    for (size_t i = 0; i < there; i++)
        if (i % EVERY) gone[count++] = all[i];
    remove_from(c, &l, "work", gone, count);
    for (int i = 0; i < 3; i++) CHECK(send_one(c, &l, (letter){"other", NULL, "1"}).code == 0);
    char *body = malloc(LARGE);
    memset(body, '7', LARGE);
    for (int i = 0; i < 4; i++) {
        mw_error e = send_one(c, &l, (letter){"large", NULL, body, .size = LARGE});
        CHECK(e.code == 0, "large message %d, with %zu pages free: %s", i, count, e.text);
    }
    mw_source *s = subscribe(c, "large");
    RUN_UNTIL(s->count == 4, 5000);
    for (size_t i = 0; i < 4; i++) CHECK(s->got[i].size == LARGE);
    consume_all(s, 4, 5000);
    unsubscribe(s);
    free(body);
    D->close(c);
}

/* Acks everything delivered so far, each with a publication of its size to `to`; shuffled as far as a window
 * of handlers would do it. */
static void move_on(mw_source *s, const char *to, char *body, size_t size) {
    letter w = {to, "k", body, .size = size};
    mw_message *m = message_of(&w);
    mw_publication p = {.channel = to, .msg = m};
    size_t count = s->count;
    for (size_t i = 0; i < count; i++) {
        size_t window = count - i < 200 ? count - i : 200, j = i + (size_t)rand() % window;
        got g = s->got[j];
        s->got[j] = s->got[i];
        s->got[i] = g;
    }
    for (size_t i = 0; i < count; i++) {
        int settled = s->settled;
        mw_settlement x = of(&s->got[i], MW_SETTLE_ACK);
        x.publish = &p;
        x.publish_count = 1;
        settle(s, x);
        if (i % 50 == 0) RUN_UNTIL(s->settled > settled, 10000);
    }
    RUN_UNTIL(s->settled == (int)count, 20000);
    mw_message_unref(m);
}

/* A full store whose messages are moved from one channel to another and back, all of them, again and again: a
 * settlement that frees as much as it takes goes through. Small messages share pages, which go when the last
 * of a page does: those are moved once. */
static void test_swap(void) {
    static const size_t sizes[] = {300, 1800, 3000, 5000, 100000, 400000};
    static uint64_t all[10000];
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        mw_link l = {0};
        fresh_folder();
        mw_conn *c = open_with("?size=4MB", &l);
        mw_source *s = subscribe(c, "work");
        int sent = 0;
        s->room = 100000;
        fill(c, &l, sizes[n], &sent);
        char *body = malloc(sizes[n]);
        memset(body, '7', sizes[n]);
        RUN_UNTIL(s->count == (size_t)sent, 10000);
        for (int round = 0; round < (sizes[n] < 1900 ? 1 : 6); round++) {
            const char *to = round % 2 ? "work" : "done";
            mw_source *next = subscribe(c, to);
            next->room = 100000;
            move_on(s, to, body, sizes[n]);
            CHECK(s->errors == 0, "%zu bytes, round %d, %d of %d refused: %s", sizes[n], round, s->errors,
                  sent, s->error.text);
            unsubscribe(s);
            s = next;
            RUN_UNTIL(s->count == (size_t)sent, 10000);
        }
        CHECK(positions_in(c, &l, sizes[n] < 1900 ? "done" : "work", all, 10000) == (size_t)sent);
        consume_all(s, (size_t)sent, 10000);
        unsubscribe(s);
        free(body);
        D->close(c);
    }
}

/* Messages of all sizes come and go in any order in a store that is full most of the time, so that its free
 * pages lie everywhere: an ack is never refused, and in the end everything can be taken out. */
static void test_churn(void) {
    static const size_t sizes[] = {100, 100, 500, 2500, 3900, 9000, 70000, 400000, 1500000, 3000000};
    enum { ROUNDS = 1000, LARGEST = 3000000 };
    mw_link l = {0};
    mw_conn *c = open_with("?size=16MB", &l);
    mw_source *s = subscribe(c, "work");
    char *body = malloc(LARGEST);
    memset(body, '7', LARGEST);
    s->room = 100000;
    s->bytes = 1 << 30;
    size_t acked = 0;
    int refused = 0, sent = 0;
    srand(5);
    for (int round = 0; round < ROUNDS; round++) {
        size_t size = sizes[(size_t)rand() % (sizeof sizes / sizeof *sizes)];
        mw_error e = send_one(c, &l, (letter){"work", NULL, body, .size = size});
        CHECK(e.code == 0 || e.code == MW_EFULL, "%s", e.text);
        sent += e.code == 0;
        refused += e.code != 0;
        RUN_UNTIL(s->count == (size_t)sent, 10000);
        if (e.code == 0) continue;                                           /* until it is full */
        for (int n = rand() % 20; n > 0 && acked < s->count; n--, acked++) { /* one of those that are left */
            size_t j = acked + (size_t)rand() % (s->count - acked);
            got g = s->got[j];
            s->got[j] = s->got[acked];
            s->got[acked] = g;
            ack(s, acked);
        }
        RUN_UNTIL(s->settled == (int)acked, 10000);
        CHECK(s->errors == 0, "round %d: %s", round, s->error.text);
    }
    CHECK(refused > 30 && sent > 300, "%d refused, %d taken", refused, sent);
    for (; acked < s->count; acked++) ack(s, acked);
    RUN_UNTIL(s->settled == sent, 20000);
    CHECK(s->errors == 0, "%s", s->error.text);
    browse(c, &l, 0);
    CHECK(l.entries == 0 && send_one(c, &l, (letter){"work", NULL, body, .size = LARGEST}).code == 0);
    free(body);
    unsubscribe(s);
    D->close(c);
}

static void take_disk(const char *disk, bool take) {
    char path[512], junk[4096] = "";
    snprintf(path, sizeof path, "%s/junk", disk);
    if (!take) {
        CHECK(unlink(path) == 0);
        return;
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    while (write(fd, junk, sizeof junk) > 0) {
    }
    close(fd);
}

/* A disk of 6 MB: named by MW_TEST_SMALL_DISK, or a tmpfs in a mount namespace of our own, which goes with
 * this process. */
static const char *small_disk(void) {
    const char *given = getenv("MW_TEST_SMALL_DISK");
    static char place[] = "/tmp/mw-small-disk.XXXXXX";
    if (given) return given;
    if (geteuid() != 0 || unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL))
        return NULL;
    if (!mkdtemp(place) || mount("none", place, "tmpfs", 0, "size=6m")) return NULL;
    return place;
}

static void test_full_disk(void) {
    const char *disk = small_disk();
    if (!disk) {
        printf("SKIPPED full disk: only root can make one; or name one in MW_TEST_SMALL_DISK\n");
        return;
    }
    mw_link l = {0};
    snprintf(folder, sizeof folder, "%s/store", disk);
    mw_conn *c = open_store(&l);
    mw_source *s = subscribe(c, "work");
    int sent = 0;
    size_t acked = 0;
    s->room = 100000;
    for (int again = 0; again < 3; again++) {
        int before = sent;
        fill(c, &l, 1000, &sent);
        CHECK(l.error.code == MW_EFULL && l.error.retryable && strstr(l.error.text, "disk"), "%s",
              l.error.text);
        CHECK(sent - before > 100, "only %d fitted", sent - before);
        RUN_UNTIL(s->count == (size_t)sent, 5000);
        ack_new(s, &acked);
        RUN_UNTIL(s->settled == sent, 10000);
        CHECK(s->errors == 0, "%s", s->error.text);
    }
    fill(c, &l, 1000, &sent);
    RUN_UNTIL(s->count == (size_t)sent, 5000);
    take_disk(disk, true); /* now somebody else takes what is left: acks fail, and work again later */
    ack_new(s, &acked);
    RUN_UNTIL(s->settled == sent, 10000);
    take_disk(disk, false);
    CHECK(s->errors == 0 || s->error.retryable, "%s", s->error.text);
    while (s->errors) {
        int failed = s->errors, before = s->settled;
        s->errors = 0;
        for (size_t i = s->count - (size_t)failed; i < s->count; i++) ack(s, i);
        RUN_UNTIL(s->settled == before + failed, 10000);
    }
    mw_depth d = depth_of(s);
    CHECK(d.ready == 0 && d.unsettled == 0, "%d %d", (int)d.ready, (int)d.unsettled);
    unsubscribe(s);
    D->close(c);
    if (!getenv("MW_TEST_SMALL_DISK")) {
        umount2(disk, MNT_DETACH);
        rmdir(disk);
    }
}

/* ---- cases: folders ---- */

static void refuse(const char *path, const char *word) {
    mw_link l = {0};
    mw_error e = {0};
    mw_conn *c = try_open(path, "", &l, &e);
    CHECK(!c && strstr(e.text, word), "\"%s\" should say \"%s\"", e.text, word);
}

static void write_file(const char *name, const void *data, size_t size) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    CHECK(f && fwrite(data, 1, size, f) == size && fclose(f) == 0);
}

static void test_folders(void) {
    char path[512], junk[20000];
    mw_link l = {0};
    for (size_t i = 0; i < sizeof junk; i++) junk[i] = (char)(i * 7 + 3);
    CHECK(mkdir(folder, 0777) == 0);
    write_file("notes.txt", "hello", 5);
    refuse(folder, "not a Moonwire store and not empty");
    snprintf(path, sizeof path, "%s/notes.txt", folder);
    refuse(path, "notes.txt");
    snprintf(path, sizeof path, "%s/notes.txt/deeper", folder);
    refuse(path, "Not a directory");
    fresh_folder();
    CHECK(mkdir(folder, 0777) == 0);
    write_file("moonwire.mdb", junk, sizeof junk);
    refuse(folder, "not a Moonwire store");
    write_file("moonwire.mdb", junk, 10);
    refuse(folder, "not a Moonwire store");
    snprintf(path, sizeof path, "%s/a/b/c", folder);
    mw_error e = {0};
    mw_conn *c = try_open(path, "", &l, &e);
    CHECK(c, "%s", e.text);
    D->close(c);
    refuse("", "needs a folder");
}

static void test_truncated(void) {
    char path[512];
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    send_many(c, &l, "work", 5000, 5);
    D->close(c);
    snprintf(path, sizeof path, "%s/moonwire.mdb", folder);
    struct stat whole, after;
    CHECK(stat(path, &whole) == 0);
    for (int keep = 90; keep >= 10; keep -= 40) {
        CHECK(truncate(path, whole.st_size * keep / 100) == 0 && stat(path, &whole) == 0);
        refuse(folder, "damaged");
        refuse(folder, "damaged");
        CHECK(stat(path, &after) == 0 && after.st_size == whole.st_size, "the file was changed");
    }
    CHECK(truncate(path, 4096 + 300) == 0);
    refuse(folder, "moonwire.mdb");
}

/* Each page in turn is zeroed, filled with noise, or swapped with another: the store is refused and left as
 * it is, or the page was not in use. */
static void test_damaged_pages(void) {
    enum { PAGE = 4096 };
    char path[512];
    static char body[3000], body2[20000];
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    mw_source *s = subscribe(c, "work");
    memset(body, '7', sizeof body);
    memset(body2, '7', sizeof body2);
    send_many(c, &l, "work", 300, 5);
    for (int i = 0; i < 4; i++) {
        send_one(c, &l, (letter){"work", NULL, body, .size = sizeof body});
        send_one(c, &l, (letter){"work", NULL, body2, .size = sizeof body2});
    }
    RUN_UNTIL(s->count == 308, 5000);
    for (size_t i = 0; i < 100; i++) ack(s, i);
    RUN_UNTIL(s->settled == 100, 5000);
    unsubscribe(s);
    D->close(c);
    snprintf(path, sizeof path, "%s/moonwire.mdb", folder);
    int fd = open(path, O_RDWR | O_CLOEXEC), refused = 0, taken = 0;
    struct stat st;
    CHECK(fd >= 0 && fstat(fd, &st) == 0);
    size_t size = (size_t)st.st_size, pages = size / PAGE;
    char *sound = malloc(size), *found = malloc(size);
    CHECK(pread(fd, sound, size, 0) == (ssize_t)size);
    for (size_t page = 2; page < pages; page++)
        for (int how = 0; how < 3; how++) {
            char now[PAGE] = {0};
            if (how == 1) memcpy(now, sound + (page + 1 < pages ? page + 1 : 2) * PAGE, PAGE);
            for (int i = 0; how == 2 && i < PAGE; i++) now[i] = (char)rand();
            CHECK(pwrite(fd, sound, size, 0) == (ssize_t)size && ftruncate(fd, (off_t)size) == 0);
            CHECK(pwrite(fd, now, PAGE, (off_t)(page * PAGE)) == PAGE);
            mw_error e = {0};
            c = try_open(folder, "", &l, &e);
            if (!c) {
                refused++;
                CHECK(e.code == MW_EFORMAT && strstr(e.text, "is damaged: page"), "%s", e.text);
                CHECK(pread(fd, found, size, 0) == (ssize_t)size);
                memcpy(found + page * PAGE, sound + page * PAGE, PAGE);
                CHECK(memcmp(found, sound, size) == 0, "page %zu: the file was changed", page);
                continue;
            }
            taken++;
            s = subscribe(c, "work");
            RUN_UNTIL(s->count >= 200, 5000);
            unsubscribe(s);
            D->close(c);
        }
    CHECK(refused > 60 && taken > 0, "%d refused, %d taken", refused, taken);
    CHECK(pwrite(fd, sound, size, 0) == (ssize_t)size);
    close(fd);
    free(sound);
    free(found);
}

/* Single bytes of both heads are changed, and pairs of bytes anywhere: refused or taken, but never a crash,
 * and a refusal changes nothing. */
static void test_damaged_bytes(void) {
    enum { PAGE = 4096, HEAD_BYTES = 152, ANYWHERE = 100 };
    char path[512];
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    send_many(c, &l, "work", 300, 5);
    D->close(c);
    snprintf(path, sizeof path, "%s/moonwire.mdb", folder);
    int fd = open(path, O_RDWR | O_CLOEXEC), refused = 0;
    struct stat st;
    CHECK(fd >= 0 && fstat(fd, &st) == 0);
    size_t size = (size_t)st.st_size;
    char *sound = malloc(size), *now = malloc(size), *found = malloc(size);
    CHECK(pread(fd, sound, size, 0) == (ssize_t)size);
    for (int i = 0; i < 2 * HEAD_BYTES + ANYWHERE; i++) {
        memcpy(now, sound, size);
        if (i < 2 * HEAD_BYTES)
            now[(size_t)(i % 2) * PAGE + (size_t)i / 2] ^= (char)0x5a;
        else
            for (int k = 0; k < 2; k++) now[(size_t)rand() % size] ^= (char)(1 + rand() % 255);
        CHECK(pwrite(fd, now, size, 0) == (ssize_t)size && ftruncate(fd, (off_t)size) == 0);
        mw_error e = {0};
        c = try_open(folder, "", &l, &e);
        if (c) {
            D->close(c);
            continue;
        }
        refused++;
        CHECK(*e.text, "refused without a word");
        CHECK(pread(fd, found, size, 0) == (ssize_t)size && memcmp(found, now, size) == 0,
              "%d: the file was changed", i);
    }
    CHECK(refused > 60, "%d refused", refused);
    close(fd);
    free(sound);
    free(now);
    free(found);
}

static void put_row(const char *table, const void *name, size_t len, const void *data, size_t size) {
    char path[512];
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi dbi;
    snprintf(path, sizeof path, "%s/moonwire.mdb", folder);
    CHECK(mdb_env_create(&env) == 0 && mdb_env_set_maxdbs(env, 20) == 0);
    CHECK(mdb_env_open(env, path, MDB_NOSUBDIR, 0666) == 0 && mdb_txn_begin(env, NULL, 0, &txn) == 0);
    MDB_val key = {len, (void *)name}, value = {size, (void *)data};
    CHECK(mdb_dbi_open(txn, table, MDB_CREATE, &dbi) == 0 && mdb_put(txn, dbi, &key, &value, 0) == 0);
    CHECK(mdb_txn_commit(txn) == 0);
    mdb_env_close(env);
}

static void test_formats(void) {
    mw_link l = {0};
    CHECK(mkdir(folder, 0777) == 0);
    put_row("somebody", "x", 1, "y", 1);
    refuse(folder, "another program's data");
    fresh_folder();
    mw_conn *c = open_store(&l);
    D->close(c);
    uint32_t newer = 99;
    put_row("meta", "format", 6, &newer, sizeof newer);
    refuse(folder, "newer Moonwire");
    put_row("meta", "format", 6, "?", 1);
    refuse(folder, "format number");
    put_row("meta", "magic", 5, "wrong", 5);
    refuse(folder, "not a Moonwire store");
}

/* A store as format 1 left it, with a large message in one row: it is read, and from then on has format 2. */
static void test_format_1(void) {
    enum { LARGE = 100000 };
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    mw_source *s = subscribe(c, "work");
    run_for(50);
    send_many(c, &l, "work", 3, 3);
    unsubscribe(s);
    D->close(c);
    char *body = malloc(LARGE), *row = malloc(LARGE + 200);
    memset(body, '5', LARGE);
    mw_parts p = {.body = body, .body_len = LARGE, .priority = 4};
    mwe_record r = mwe_record_of(&p, 1, 0);
    mwe_record_write(row, &p, &r);
    mwe_key k;
    mwe_key_message(&k, 1, 2);
    put_row("messages", k.bytes, 12, row, mwe_record_size(&r));
    put_row("meta", "format", 6, &(uint32_t){1}, 4);
    c = open_store(&l);
    s = subscribe(c, "work");
    CHECK(send_one(c, &l, (letter){"work", NULL, body, .size = LARGE}).code == 0);
    RUN_UNTIL(s->count == 4, 5000);
    CHECK(s->got[1].size == LARGE && s->got[1].hash == mw_hash64(body, LARGE) && s->got[3].size == LARGE);
    consume_all(s, 4, 5000);
    unsubscribe(s);
    D->close(c);
    char path[512];
    MDB_env *env;
    MDB_txn *txn;
    MDB_dbi meta;
    MDB_val key = {6, "format"}, value;
    snprintf(path, sizeof path, "%s/moonwire.mdb", folder);
    CHECK(mdb_env_create(&env) == 0 && mdb_env_set_maxdbs(env, 20) == 0);
    CHECK(mdb_env_open(env, path, MDB_NOSUBDIR, 0666) == 0 &&
          mdb_txn_begin(env, NULL, MDB_RDONLY, &txn) == 0);
    CHECK(mdb_dbi_open(txn, "meta", 0, &meta) == 0 && mdb_get(txn, meta, &key, &value) == 0);
    uint32_t format = 0;
    CHECK(mwe_read_row(&value, &format, sizeof format) && format == 2);
    mdb_txn_abort(txn);
    mdb_env_close(env);
    free(body);
    free(row);
}

/* A piece is gone, one is too long, one belongs to nothing: such a message is passed by, the others flow. */
static void test_bad_pieces(void) {
    enum { LARGE = 50000 };
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    char *body = malloc(LARGE);
    memset(body, '5', LARGE);
    for (int i = 0; i < 4; i++) send_one(c, &l, (letter){"work", NULL, body, .size = LARGE});
    D->close(c);
    mwe_key k;
    mwe_key_piece(&k, 1, 1, 3);
    put_row("pieces", k.bytes, MWE_PIECE_KEY, "", 0);
    mwe_key_piece(&k, 1, 2, 12);
    put_row("pieces", k.bytes, MWE_PIECE_KEY, body, 4064);
    mwe_key_piece(&k, 1, 3, 2);
    k.bytes[MWE_PIECE_KEY] = 0;
    put_row("pieces", k.bytes, MWE_PIECE_KEY + 1, body, 10);
    mwe_key_piece(&k, 9, 1, 1);
    put_row("pieces", k.bytes, MWE_PIECE_KEY, body, 10);
    c = open_store(&l);
    mw_source *s = subscribe(c, "work");
    RUN_UNTIL(s->count == 1, 5000);
    run_for(100);
    CHECK(s->count == 1 && s->got[0].tag == 4 && s->got[0].hash == mw_hash64(body, LARGE), "%zu", s->count);
    browse(c, &l, 0);
    CHECK(l.entries == 1 && l.last == 4);
    consume_all(s, 1, 5000);
    remove_from(c, &l, "work", (uint64_t[]){1, 2, 3}, 3);
    free(body);
    unsubscribe(s);
    D->close(c);
}

/* Rows of wrong sizes everywhere: nothing may crash, sound messages still flow. */
static void test_garbage_rows(void) {
    static const char *const tables[] = {"messages", "pieces", "ready",     "due",
                                         "parked",   "owners", "consumers", "marks"};
    mw_link l = {0};
    mw_conn *c = open_store(&l);
    mw_source *s = subscribe(c, "work");
    send_many(c, &l, "work", 10, 2);
    RUN_UNTIL(s->count == 10, 1000);
    unsubscribe(s);
    D->close(c);
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (size_t len = 9; len <= 26; len++)
            put_row(tables[i], "\0\0\0\1\0\0\0\1\5abcdefghijklmnopq", len, "x", len % 3);
    put_row("channels", "bad", 3, "x", 1);
    c = open_store(&l);
    s = subscribe(c, "work");
    RUN_UNTIL(s->count == 10, 1000);
    browse(c, &l, 0);
    CHECK(send_one(c, &l, (letter){"bad", NULL, "1"}).code == MW_EFORMAT);
    CHECK(send_one(c, &l, (letter){"work", NULL, "1"}).code == 0);
    mw_error e = {0};
    CHECK(D->declare(c, "bad", &(mw_channel_options){.retain_count = 3}, &e) == 0);
    mw_source *bad = subscribe(c, "bad");
    RUN_UNTIL(l.state_calls > 0, 1000);
    unsubscribe(bad);
    unsubscribe(s);
    D->close(c);
}

/* ---- all of them ---- */

static const test_case CASES[] = {
    {"pieces", test_pieces},
    {"full", test_full},
    {"freed at last", test_freed_at_last},
    {"scattered", test_scattered},
    {"swap", test_swap},
    {"churn", test_churn},
    {"full disk", test_full_disk, true},
    {"folders", test_folders, true},
    {"truncated", test_truncated, true},
    {"damaged pages", test_damaged_pages, true},
    {"damaged bytes", test_damaged_bytes, true},
    {"formats", test_formats, true},
    {"format 1", test_format_1},
    {"bad pieces", test_bad_pieces, true},
    {"garbage rows", test_garbage_rows, true},
};

int main(int argc, char **argv) {
    loop = mw_loop_new();
    run_cases(CASES, sizeof CASES / sizeof *CASES, argc > 1 ? argv[1] : NULL);
    mw_text_cache_clear();
    mw_loop_free(loop);
    return 0;
}
