/* marks_fuzz.c - libFuzzer target for the metadata of Kafka commits, which anybody may have written. Whatever
 * it is: it is refused, or it can be used, and what is written of it again says the same of every offset. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drivers/kafka/consume/marks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MARK = 1000, NEAR = 300, ROOM = 4096 };

static void die(const char *what) {
    fprintf(stderr, "marks: %s\n", what);
    abort();
}

static kafka_marks *read_alone(const uint8_t *data, size_t size) { /* where ASan sees a byte too many */
    char *text = malloc(size ? size : 1);
    if (!text) abort();
    memcpy(text, data, size);
    kafka_marks *m = kafka_marks_new(MARK);
    if (!kafka_marks_read(m, text, size)) {
        kafka_marks_free(m);
        m = NULL;
    }
    free(text);
    return m;
}

static void add_all(kafka_marks *m, bool *done, uint32_t *attempts) {
    for (uint64_t i = 0; i < NEAR; i++) {
        kafka_past past = {0};
        kafka_added added = kafka_marks_add(m, MARK + i, &past);
        if (added == KAFKA_OLD) die("an offset above the mark counts as old");
        done[i] = added == KAFKA_DONE_BEFORE;
        attempts[i] = past.attempts;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kafka_marks *m = read_alone(data, size);
    if (!m) return 0;
    mw_buf text = {0};
    bool crowded = false, first[NEAR], second[NEAR];
    uint32_t tries[NEAR], again[NEAR];
    kafka_left_out left_out = kafka_marks_write(m, 0, ROOM, &text, &crowded);
    if (text.len > ROOM) die("written beyond the limit");
    add_all(m, first, tries);
    kafka_marks_free(m);
    if (left_out <= KAFKA_NO_TIMES) {
        m = kafka_marks_new(MARK);
        if (text.len && !kafka_marks_read(m, text.data, text.len)) die("what was written cannot be read");
        add_all(m, second, again);
        kafka_marks_free(m);
        if (memcmp(first, second, sizeof first) != 0) die("done is not what it was");
        if (memcmp(tries, again, sizeof tries) != 0) die("attempts are not what they were");
    }
    mw_buf_free(&text);
    return 0;
}
