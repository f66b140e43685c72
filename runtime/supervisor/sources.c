#include "supervisor/sources.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ABOVE = 10 };

static int copy(int from, int to) {
    char piece[64 * 1024];
    for (off_t at = 0;;) {
        ssize_t n = pread(from, piece, sizeof piece, at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return (int)n;
        for (ssize_t done = 0; done < n;) {
            ssize_t wrote = pwrite(to, piece + done, (size_t)(n - done), at + done);
            if (wrote < 0 && errno != EINTR) return -1;
            if (wrote > 0) done += wrote;
        }
        at += n;
    }
}

int mw_sources_new(int from) {
    int fd = memfd_create("sources", MFD_CLOEXEC);
    if (fd < 0) return -1;
    int high = fcntl(fd, F_DUPFD_CLOEXEC, ABOVE);
    close(fd);
    if (high >= 0 && from >= 0 && copy(from, high)) mw_sources_free(&high);
    return high;
}

void mw_sources_free(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}
