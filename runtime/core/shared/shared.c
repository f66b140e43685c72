#include "core/shared/shared.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint64_t MAGIC = 0x3272656764656c77;

static size_t size_for(uint32_t slots) { return sizeof(mw_shared) + slots * sizeof(mw_shared_slot); }

/* ---- the supervisor's side ---- */

mw_shared *mw_shared_new(uint32_t slots, int *fd, mw_error *e) {
    mw_shared *s = MAP_FAILED;
    *fd = memfd_create("moonwire", MFD_CLOEXEC);
    if (*fd >= 0 && ftruncate(*fd, (off_t)size_for(slots)) == 0)
        s = mmap(NULL, size_for(slots), PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (s == MAP_FAILED) {
        mw_fail(e, errno, false, "shared memory for %u workers: %s", slots, strerror(errno));
        if (*fd >= 0) close(*fd);
        *fd = -1;
        return NULL;
    }
    s->magic = MAGIC;
    s->slots = slots;
    s->generation = 1;
    return s;
}

const char *mw_begun_pipeline(const mw_shared *s, uint32_t slot, const mw_begun *who, size_t *len) {
    uint16_t tally = who->tally;
    if (tally >= MW_TALLIES) return NULL;
    const char *name = s->slot[slot].tallies[tally].name;
    *len = strnlen(name, MW_TALLY_TEXT);
    return name;
}

void mw_shared_free(mw_shared *s) {
    if (s) munmap(s, size_for(s->slots));
}

/* ---- a worker's side ---- */

static mw_shared *all;
static uint32_t place;
static mw_pulse unread;
mw_pulse *mw_pulse_mine = &unread;

int mw_shared_attach(int fd, uint32_t slot, mw_error *e) {
    struct stat file;
    if (fstat(fd, &file) || (size_t)file.st_size < size_for(slot + 1))
        return mw_fail(e, MW_EUSAGE, false, "there is no supervisor's memory here");
    mw_shared *s = mmap(NULL, (size_t)file.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (s == MAP_FAILED) return mw_fail(e, errno, false, "the supervisor's memory: %s", strerror(errno));
    if (s->magic != MAGIC || slot >= s->slots) {
        munmap(s, (size_t)file.st_size);
        return mw_fail(e, MW_EFORMAT, false, "this is not the supervisor's memory");
    }
    all = s;
    place = slot;
    mw_pulse_mine = &s->slot[slot].pulse;
    return 0;
}

mw_shared *mw_shared_all(void) { return all; }
mw_shared_slot *mw_shared_mine(void) { return all ? &all->slot[place] : NULL; }
int mw_shared_place(void) { return all ? (int)place : -1; }
