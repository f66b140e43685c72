/* lock.c - room on the disk for LMDB's lock table. LMDB makes it by a bare ftruncate and writes to it through a
 * mapping: on a full disk that is a SIGBUS. So its room is taken first. Other processes may be using the
 * table, hence the plain system call: it changes no byte of it. Nothing of this process has the file open,
 * whose locks our close would end. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "drivers/embedded/store/store.h"

int mwe_lock_room(const char *file, unsigned readers, mw_error *e) {
    off_t size = ((off_t)readers + 2) * 64; /* as LMDB reckons it: a cache line for each reader, two more */
    char *lock;
    if (asprintf(&lock, "%s-lock", file) < 0) abort();
    int fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    struct stat st;
    bool failed = fd < 0 || fstat(fd, &st) < 0;
    if (!failed && fallocate(fd, 0, 0, st.st_size > size ? st.st_size : size) < 0)
        failed = errno == ENOSPC || errno == EDQUOT; /* other disks cannot take room ahead */
    int rc = failed ? mw_fail(e, errno, false, "cannot open %s: %s", lock, strerror(errno)) : 0;
    if (fd >= 0) close(fd);
    free(lock);
    return rc;
}
