/* failing_disk.c - preloaded into a process: while the file named by FAILING_DISK exists, small writes to a
 * place in a file fail, as on a disk with a bad spot. LMDB writes the head of its file so. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

enum { LEAST = 17, MOST = 200 }; /* bytes: not the pages, and not our own eight */

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    static ssize_t (*real)(int, const void *, size_t, off_t);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pwrite");
    const char *sign = getenv("FAILING_DISK");
    if (sign && size >= LEAST && size <= MOST && access(sign, F_OK) == 0) {
        errno = EIO;
        return -1;
    }
    return real(fd, data, size, at);
}
