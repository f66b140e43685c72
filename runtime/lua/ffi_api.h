/* ffi_api.h - the C functions that the Lua library calls through LuaJIT's FFI. This file is compiled into the
 * binary as text and read by ffi.cdef after core/parts.h, core/backoff.h and core/spec.h, so it holds plain
 * declarations only. All are leaf calls: none of them calls back into Lua, none of them blocks. */
#pragma once
#include "core/parts.h"
#include "core/spec.h"

struct mw_vm;
struct mw_link;
struct mw_pipeline;
struct mw_delivery;
struct mw_message;
struct mw_dict;
struct mw_browsing;
struct mw_grouping;

/* ---- a delivery, as a handler sees it ---- */
struct mw_delivery *mw_pipeline_take(struct mw_pipeline *p);
uint32_t mw_pipeline_take_batch(struct mw_pipeline *p, struct mw_delivery **out, uint32_t max);
struct mw_delivery *mw_pipeline_unkeyed(struct mw_pipeline *p);
struct mw_delivery *mw_pipeline_expired(struct mw_pipeline *p, const void *owner);
bool mw_vm_retired(
    const struct mw_vm *vm); /* a newer generation takes the messages; what runs here may end */
void mw_pipeline_budget(struct mw_pipeline *p, uint32_t messages);
bool mw_pipeline_more(const struct mw_pipeline *p);
/* The time before the loop goes on. begin: a new one, if it was over. */
void mw_vm_slice(struct mw_vm *vm);
bool mw_slice_over(void);
void mw_delivery_no_lane(struct mw_delivery *d, const char *reason, size_t reason_len);
void mw_delivery_set_lane(struct mw_delivery *d, const char *key, size_t len, bool has_key);
bool mw_delivery_wait(struct mw_delivery *d);
/* A handler's own code runs between these: on its deadline, and within the memory limit. leave: its deadline
 * has passed, whatever it says; d may be NULL. */
void mw_vm_enter(struct mw_vm *vm, struct mw_delivery *d);
bool mw_vm_leave(struct mw_vm *vm, struct mw_delivery *d);
const char *mw_vm_broken_at(void); /* file:line where the last handler to leave was broken, or "" */
bool mw_vm_breaking(void); /* a handler is being broken: its errors are not for its coroutines to swallow */
/* Told on standard output when a handler that does not come back from a C call takes the process with it,
 * which then ends with that code: a head, all that was added to the report, and the last words. Copied. */
void mw_vm_last_words(const char *text, size_t len, int code);
void mw_vm_last_report(const char *head, size_t head_len, const char *more, size_t more_len);
void mw_vm_limits(struct mw_vm *vm, bool watched, double memory);
void mw_vm_read_memory(struct mw_vm *vm, double bytes); /* while a project is read into it; else nothing */
void mw_delivery_ack(struct mw_delivery *d);
void mw_delivery_retry(struct mw_delivery *d, int64_t after_ms, const char *class_name, const char *reason,
                       size_t len);
void mw_delivery_reject(struct mw_delivery *d, const char *class_name, const char *reason, size_t len);
void mw_delivery_drop(struct mw_delivery *d, const char *reason, size_t len);
void mw_delivery_duplicate(struct mw_delivery *d);
void mw_delivery_busy(struct mw_delivery *d);
uint32_t mw_delivery_attempt(const struct mw_delivery *d);
struct mw_message *mw_delivery_message(const struct mw_delivery *d);
void mw_delivery_parts(const struct mw_delivery *d, mw_parts *out); /* of its message */
void mw_delivery_known(const struct mw_delivery *d, mw_parts *out); /* likewise, see mw_message_known */
void mw_vm_claim(struct mw_vm *vm, struct mw_delivery *d, const char *key, size_t len, double waiter);

/* ---- messages ---- */
typedef struct mw_headers_out {
    char *data;
    size_t len, capacity;
} mw_headers_out; /* the layout of mw_headers */
typedef struct mw_header_view {
    const char *name, *value;
    size_t name_len, value_len;
} mw_header_view; /* the layout of mw_header */
typedef struct mw_failure {
    int code;
    bool retryable;
    char text[400];
} mw_failure; /* the layout of mw_error */

void mw_message_parts(const struct mw_message *m, mw_parts *out);
void mw_message_known(const struct mw_message *m, mw_parts *out);     /* body, key and time at least */
struct mw_message *mw_message_make(const mw_parts *p, mw_failure *e); /* checked; NULL: e says why */
/* A message of these parts, but with this body, that goes out with the delivery's ack. -1: e says why. */
int mw_delivery_attach(struct mw_delivery *d, struct mw_link *l, const char *channel, struct mw_message *m,
                       int64_t delay_ms, mw_failure *e);
int mw_delivery_send(struct mw_delivery *d, struct mw_link *l, const char *channel, const mw_parts *p,
                     const char *body, size_t len, int64_t delay_ms, mw_failure *e);
