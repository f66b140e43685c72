#include "base/uuid.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/random.h>
#include <time.h>

static unsigned left;
static void forked(void) { left = 0; } /* a child must not draw its parent's numbers */

uint64_t mw_random64(void) {
    static uint64_t pool[64];
    static bool watching;
    if (!left) {
        if (!watching) watching = pthread_atfork(NULL, NULL, forked) == 0;
        for (size_t got = 0; got < sizeof pool;) {
            ssize_t n = getrandom((char *)pool + got, sizeof pool - got, 0);
            if (n < 0 && errno != EINTR) abort();
            if (n > 0) got += (size_t)n;
        }
        left = sizeof pool / sizeof *pool;
    }
    return pool[--left];
}

void mw_uuid(char out[MW_UUID_TEXT]) {
    static const char hex[] = "0123456789abcdef";
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t ms = (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
    uint64_t high = ms << 16 | 0x7000 | (mw_random64() & 0x0fff);
    uint64_t low = (mw_random64() & 0x3fffffffffffffffu) | 0x8000000000000000u;
    for (int i = 0, at = 0; i < 32; i++) {
        if (i == 8 || i == 12 || i == 16 || i == 20) out[at++] = '-';
        uint64_t word = i < 16 ? high : low;
        out[at++] = hex[(word >> (60 - 4 * (i % 16))) & 15];
    }
    out[36] = 0;
}
