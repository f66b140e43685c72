--- The C functions of runtime/base and runtime/core that Lua code has no use for, declared for the specs. busted
--- empties package.loaded
--- between files, and a struct can be declared once in the life of a process: so it is looked up first.
local ffi = require "ffi"
local C = require "moonwire.internal.cdef"

if not pcall(ffi.typeof, "struct spec_url") then
  ffi.cdef [[
    uint64_t mw_hash64(const void *data, size_t len);
    const char *mw_nearest(const char *word, const char *const *list);
    int64_t mw_backoff_delay(const mw_backoff *b, uint32_t attempt, double random01);

    struct spec_option { char *name, *value; };
    struct spec_url { /* the layout of mw_url */
      char *scheme, *user, *password, *hosts, *path;
      struct spec_option options[32];
      int option_count;
      char *space;
    };
    int mw_url_parse(struct spec_url *u, const char *text, mw_failure *e);
    void mw_url_free(struct spec_url *u);
    char *mw_url_shown(const char *url);
    void mwt_free(void *p) __asm__("free");
    const char *mw_url_option(const struct spec_url *u, const char *name);
    int mw_url_size(const struct spec_url *u, const char *name, uint64_t min, uint64_t max, uint64_t *out,
      mw_failure *e);
    int mw_url_number(const struct spec_url *u, const char *name, int64_t min, int64_t max, int64_t *out,
      mw_failure *e);
    int mw_url_only(const struct spec_url *u, const char *const *known, mw_failure *e);

    int mw_message_check(const mw_parts *p, mw_failure *e);
    size_t mw_message_size(const struct mw_message *m);
    struct mw_message *mw_message_borrow(const mw_parts *p, void (*release)(void *owner), void *owner);
    struct spec_unread { /* the layout of mw_unread */
      size_t size;
      struct mw_message *(*read)(void *owner);
      void (*release)(void *owner);
    };
    struct mw_message *mw_message_new_unread(const mw_parts *p, const struct spec_unread *kind, void **owner);
    void mw_message_read(const struct mw_message *m);
    bool mw_headers_valid(const char *block, size_t len);
    bool mw_headers_find(const char *block, size_t len, const char *name, mw_header_view *out);

    void mw_dict_clear_all(void);
  ]]
end

return C
