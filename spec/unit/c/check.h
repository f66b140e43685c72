/* check.h - what the C test programs share: checks that count and go on, a seeded generator, and a main that
 * runs a table of tests, all of them or those named on the command line. */
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static int failures, checks;
static const char *test_name = "";

#define CHECK(ok, ...)                                                                                       \
    do {                                                                                                     \
        checks++;                                                                                            \
        if (!(ok)) {                                                                                         \
            if (failures++ > 50) break;                                                                      \
            fprintf(stderr, "%s:%d: %s: %s: ", __FILE__, __LINE__, test_name, #ok);                          \
            fprintf(stderr, " " __VA_ARGS__);                                                                \
            fputc('\n', stderr);                                                                             \
        }                                                                                                    \
    } while (0)

/* Both sides are evaluated once and shown when they differ. */
#define EQUAL(expected, got)                                                                                 \
    do {                                                                                                     \
        long long want_ = (long long)(expected), have_ = (long long)(got);                                   \
        CHECK(want_ == have_, "%s is %lld, expected %lld", #got, have_, want_);                              \
    } while (0)

static uint64_t seed;
static inline uint64_t rnd(uint64_t below) { /* splitmix64: the same numbers in every run */
    uint64_t z = seed += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

typedef struct test {
    const char *name;
    void (*run)(void);
} test;

static inline int run_tests(const test *tests, int argc, char **argv) {
    for (; tests->name; tests++) {
        int wanted = argc < 2;
        for (int i = 1; i < argc; i++) wanted |= strcmp(argv[i], tests->name) == 0;
        if (!wanted) continue;
        test_name = tests->name;
        seed = 42;
        tests->run();
    }
    printf("%d checks, %d failures\n", checks, failures);
    return failures || !checks;
}