struct mw_message *mw_message_ref(struct mw_message *m);
void mw_message_unref(struct mw_message *m);
bool mw_ffi_headers_next(const char *block, size_t len, size_t *at, mw_header_view *out);
void mw_ffi_headers_add(mw_headers_out *h, const char *name, size_t name_len, const char *value,
                        size_t value_len);
void mw_ffi_headers_free(mw_headers_out *h);
uint64_t mw_message_lane(const struct mw_message *m);

/* ---- waiting: Lua arms, yields, and is resumed by a completion ---- */
typedef struct mw_completion {
    double waiter, value;
    void *object;
    const char *error; /* NULL, or why it failed: valid until the next mw_vm_completion */
    bool retryable;
} mw_completion;

bool mw_vm_completion(struct mw_vm *vm, mw_completion *out);
void mw_vm_sleep(struct mw_vm *vm, double waiter, double seconds);
void mw_vm_forget(struct mw_vm *vm, double waiter); /* nobody waits any more: a sleep is stopped */
void mw_vm_wake(struct mw_vm *vm);                  /* call the tick again after the poll */
double mw_vm_now(struct mw_vm *vm);                 /* seconds since 1970 */
double mw_vm_mono(struct mw_vm *vm);                /* monotonic seconds */

struct mw_http *mw_vm_http(struct mw_vm *vm); /* made on first use */
struct mw_redis *mw_vm_redis(struct mw_vm *vm, const char *url,
                             mw_failure *e); /* the same URL is the same one */
void mw_vm_publish(struct mw_vm *vm, struct mw_link *l, const char *channel, struct mw_message *m,
                   int64_t delay_ms, double waiter);

/* ---- connections and pipelines ---- */
struct mw_link *mw_vm_link(struct mw_vm *vm, const char *url,
                           mw_failure *e); /* checks the address only; the same url is the same link */
int mw_vm_link_open(struct mw_link *l, mw_failure *e);
unsigned mw_vm_link_can(struct mw_link *l);
void mw_vm_link_stand_for(struct mw_link *l, const char *scheme); /* specs: see core/link.h */
const char *mw_link_url(const struct mw_link *l);
const char *mw_link_absent(const struct mw_link *l);
bool mw_link_hopeless(const struct mw_link *l);
int mw_vm_declare(struct mw_link *l, const char *channel, int64_t retain_age_ms, double retain_count,
                  const mw_setting *settings, size_t setting_count, mw_failure *e);
/* Tokens of links whose driver takes them; NULL as token: there is none, `failure` says why. */
int mw_vm_token(struct mw_link *l, const char *token, const char *principal, double expires_ms,
                const char *const *extensions, size_t extension_count, const char *failure, mw_failure *e);
bool mw_vm_token_refused(struct mw_link *l);
bool mw_vm_current(const struct mw_vm *vm);      /* it is the generation that messages go to */
const char *mw_vm_driver_of(const char *scheme); /* its name; NULL: there is none */
int mw_vm_pipeline_check(const mw_pipeline_spec *spec, mw_failure *e);
struct mw_pipeline *mw_vm_pipeline(struct mw_vm *vm, const mw_pipeline_spec *spec, mw_failure *e);
void mw_pipeline_counters(const struct mw_pipeline *p, mw_counters *out);
uint32_t mw_pipeline_in_flight(const struct mw_pipeline *p);
uint32_t mw_pipeline_running(const struct mw_pipeline *p);
bool mw_pipeline_idle(struct mw_pipeline *p);

/* ---- looking into channels ---- */
void mw_vm_browse(struct mw_vm *vm, struct mw_link *l, const char *channel, const mw_position *after,
                  uint32_t max, bool newest, double waiter);
uint32_t mw_browsing_count(const struct mw_browsing *b);
void mw_browsing_last(const struct mw_browsing *b, mw_position *out);
struct mw_message *mw_browsing_entry(const struct mw_browsing *b, uint32_t i, mw_position *position,
                                     double *due_ms);
void mw_browsing_free(struct mw_browsing *b);
/* Publishes `messages` to `channels` and removes `positions`, in one step where the broker can. */
void mw_vm_remove(struct mw_vm *vm, struct mw_link *l, const char *channel, const mw_position *positions,
                  uint32_t count, const char **channels, struct mw_message **messages, uint32_t publish_count,
                  double waiter);
/* The groups of a channel, or of all when it is NULL. */
typedef struct mw_group_view {
    const char *channel, *group;
    double ready, delayed, parked, consumers;
} mw_group_view;
void mw_vm_groups(struct mw_vm *vm, struct mw_link *l, const char *channel, double waiter);
bool mw_grouping_at(const struct mw_grouping *g, uint32_t i, mw_group_view *out); /* false: no more */
void mw_grouping_free(struct mw_grouping *g);
void mw_vm_remove_group(struct mw_vm *vm, struct mw_link *l, const char *channel, const char *group,
                        bool force, double waiter);
