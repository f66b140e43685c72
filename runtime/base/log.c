#include "base/log.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "loop/loop.h"

enum { FLUSH_AT = 64 * 1024, VALUE_MAX = 4096, KEY_MAX = 256 };

static int format = MW_LOG_LOGFMT;
static int least = MW_INFO;
static int worker;
static bool colour, skipping;
static mw_buf line;
static mw_loop *capture_clock;
static mw_buf captured;
static bool capturing, first_field, project_line;
static volatile sig_atomic_t busy; /* the buffer is being changed: a signal handler leaves it alone */
static mw_log_rest *kept;

void mw_log_setup(int f, int level) {
    bool terminal = isatty(STDERR_FILENO);
    format = f == MW_LOG_AUTO ? MW_LOG_LOGFMT : f;
    colour = terminal && format == MW_LOG_LOGFMT;
    least = level;
}

void mw_log_worker(int number) { worker = number; }

bool mw_log_wants(int level) { return level >= least || capture_clock; }

static void put_json(mw_buf *to, const char *s, size_t len) {
    static const char digits[] = "0123456789abcdef";
    mw_buf_puts(to, "\"");
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '"' || c == '\\')
            mw_buf_add(to, (char[]){'\\', (char)c}, 2);
        else if (c == '\n')
            mw_buf_puts(to, "\\n");
        else if (c < 0x20 || c == 0x7f)
            mw_buf_add(to, (char[]){'\\', 'u', '0', '0', digits[c >> 4], digits[c & 15]}, 6);
        else
            mw_buf_add(to, &s[i], 1);
    }
    mw_buf_puts(to, "\"");
}

/* The length of the UTF-8 sequence at s; 0 when there is none: cut short, overlong, a surrogate, or beyond
 * U+10FFFF. */
static size_t sequence(const char *s, size_t len) {
    const unsigned char *p = (const unsigned char *)s;
    size_t width = *p < 0x80                 ? 1
                   : *p >= 0xc2 && *p < 0xe0 ? 2
                   : *p >= 0xe0 && *p < 0xf0 ? 3
                   : *p >= 0xf0 && *p < 0xf5 ? 4
                                             : 0;
    if (width > len) return 0;
    for (size_t k = 1; k < width; k++)
        if ((p[k] & 0xc0) != 0x80) return 0;
    bool bad = (*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] > 0x9f) || (*p == 0xf0 && p[1] < 0x90) ||
               (*p == 0xf4 && p[1] > 0x8f);
    return bad ? 0 : width;
}

/* Bytes that are not UTF-8 would make the line unreadable for log shippers: they become '?'. */
static size_t clean(const char *s, size_t len, char *out, size_t room) {
    size_t n = 0;
    for (size_t i = 0; i < len && n + 4 < room;) {
        size_t width = sequence(s + i, len - i);
        if (width)
            memcpy(out + n, s + i, width);
        else
            out[n] = '?';
        n += width ? width : 1;
        i += width ? width : 1;
    }
    return n;
}

static void put_value(const char *value, size_t len) {
    char text[VALUE_MAX];
    len = clean(value, len, text, sizeof text);
    bool quote = len == 0;
    for (size_t i = 0; i < len && !quote; i++)
        quote = (unsigned char)text[i] <= ' ' || strchr("\"=\\\x7f", text[i]);
    if (format == MW_LOG_JSON || quote)
        put_json(&line, text, len);
    else
        mw_buf_add(&line, text, len);
}

/* Handlers name the fields: a key must neither end the line nor look like another field. */
static void put_key(const char *key) {
    char text[KEY_MAX];
    size_t len = clean(key, strlen(key), text, sizeof text);
    if (format == MW_LOG_JSON) {
        mw_buf_puts(&line, ",");
        put_json(&line, text, len);
        mw_buf_puts(&line, ":");
        return;
    }
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] <= ' ' || strchr("\"=?\x7f", text[i])) text[i] = '_';
    mw_buf_puts(&line, colour ? " \033[2m" : " ");
    mw_buf_add(&line, text, len);
    mw_buf_puts(&line, colour ? "=\033[0m" : "=");
}

static void put_time(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct tm tm;
    gmtime_r(&now.tv_sec, &tm);
    char text[32];
    size_t n = strftime(text, sizeof text, colour ? "%H:%M:%S" : "%Y-%m-%dT%H:%M:%S", &tm);
    mw_buf_add(&line, text, n);
    mw_buf_printf(&line, colour ? ".%03ld" : ".%03ldZ", now.tv_nsec / 1000000);
}

