/* log.h - one line per event to stderr: logfmt (with colours on a terminal) or JSON.
 *     mw_log_begin(MW_WARN, "handler failed");
 *     mw_log_str("id", id, id_len);
 *     mw_log_int("attempt", 2);
 *     mw_log_end();
 * Lines gather in a buffer that the loop flushes once a turn (mw_log_flush), and a timer while handlers
 * compute (mw_log_flush_signal). Loop thread only. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum { MW_DEBUG, MW_INFO, MW_WARN, MW_ERROR, MW_SILENT } mw_level;
typedef enum { MW_LOG_AUTO, MW_LOG_LOGFMT, MW_LOG_JSON } mw_log_format;

void mw_log_setup(int format, int least); /* mw_log_format, mw_level */
void mw_log_worker(int number);           /* from now on every line says worker=number */
bool mw_log_wants(int level);

void mw_log_begin(int level, const char *text);
void mw_log_str(const char *key, const char *value, size_t len);
void mw_log_text(const char *key, const char *value); /* NULL is left out */
void mw_log_int(const char *key, int64_t value);
void mw_log_num(const char *key, double value);
void mw_log_end(void);

void mw_log_flush(void);
void mw_log_flush_signal(
    void); /* from a signal handler on the loop's thread: what is complete, if nobody is at it */

/* Once, in a process whose lines nobody else keeps: a crash writes them before it ends the process. */
void mw_log_guard(void);

/* Memory that outlives this process: it holds the lines that are not written yet, so that somebody else can
 * write them when it has died (mw_log_left). */
enum { MW_LOG_LEFT = 64 * 1024 };
typedef struct mw_log_rest {
    uint32_t len;
    char text[MW_LOG_LEFT];
} mw_log_rest;
void mw_log_keep_in(mw_log_rest *rest); /* NULL: no more */
void mw_log_left(mw_log_rest *rest);    /* of one that has died */

/* For specs: while a loop is given, every line of every level is kept as well, one JSON object a line: at
 * (monotonic ms of that loop), level, msg, project (it is one of mw.log), fields. */
struct mw_loop;
void mw_log_capture(struct mw_loop *clock); /* NULL ends it and forgets what is kept */
const char *mw_log_captured(size_t *len);   /* valid until the next line */
void mw_log_capture_clear(void);
void mw_log_project(void); /* the next line is the project's */

/* The last words, from a signal handler before _exit: what is gathered, then an error line. */
void mw_log_last(const char *text, const char *pipeline, const char *id, size_t id_len);
