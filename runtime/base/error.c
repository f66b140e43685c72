#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>

int mw_fail(mw_error *e, int code, bool retryable, const char *format, ...) {
    if (!e) return -1;
    e->code = code;
    e->retryable = retryable;
    va_list args;
    va_start(args, format);
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    return -1;
}