/* ---- what specs look at ---- */

void mw_log_capture(mw_loop *clock) {
    capture_clock = clock;
    capturing = false;
    if (!clock) mw_buf_free(&captured);
}

const char *mw_log_captured(size_t *len) {
    *len = captured.len;
    return captured.data;
}

void mw_log_capture_clear(void) { captured.len = 0; }
void mw_log_project(void) { project_line = true; }

static void capture_value(const char *value, size_t len) {
    char text[VALUE_MAX];
    put_json(&captured, text, clean(value, len, text, sizeof text));
}

static void capture_key(const char *key) {
    if (!first_field) mw_buf_puts(&captured, ",");
    first_field = false;
    capture_value(key, strlen(key));
    mw_buf_puts(&captured, ":");
}

static void capture_begin(const char *level, const char *text) {
    mw_buf_printf(&captured, "{\"at\":%llu,\"project\":%s,\"level\":\"%s\",\"msg\":",
                  (unsigned long long)mw_loop_mono_ms(capture_clock), project_line ? "true" : "false", level);
    capture_value(text, strlen(text));
    mw_buf_puts(&captured, ",\"fields\":{");
    first_field = true;
}

/* ---- a line ---- */

void mw_log_begin(int level, const char *text) {
    static const char *const names[] = {"debug", "info", "warn", "error"};
    static const char *const paints[] = {"\033[2m", "\033[32m", "\033[33m", "\033[31m"};
    skipping = level < least || level > MW_ERROR;
    capturing = capture_clock && level <= MW_ERROR;
    if (capturing) capture_begin(names[level], text);
    project_line = false;
    if (skipping) return;
    busy = true;
    if (format == MW_LOG_JSON) {
        mw_buf_puts(&line, "{\"time\":\"");
        put_time();
        mw_buf_printf(&line, "\",\"level\":\"%s\",\"msg\":", names[level]);
        put_value(text, strlen(text));
    } else if (colour) {
        put_time();
        char shown[256]; /* a handler's text must not paint the terminal */
        size_t n = clean(text, strlen(text), shown, sizeof shown - 1);
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)shown[i] < ' ' || shown[i] == 0x7f) shown[i] = '?';
        mw_buf_printf(&line, " %s%-5s\033[0m %-22.*s", paints[level], names[level], (int)n, shown);
    } else {
        mw_buf_puts(&line, "time=");
        put_time();
        mw_buf_printf(&line, " level=%s msg=", names[level]);
        put_value(text, strlen(text));
    }
}

void mw_log_str(const char *key, const char *value, size_t len) {
    if (capturing) {
        capture_key(key);
        capture_value(value, len);
    }
    if (skipping) return;
    put_key(key);
    put_value(value, len);
}

void mw_log_text(const char *key, const char *value) {
    if (value) mw_log_str(key, value, strlen(value));
}

void mw_log_int(const char *key, int64_t value) {
    if (capturing) {
        capture_key(key);
        mw_buf_printf(&captured, "%lld", (long long)value);
    }
    if (skipping) return;
    put_key(key);
    mw_buf_printf(&line, "%lld", (long long)value);
}

void mw_log_num(const char *key, double value) {
    const char *no_number = isnan(value) ? "nan" : value > 0 ? "inf" : "-inf"; /* JSON has none of them */
    if (capturing) {
        capture_key(key);
        if (isfinite(value))
            mw_buf_printf(&captured, "%.17g", value);
        else
            mw_buf_printf(&captured, "\"%s\"", no_number);
    }
    if (skipping) return;
    put_key(key);
    if (value == floor(value) &&
        fabs(value) < 1e16) /* an order's number must stay one that can be searched for */
        mw_buf_printf(&line, "%.0f", value);
    else if (isfinite(value))
        mw_buf_printf(&line, "%.14g", value);
    else
        put_value(no_number, strlen(no_number));
}

/* What the buffer has more than it: the length last, so that what it counts is there. */
static void keep_rest(void) {
    uint32_t at = kept->len;
    if (line.len > MW_LOG_LEFT) return; /* it is flushed at once */
    if (at > line.len) at = 0;
    memcpy(kept->text + at, line.data + at, line.len - at);
    __atomic_store_n(&kept->len, (uint32_t)line.len, __ATOMIC_RELEASE);
}

