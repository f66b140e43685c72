#include "lua/dict.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

typedef struct entry entry;
struct entry {
    entry *next; /* keys with the same hash */
    int64_t expires;
    int kind;
    double number;
    char *text;
    size_t text_len, len;
    char key[];
};

struct mw_dict {
    mw_dict *next;
    mw_map entries;
    uint32_t count;
    char name[];
};

static mw_dict *dicts;

mw_dict *mw_dict_named(const char *name) {
    mw_dict *d = dicts;
    while (d && strcmp(d->name, name) != 0) d = d->next;
    if (d) return d;
    if (!(d = calloc(1, sizeof *d + strlen(name) + 1))) abort();
    strcpy(d->name, name);
    d->next = dicts;
    return dicts = d;
}

static void free_entry(entry *e) {
    free(e->text);
    free(e);
}

void mw_dict_clear_all(void) {
    for (mw_dict *d; (d = dicts);) {
        dicts = d->next;
        uint32_t at = 0;
        for (entry *e; (e = mw_map_next(&d->entries, &at, NULL));)
            for (entry *next; e; e = next) {
                next = e->next;
                free_entry(e);
            }
        mw_map_free(&d->entries);
        free(d);
    }
}

static entry *find(const mw_dict *d, const char *key, size_t len) {
    entry *e = mw_map_get(&d->entries, mw_hash64(key, len));
    while (e && (e->len != len || memcmp(e->key, key, len) != 0)) e = e->next;
    return e;
}

static entry *put(mw_dict *d, const char *key, size_t len, int kind, int64_t expires) {
    entry *e = find(d, key, len);
    if (!e) {
        if (!(e = calloc(1, sizeof *e + len))) abort();
        e->len = len;
        memcpy(e->key, key, len);
        uint64_t hash = mw_hash64(key, len);
        e->next = mw_map_get(&d->entries, hash);
        mw_map_put(&d->entries, hash, e);
        d->count++;
    }
    free(e->text);
    e->text = NULL;
    e->kind = kind;
    e->expires = expires;
    return e;
}

void mw_dict_set_number(mw_dict *d, const char *key, size_t len, double value, int64_t expires_ms) {
    put(d, key, len, 'n', expires_ms)->number = value;
}

void mw_dict_set_bool(mw_dict *d, const char *key, size_t len, bool value, int64_t expires_ms) {
    put(d, key, len, 'b', expires_ms)->number = value;
}

void mw_dict_set_string(mw_dict *d, const char *key, size_t len, const char *value, size_t value_len,
                        int64_t expires_ms) {
    char *copy = malloc(value_len + 1);
    if (!copy) abort();
    memcpy(copy, value, value_len);
    entry *e = put(d, key, len, 's', expires_ms);
    e->text = copy;
    e->text_len = value_len;
}

static entry *live(mw_dict *d, const char *key, size_t len, int64_t now_ms) {
    entry *e = find(d, key, len);
    if (!e || !e->expires || e->expires > now_ms) return e;
    mw_dict_remove(d, key, len);
    return NULL;
}

double mw_dict_add(mw_dict *d, const char *key, size_t len, double by, double start, int64_t now_ms) {
    entry *e = live(d, key, len, now_ms);
    if (!e || e->kind != 'n') {
        e = put(d, key, len, 'n', 0);
        e->number = start;
    }
    return e->number += by;
}

bool mw_dict_remove(mw_dict *d, const char *key, size_t len) {
    entry *e = find(d, key, len);
    if (!e) return false;
    uint64_t hash = mw_hash64(key, len);
    entry *head = mw_map_get(&d->entries, hash);
    if (head == e) {
        if (e->next)
            mw_map_put(&d->entries, hash, e->next);
        else
            mw_map_remove(&d->entries, hash);
    } else {
        while (head->next != e) head = head->next;
        head->next = e->next;
    }
    free_entry(e);
    d->count--;
    return true;
}

void mw_dict_sweep(mw_dict *d, int64_t now_ms) {
    uint32_t at = 0;
    for (entry *e; (e = mw_map_next(&d->entries, &at, NULL));)
        if (e->expires && e->expires <= now_ms) {
            mw_dict_remove(d, e->key, e->len);
            at--; /* the removal may have moved another entry into this place */
        }
}

uint32_t mw_dict_count(const mw_dict *d) { return d->count; }

int mw_dict_get(mw_dict *d, const char *key, size_t len, int64_t now_ms, double *number, const char **text,
                size_t *text_len) {
    entry *e = live(d, key, len, now_ms);
    if (!e) return 0;
    *number = e->number;
    *text = e->text;
    *text_len = e->text_len;
    return e->kind;
}

/* *at counts map slots; keys that share a hash are all but impossible, so only the first of them is shown. */
bool mw_dict_next(mw_dict *d, uint32_t *at, const char **key, size_t *len) {
    entry *e = mw_map_next(&d->entries, at, NULL);
    if (!e) return false;
    *key = e->key;
    *len = e->len;
    return true;
}
