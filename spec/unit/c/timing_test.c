/* timing_test.c - handler times and rates against models: quantiles within an eighth, the past forgotten. */
#include <math.h>
#include <stdlib.h>

#include "core/shared/timing.h"
#include "check.h"

static mw_timing timing;

static int by_size(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void near_(double expected, double got, double part) {
    CHECK(fabs(got - expected) <= expected * part + 3e-7, "%g, expected %g", got, expected);
}

static void quantiles(void) {
    enum { N = 5000 };
    static uint64_t times[N];
    for (int round = 0; round < 30; round++) {
        memset(&timing, 0, sizeof timing);
        for (int i = 0; i < N; i++) {
            times[i] = rnd((uint64_t)1 << (8 + rnd(32))); /* from nothing to 18 minutes */
            mw_timing_add(&timing, 1000000, times[i], 1);
        }
        qsort(times, N, sizeof *times, by_size);
        static const double qs[] = {0.1, 0.5, 0.9, 0.99};
        for (int i = 0; i < 4; i++)
            near_((double)times[(int)(qs[i] * N)] / 1e9, mw_timing_quantile(&timing, 1000000, qs[i]), 0.15);
    }
}

static void single_values(void) {
    for (uint64_t ns = 0; ns < (uint64_t)1 << 41; ns = ns * 5 / 4 + 1) {
        memset(&timing, 0, sizeof timing);
        mw_timing_add(&timing, 5, ns, 3);
        near_((double)ns / 1e9, mw_timing_quantile(&timing, 5, 0.5), 0.125);
    }
    mw_timing_add(&timing, 5, UINT64_MAX, 1); /* beyond all measure: the last bucket */
    CHECK(mw_timing_quantile(&timing, 5, 1) > 3600, "an hour at least");
}

static void weights(void) {
    memset(&timing, 0, sizeof timing);
    mw_timing_add(&timing, 5, 1000, 98);
    mw_timing_add(&timing, 5, 1000000000, 2);
    near_(1e-6, mw_timing_quantile(&timing, 5, 0.5), 0.3);
    near_(1, mw_timing_quantile(&timing, 5, 0.99), 0.125);
}

static void forgets(void) {
    uint64_t now = 10 * MW_TIMING_HALF_MS;
    memset(&timing, 0, sizeof timing);
    CHECK(mw_timing_quantile(&timing, now, 0.5) == -1, "nothing yet");
    mw_timing_add(&timing, now, 20000000, 1);
    near_(0.02, mw_timing_quantile(&timing, now + MW_TIMING_HALF_MS, 0.5), 0.125);
    mw_timing_add(&timing, now + MW_TIMING_HALF_MS, 1000000, 9);
    near_(0.02, mw_timing_quantile(&timing, now + MW_TIMING_HALF_MS, 0.99), 0.125);
    near_(0.001, mw_timing_quantile(&timing, now + 2 * MW_TIMING_HALF_MS, 0.99), 0.125);
    near_(0.001, mw_timing_quantile(&timing, now, 0.99), 0.125); /* a clock that lags forgets nothing */
    CHECK(mw_timing_quantile(&timing, now + 3 * MW_TIMING_HALF_MS, 0.5) == -1, "all forgotten");
    mw_timing_add(&timing, now + 4 * MW_TIMING_HALF_MS, 1000000, 9);
    CHECK(mw_timing_quantile(&timing, now + 90 * MW_TIMING_HALF_MS, 0.5) == -1, "after a long sleep too");
}

static void rate(void) {
    mw_rate r = {0};
    uint64_t total = 0, now = 123456;
    CHECK(mw_rate_per_second(&r, now, 0) == 0, "nothing yet");
    for (int i = 0; i < 3000; i++, now += 10) mw_rate_note(&r, now, total += 5);
    near_(500, mw_rate_per_second(&r, now, total), 0.02);
    near_(250, mw_rate_per_second(&r, now + 5000, total), 0.03);
    CHECK(mw_rate_per_second(&r, now + 11000, total) == 0, "ten quiet seconds");
    now += 100000;
    near_(2, mw_rate_per_second(&r, now, total + 20), 0.001); /* a burst after a pause */
    mw_rate_note(&r, now + 20000, total);                     /* fewer than before */
    CHECK(mw_rate_per_second(&r, now + 20000, total) == 0, "never negative");
    mw_rate young = {0};
    mw_rate_note(&young, 1000, 0);
    near_(100, mw_rate_per_second(&young, 3000, 200), 0.01); /* over the two seconds of its life */
}

int main(int argc, char **argv) {
    static const test tests[] = {{"quantiles", quantiles}, {"single_values", single_values},
                                 {"weights", weights},     {"forgets", forgets},
                                 {"rate", rate},           {NULL, NULL}};
    return run_tests(tests, argc, argv);
}