bool mw_vm_release_key(struct mw_link *l, const char *channel, const char *group, uint64_t lane);

/* ---- topology: a request and its answer, both JSON (core/driver.h) ---- */
struct mw_answer;
bool mw_vm_topology(struct mw_vm *vm, struct mw_link *l, const char *request, size_t len,
                    double waiter); /* false: this driver knows no topology */
const char *mw_answer_text(const struct mw_answer *a, size_t *len);
void mw_answer_free(struct mw_answer *a);

/* ---- requests: completed with a message, one reference for Lua ---- */
bool mw_vm_request(struct mw_vm *vm, struct mw_link *l, const char *channel, struct mw_message *m,
                   double timeout_ms, double waiter); /* false: this driver knows none */

/* ---- log, shared values, small things ---- */
bool mw_log_wants(int level);
void mw_log_begin(int level, const char *text);
void mw_log_str(const char *key, const char *value, size_t len);
void mw_log_int(const char *key, int64_t value);
void mw_log_num(const char *key, double value);
void mw_log_end(void);
void mw_log_flush(void);
void mw_log_setup(int format, int level);
void mw_log_guard(void);

struct mw_dict *mw_dict_named(const char *name);
void mw_dict_set_number(struct mw_dict *d, const char *key, size_t len, double value, int64_t expires_ms);
void mw_dict_set_bool(struct mw_dict *d, const char *key, size_t len, bool value, int64_t expires_ms);
void mw_dict_set_string(struct mw_dict *d, const char *key, size_t len, const char *value, size_t value_len,
                        int64_t expires_ms);
double mw_dict_add(struct mw_dict *d, const char *key, size_t len, double by, double start, int64_t now_ms);
bool mw_dict_remove(struct mw_dict *d, const char *key, size_t len);
uint32_t mw_dict_count(const struct mw_dict *d);
void mw_dict_sweep(struct mw_dict *d, int64_t now_ms);
int mw_dict_get(struct mw_dict *d, const char *key, size_t len, int64_t now_ms, double *number,
                const char **text, size_t *text_len);
bool mw_dict_next(struct mw_dict *d, uint32_t *at, const char **key, size_t *len);

void mw_uuid(char out[37]);

/* ---- for specs: the clock, the log, HTTP answers, faults ---- */
void mw_vm_virtual(struct mw_vm *vm, bool on);
bool mw_vm_is_virtual(struct mw_vm *vm);
void mw_vm_set_now(struct mw_vm *vm, double seconds);
double mw_vm_advance(struct mw_vm *vm,
                     double max_ms);  /* to the next timer, at most so far; how far it went */
double mw_vm_next(struct mw_vm *vm);  /* ms to the next timer; -1: there is none */
bool mw_vm_pending(struct mw_vm *vm); /* a step would do something without time passing */
double mw_real_seconds(void);         /* monotonic, whatever the loop's clock says */

void mw_vm_capture(struct mw_vm *vm, bool on);
const char *mw_log_captured(size_t *len);
void mw_log_capture_clear(void);
void mw_log_project(void);

struct mw_redis_call;
struct mw_redis_call *mw_redis_start_for(struct mw_vm *vm, struct mw_redis *r, const char *const *args,
                                         const size_t *lens, const size_t *counts, size_t commands,
                                         double waiter);
void mw_redis_call_free(struct mw_redis_call *c);
const char *mw_redis_call_error(const struct mw_redis_call *c);
char mw_redis_call_value(const struct mw_redis_call *c, size_t i, const char **text, size_t *len,
                         double *number);
void mw_redis_fake(bool on);
bool mw_redis_fake_pending(void);
struct mw_redis_call *mw_redis_fake_next(void);
size_t mw_redis_fake_commands(const struct mw_redis_call *c);
const char *mw_redis_fake_argument(const struct mw_redis_call *c, size_t command, size_t i, size_t *len);
void mw_redis_fake_answer(struct mw_redis_call *c, const char *replies, size_t len, double delay_ms);
void mw_redis_fake_fail(struct mw_redis_call *c, const char *text);

struct mw_http_request;
void mw_http_fake(bool on);
bool mw_http_fake_pending(void);
struct mw_http_request *mw_http_fake_next(void);
const char *mw_http_fake_method(const struct mw_http_request *r);
const char *mw_http_fake_url(const struct mw_http_request *r);
const char *mw_http_fake_body(const struct mw_http_request *r, size_t *len);
const char *mw_http_fake_header(const struct mw_http_request *r, size_t i);
void mw_http_fake_head(struct mw_http_request *r, const char *line, size_t len);
void mw_http_fake_answer(struct mw_http_request *r, const char *body, size_t len, double delay_ms);
void mw_http_fake_fail(struct mw_http_request *r, const char *kind, const char *text);

bool mw_memory_fault(const char *broker, const char *what, double amount);
uint32_t mw_memory_held(const char *broker); /* acks that hold_ack kept since the last call */
void mw_memory_cut(const char *broker);
