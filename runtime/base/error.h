/* error.h - an error is a value: a code, "may I try again", and a text for people.
 * The caller owns the space; functions that fail return -1 (or NULL) and fill it. */
#pragma once
#include <stdbool.h>

enum { MW_ERROR_TEXT = 400 };

typedef struct mw_error {
    int code;       /* an errno, or one of MW_E* */
    bool retryable; /* the same call may succeed later */
    char text[MW_ERROR_TEXT];
} mw_error;

enum {
    MW_EUSAGE = 10001, /* the caller asked for something that cannot be */
    MW_EFENCED,        /* the delivery belongs to somebody else by now */
    MW_EFULL,          /* the store has no room left */
    MW_EFORMAT,        /* what was read is not what it should be */
    MW_ECLOSED,        /* the connection or source is going away */
    MW_EREFUSED,       /* what was to be published was refused, and nothing else is wrong */
};

enum { MW_EXIT_AGAIN = 75 }; /* a process that ends so that a fresh one can go on; no message is to blame */

/* Fills e (NULL is fine) and returns -1, so that callers can `return mw_fail(...)`. */
int mw_fail(mw_error *e, int code, bool retryable, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
