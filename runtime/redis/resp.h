/* resp.h - the RESP2 protocol. Reading: an incremental parser over bytes that stay where they were received.
 * It hands out units: whole replies, or, for replies that are long lists, the elements at a chosen depth one
 * by one, so that a list of large messages needs room for one of them. What was seen is not looked at again;
 * a unit points into the received bytes and is valid during its call. Writing: commands as arrays of bulk
 * strings. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

enum {
    MWR_DEPTH = 8,              /* arrays inside of arrays */
    MWR_NODES_MAX = 1 << 20,    /* values in one unit */
    MWR_ELEMENTS_MAX = 1 << 24, /* of one array */
    MWR_LINE_MAX = 64 << 10,    /* a status, an error, a number */
};
#define MWR_BULK_MAX ((int64_t)1 << 30)

typedef enum { MWR_STATUS, MWR_ERROR, MWR_INTEGER, MWR_BULK, MWR_NIL, MWR_ARRAY } mwr_type;

typedef struct mwr_node { /* values of a unit, parents before children, children in order */
    mwr_type type;
    uint32_t count;  /* ARRAY: elements */
    uint32_t span;   /* nodes that it takes, its descendants included */
    size_t at, len;  /* STATUS, ERROR, BULK: where the text is */
    int64_t integer; /* INTEGER */
} mwr_node;

typedef struct mwr_unit {
    const mwr_node *node; /* the root */
    const char *base;
} mwr_unit;

typedef struct mwr_parser {
    /* Called with each unit. `more`: the reply has not ended with it. A reply whose list is empty, or that
     * ends above the chosen depth, comes as one unit: a nil or an array of no elements. */
    void (*unit)(void *owner, const mwr_unit *u, bool more);
    int (*depth)(void *owner); /* how deep the units of the next reply lie; 0: the reply itself */
    void *owner;

    size_t at;                /* parsed so far, from the first byte that is not consumed */
    int unit_depth;           /* of this reply; -1: no reply has begun */
    int above;                /* arrays entered above the units */
    uint32_t left[MWR_DEPTH]; /* elements to come in each of them */
    mwr_node *nodes;
    uint32_t count, capacity;
    uint32_t open[MWR_DEPTH], open_left[MWR_DEPTH]; /* arrays of the unit that are not complete */
    int open_count;
    bool gave; /* this reply has had a unit */
    bool stop; /* set by the owner inside `unit`: hand out no more */
} mwr_parser;

/* Returns how many bytes were consumed, and sets *need as mw_stream_events.input wants it; -1 with e:
 * nonsense. */
int64_t mwr_parse(mwr_parser *p, const char *data, size_t len, size_t *need, mw_error *e);
void mwr_parser_reset(mwr_parser *p); /* for a new connection */
void mwr_parser_free(mwr_parser *p);

/* The i-th element of an array; NULL when there is none. */
const mwr_node *mwr_child(const mwr_node *array, uint32_t i);
/* The text of a status, error or bulk; "" with *len 0 for anything else. */
const char *mwr_text(const mwr_unit *u, const mwr_node *n, size_t *len);
int64_t mwr_number(const mwr_unit *u, const mwr_node *n); /* an integer, or a text that is one; 0 otherwise */
bool mwr_is(const mwr_unit *u, const mwr_node *n, const char *text);

void mwr_write_array(mw_buf *out, size_t count);
void mwr_write(mw_buf *out, const void *data, size_t len);
void mwr_write_text(mw_buf *out, const char *text);
void mwr_write_number(mw_buf *out, int64_t number);
size_t mwr_print_number(char *out, uint64_t number); /* at most 20 digits; how many */
