/* memory_records_test.c - dedupe records in memory against a model: keys are told apart whatever they hash
 * to, and what has expired takes no room. */
#include "drivers/memory/broker.h"
#include "check.h"

static mem_records records;

static mw_claim claim(const char *key, int64_t now, int64_t lease) {
    return mem_records_claim(&records, key, strlen(key), now, lease);
}

static void done(const char *key, int64_t expires) { mem_records_done(&records, key, strlen(key), expires); }

static void release(const char *key) { mem_records_release(&records, key, strlen(key)); }

static void life_of_a_claim(void) {
    EQUAL(MW_CLAIM_YOURS, claim("a", 0, 100));
    EQUAL(MW_CLAIM_BUSY, claim("a", 99, 100));
    EQUAL(MW_CLAIM_YOURS, claim("a", 100, 100)); /* the lease ran out */
    release("a");
    EQUAL(MW_CLAIM_YOURS, claim("a", 101, 100));
    done("a", 500);
    release("a"); /* what is done stays */
    EQUAL(MW_CLAIM_SEEN, claim("a", 499, 100));
    EQUAL(MW_CLAIM_YOURS, claim("a", 500, 100));
    done("b", 900); /* never claimed */
    EQUAL(MW_CLAIM_YOURS, claim("b", 600, 100));
    mem_records_free(&records);
}

/* Sixteen bytes whose second half is this fold to nothing: what came before them has no part in the hash. */
static const char ZERO[] = "12345678\xc9\xac\x2e\x96\x93\x4b\xb8\x8b";

static void same_hash(void) {
    char one[64], two[64], three[64];
    snprintf(one, sizeof one, "%s%s", "order-1000000000", ZERO);
    snprintf(two, sizeof two, "%s%s", "order-2000000000", ZERO);
    snprintf(three, sizeof three, "%s%s", "order-3000000000", ZERO);
    CHECK(mw_hash64(one, strlen(one)) == mw_hash64(two, strlen(two)), "the test has lost its point");
    EQUAL(MW_CLAIM_YOURS, claim(one, 0, 100));
    done(one, 1000);
    EQUAL(MW_CLAIM_YOURS, claim(two, 0, 100));
    EQUAL(MW_CLAIM_YOURS, claim(three, 0, 100));
    release(two);
    EQUAL(MW_CLAIM_SEEN, claim(one, 0, 100));
    EQUAL(MW_CLAIM_BUSY, claim(three, 0, 100));
    EQUAL(MW_CLAIM_YOURS, claim(two, 0, 100));
    mem_records_free(&records);
}

static void what_expired_goes(void) {
    char key[32];
    uint32_t most = 0;
    for (int i = 0; i < 200000; i++) { /* one a millisecond, each remembered for a second */
        snprintf(key, sizeof key, "message-%d", i);
        EQUAL(MW_CLAIM_YOURS, claim(key, i, 50));
        done(key, i + 1000);
        if (i > 500) {
            snprintf(key, sizeof key, "message-%d", i - 500);
            EQUAL(MW_CLAIM_SEEN, claim(key, i, 50));
        }
        if (records.by_hash.count > most) most = records.by_hash.count;
    }
    CHECK(most < 3000, "%u records for 1000 that are remembered", most);
    mem_records_free(&records);
}

int main(int argc, char **argv) {
    static const test tests[] = {{"life_of_a_claim", life_of_a_claim},
                                 {"same_hash", same_hash},
                                 {"what_expired_goes", what_expired_goes},
                                 {NULL, NULL}};
    return run_tests(tests, argc, argv);
}
