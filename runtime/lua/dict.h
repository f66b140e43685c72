/* dict.h - a dictionary from strings to numbers, booleans or strings that outlives reloads: what mw.shared
 * and mw.metrics keep their values in. Loop thread only; also called through FFI. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct mw_dict mw_dict;

mw_dict *mw_dict_named(
    const char *name); /* one per process and name, made on first use, never freed before mw_dict_clear_all */
void mw_dict_clear_all(void);

/* expires_ms: 0 = never, otherwise on the caller's clock; now_ms is that clock. */
void mw_dict_set_number(mw_dict *d, const char *key, size_t len, double value, int64_t expires_ms);
void mw_dict_set_bool(mw_dict *d, const char *key, size_t len, bool value, int64_t expires_ms);
void mw_dict_set_string(mw_dict *d, const char *key, size_t len, const char *value, size_t value_len,
                        int64_t expires_ms);
double mw_dict_add(mw_dict *d, const char *key, size_t len, double by, double start, int64_t now_ms);
bool mw_dict_remove(mw_dict *d, const char *key, size_t len);
uint32_t mw_dict_count(const mw_dict *d);
void mw_dict_sweep(mw_dict *d, int64_t now_ms); /* removes what has expired */

/* The kind: 0 absent or expired, 'n' number, 'b' boolean (in *number), 's' string. */
int mw_dict_get(mw_dict *d, const char *key, size_t len, int64_t now_ms, double *number, const char **text,
                size_t *text_len);
/* Walks: *at starts at 0; false at the end. */
bool mw_dict_next(mw_dict *d, uint32_t *at, const char **key, size_t *len);