void mw_log_end(void) {
    if (capturing) mw_buf_puts(&captured, "}}\n");
    capturing = false;
    if (skipping) return;
    if (worker) mw_log_int("worker", worker);
    mw_buf_puts(&line, format == MW_LOG_JSON ? "}\n" : "\n");
    if (kept) keep_rest();
    busy = false;
    if (line.len > FLUSH_AT) mw_log_flush();
}

/* ---- what a death leaves unwritten ---- */

void mw_log_keep_in(mw_log_rest *rest) {
    kept = rest;
    if (rest) rest->len = 0;
}

void mw_log_left(mw_log_rest *rest) {
    uint32_t len = __atomic_load_n(&rest->len, __ATOMIC_ACQUIRE); /* a worker gone mad may have written it */
    while (len && (len > MW_LOG_LEFT || rest->text[len - 1] != '\n'))
        len = len > MW_LOG_LEFT ? MW_LOG_LEFT : len - 1;
    mw_buf_add(&line, rest->text, len);
    rest->len = 0;
}

/* ---- from a signal handler, right before the end: nothing here allocates or locks ---- */

static void last_write(const char *text, size_t len) {
    while (len) {
        ssize_t n = write(STDERR_FILENO, text, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return;
        text += n;
        len -= (size_t)n;
    }
}

static size_t last_value(char *out, const char *value, size_t len) {
    size_t n = 0;
    out[n++] = '"';
    for (size_t i = 0; i < len && i < KEY_MAX; i++) {
        unsigned char c = (unsigned char)value[i];
        out[n++] = c < ' ' || c == '"' || c == '\\' || c == 0x7f ? '?' : (char)c;
    }
    out[n++] = '"';
    return n;
}

void mw_log_last(const char *text, const char *pipeline, const char *id, size_t id_len) {
    bool json = format == MW_LOG_JSON;
    char out[4 * KEY_MAX + 128];
    size_t n = 0;
    const char *names[] = {json ? "{\"level\":\"error\",\"msg\":" : "level=error msg=",
                           json ? ",\"pipeline\":" : " pipeline=", json ? ",\"id\":" : " id="};
    const char *values[] = {text, pipeline, id};
    size_t lengths[] = {strlen(text), strlen(pipeline), id_len};
    for (size_t i = 0; i < 3; i++) {
        size_t name = strlen(names[i]);
        memcpy(out + n, names[i], name);
        n += name;
        n += last_value(out + n, values[i], lengths[i]);
    }
    memcpy(out + n, "}\n", 2);
    last_write(line.data, line.len);
    last_write(json ? out : (out[n] = '\n', out), n + (json ? 2 : 1));
}

static const int fatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
enum { FATAL = sizeof fatal / sizeof *fatal };
static struct sigaction before[FATAL];

/* What it was before comes first: should the lines be broken, too, then the second fault ends the process. */
static void on_fatal(int n, siginfo_t *info, void *context) {
    (void)context;
    for (int i = 0; i < FATAL; i++) sigaction(fatal[i], &before[i], NULL);
    size_t len = line.len;
    while (len && line.data[len - 1] != '\n') len--; /* what is complete */
    last_write(line.data, len);
    if (info->si_code <= 0) raise(n); /* sent by somebody; a fault of our own happens again */
}

void mw_log_guard(void) {
    static char space[64 * 1024]; /* the fault may be that the stack is at its end */
    sigaltstack(&(stack_t){.ss_sp = space, .ss_size = sizeof space}, NULL);
    struct sigaction action = {.sa_sigaction = on_fatal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    for (int i = 0; i < FATAL; i++) sigaction(fatal[i], &action, &before[i]);
}

static void write_all(void) {
    for (size_t at = 0; at < line.len;) {
        ssize_t n = write(STDERR_FILENO, line.data + at, line.len - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break; /* nobody reads it: logging must never stop the work */
        at += (size_t)n;
    }
    line.len = 0;
    if (kept) __atomic_store_n(&kept->len, 0, __ATOMIC_RELEASE);
}

void mw_log_flush_signal(void) {
    if (!busy && line.len) write_all();
}

void mw_log_flush(void) {
    busy = true;
    write_all();
    busy = false;
    if (line.capacity > 4 * FLUSH_AT) mw_buf_free(&line);
}
