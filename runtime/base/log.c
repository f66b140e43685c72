#include "base/log.h"

#include <errno.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"

enum { FLUSH_AT = 64 * 1024, VALUE_MAX = 4096 };

static int format = MW_LOG_LOGFMT;
static int least = MW_INFO;
static bool colour, skipping;
static mw_buf line;

void mw_log_setup(int f, int level) {
    bool terminal = isatty(STDERR_FILENO);
    format = f == MW_LOG_AUTO ? MW_LOG_LOGFMT : f;
    colour = terminal && format == MW_LOG_LOGFMT;
    least = level;
}

bool mw_log_wants(int level) { return level >= least; }

static void put_json(const char *s, size_t len) {
    static const char digits[] = "0123456789abcdef";
    mw_buf_puts(&line, "\"");
    for (size_t i = 0; i < len; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '"' || c == '\\')
            mw_buf_add(&line, (char[]){'\\', (char)c}, 2);
        else if (c == '\n')
            mw_buf_puts(&line, "\\n");
        else if (c < 0x20 || c == 0x7f)
            mw_buf_add(&line, (char[]){'\\', 'u', '0', '0', digits[c >> 4], digits[c & 15]}, 6);
        else
            mw_buf_add(&line, &s[i], 1);
    }
    mw_buf_puts(&line, "\"");
}

/* Bytes that are not UTF-8 would make the line unreadable for log shippers: they become '?'. */
static size_t clean(const char *s, size_t len, char *out, size_t room) {
    size_t n = 0;
    for (size_t i = 0; i < len && n + 4 < room;) {
        unsigned char c = (unsigned char)s[i];
        size_t width = c < 0x80                ? 1
                       : c >= 0xc2 && c < 0xe0 ? 2
                       : c >= 0xe0 && c < 0xf0 ? 3
                       : c >= 0xf0 && c < 0xf5 ? 4
                                               : 0;
        bool good = width && i + width <= len;
        for (size_t k = 1; good && k < width; k++) good = ((unsigned char)s[i + k] & 0xc0) == 0x80;
        if (good)
            memcpy(out + n, s + i, width);
        else
            out[n] = '?';
        n += good ? width : 1;
        i += good ? width : 1;
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
        put_json(text, len);
    else
        mw_buf_add(&line, text, len);
}

static void put_key(const char *key) {
    if (format == MW_LOG_JSON) {
        mw_buf_puts(&line, ",");
        put_json(key, strlen(key));
        mw_buf_puts(&line, ":");
        return;
    }
    mw_buf_puts(&line, colour ? " \033[2m" : " ");
    mw_buf_puts(&line, key);
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

void mw_log_begin(int level, const char *text) {
    static const char *const names[] = {"debug", "info", "warn", "error"};
    static const char *const paints[] = {"\033[2m", "\033[32m", "\033[33m", "\033[31m"};
    skipping = level < least || level > MW_ERROR;
    if (skipping) return;
    if (format == MW_LOG_JSON) {
        mw_buf_puts(&line, "{\"time\":\"");
        put_time();
        mw_buf_printf(&line, "\",\"level\":\"%s\",\"msg\":", names[level]);
        put_value(text, strlen(text));
    } else if (colour) {
        put_time();
        mw_buf_printf(&line, " %s%-5s\033[0m %-22s", paints[level], names[level], text);
    } else {
        mw_buf_puts(&line, "time=");
        put_time();
        mw_buf_printf(&line, " level=%s msg=", names[level]);
        put_value(text, strlen(text));
    }
}

void mw_log_str(const char *key, const char *value, size_t len) {
    if (skipping) return;
    put_key(key);
    put_value(value, len);
}

void mw_log_text(const char *key, const char *value) {
    if (value) mw_log_str(key, value, strlen(value));
}

void mw_log_int(const char *key, int64_t value) {
    if (skipping) return;
    put_key(key);
    mw_buf_printf(&line, "%lld", (long long)value);
}

void mw_log_num(const char *key, double value) {
    if (skipping) return;
    put_key(key);
    if (isfinite(value))
        mw_buf_printf(&line, "%.14g", value);
    else
        put_value("nan", 3);
}

void mw_log_end(void) {
    if (skipping) return;
    mw_buf_puts(&line, format == MW_LOG_JSON ? "}\n" : "\n");
    if (line.len > FLUSH_AT) mw_log_flush();
}

void mw_log_flush(void) {
    for (size_t at = 0; at < line.len;) {
        ssize_t n = write(STDERR_FILENO, line.data + at, line.len - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break; /* nobody reads it: logging must never stop the work */
        at += (size_t)n;
    }
    line.len = 0;
    if (line.capacity > 4 * FLUSH_AT) mw_buf_free(&line);
}
