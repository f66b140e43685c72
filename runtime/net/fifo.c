#include "net/fifo.h"

#include <stdlib.h>
#include <string.h>

static void move(mw_fifo *f, size_t capacity) {
    size_t size = mw_fifo_size(f);
    char *data = malloc(capacity);
    if (!data) abort();
    if (size) memcpy(data, f->data + f->at, size);
    free(f->data);
    *f = (mw_fifo){.data = data, .end = size, .capacity = capacity, .peak = f->peak};
}

char *mw_fifo_reserve(mw_fifo *f, size_t room) {
    size_t size = mw_fifo_size(f);
    if (f->capacity - f->end >= room) return f->data + f->end;
    if (f->capacity - size >= room) {
        memmove(f->data, f->data + f->at, size);
        f->at = 0;
        f->end = size;
        return f->data + f->end;
    }
    size_t capacity = f->capacity * 2;
    if (capacity < MW_FIFO_LEAST) capacity = MW_FIFO_LEAST;
    if (capacity < size + room) capacity = size + room;
    move(f, capacity);
    return f->data + f->end;
}

void mw_fifo_filled(mw_fifo *f, size_t len) {
    if (len > f->capacity - f->end) abort();
    f->end += len;
    if (mw_fifo_size(f) > f->peak) f->peak = mw_fifo_size(f);
}

void mw_fifo_taken(mw_fifo *f, size_t len) {
    if (len > mw_fifo_size(f)) abort();
    f->at += len;
    if (f->at == f->end) f->at = f->end = 0;
}

void mw_fifo_trim(mw_fifo *f) {
    size_t capacity = MW_FIFO_LEAST;
    if (f->peak < mw_fifo_size(f)) f->peak = mw_fifo_size(f);
    while (capacity < f->peak) capacity *= 2;
    if (capacity < f->capacity) move(f, capacity);
    f->peak = 0;
}

void mw_fifo_free(mw_fifo *f) {
    free(f->data);
    *f = (mw_fifo){0};
}
