/* raw_redis.c - the floor under the Redis driver: hiredis, as directly as it goes.
 * raw_redis fill PORT COUNT BODY           fills the stream "in" (a new one) with what the driver would write
 * raw_redis consume PORT COUNT             a group reads it, 100 at a time, one XACK for each 100
 * raw_redis echo PORT COUNT                reads "in" and adds each body to "out" before its ack, as they
 * come raw_redis latency PORT COUNT RATE        sends COUNT to "in" at that rate and times their way to "out"
 * Each prints a JSON object. */
#include <hiredis/hiredis.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 100, PIPE = 500 };

static double now(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static redisReply *must(redisContext *c, redisReply *r) {
    if (r && r->type != REDIS_REPLY_ERROR) return r;
    fprintf(stderr, "raw_redis: %s\n", r ? r->str : c->errstr);
    exit(1);
}

static void next_reply(redisContext *c) {
    void *r = NULL;
    redisGetReply(c, &r);
    freeReplyObject(must(c, r));
}

static long peak_kb(void) {
    char line[256];
    long kb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f)) sscanf(line, "VmHWM: %ld", &kb);
    if (f) fclose(f);
    return kb;
}

static void fill(redisContext *c, long count, size_t size) {
    freeReplyObject(must(c, redisCommand(c, "DEL in")));
    char *body = malloc(size + 64);
    long waiting = 0;
    for (long i = 0; i < count; i++) {
        int n = snprintf(body, size + 64, "{\"number\":%ld,\"customer\":{\"id\":\"c%ld\"},\"text\":\"", i,
                         i % 1000);
        for (; (size_t)n + 2 < size; n++) body[n] = (char)('a' + (i + n) % 26);
        n += snprintf(body + n, 8, "\"}");
        redisAppendCommand(c, "XADD in * id message-%ld time 1700000000000 key c%ld body %b", i, i % 1000,
                           body, (size_t)n);
        if (++waiting == PIPE)
            for (; waiting; waiting--) next_reply(c);
    }
    for (; waiting; waiting--) next_reply(c);
    free(body);
    printf("{\"filled\":%ld}\n", count);
}

static void group(redisContext *c) {
    redisReply *r = redisCommand(c, "XGROUP DESTROY in raw");
    freeReplyObject(r);
    freeReplyObject(must(c, redisCommand(c, "XGROUP CREATE in raw 0 MKSTREAM")));
}

/* The body of an entry: the value behind the last field name, as we wrote it. */
static redisReply *body_of(redisReply *entry) {
    redisReply *fields = entry->element[1];
    return fields->element[fields->elements - 1];
}

static void consume(redisContext *c, long count, int echo) {
    long seen = 0, bytes = 0;
    if (!echo) group(c);
    double wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    while (seen < count) {
        redisReply *r =
            must(c, redisCommand(c, "XREADGROUP GROUP raw one COUNT %d BLOCK 2000 STREAMS in >", BATCH));
        if (r->type == REDIS_REPLY_NIL) {
            freeReplyObject(r);
            continue;
        }
        redisReply *entries = r->element[0]->element[1];
        const char *argv[BATCH + 3] = {"XACK", "in", "raw"};
        size_t lens[BATCH + 3] = {4, 2, 3};
        for (size_t i = 0; i < entries->elements; i++) {
            redisReply *entry = entries->element[i], *body = body_of(entry);
            bytes += (long)body->len; /* the trivial handler */
            if (echo) redisAppendCommand(c, "XADD out * body %b", body->str, body->len);
            argv[i + 3] = entry->element[0]->str;
            lens[i + 3] = entry->element[0]->len;
        }
        redisAppendCommandArgv(c, (int)entries->elements + 3, argv, lens);
        for (size_t i = 0; i < (echo ? entries->elements : 0) + 1; i++) next_reply(c);
        seen += (long)entries->elements;
        freeReplyObject(r);
    }
    printf("{\"wall\":%.6f,\"cpu\":%.6f,\"peak_kb\":%ld,\"bytes\":%ld}\n", now(CLOCK_MONOTONIC) - wall,
           now(CLOCK_PROCESS_CPUTIME_ID) - cpu, peak_kb(), bytes);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void send_all(int port, long count, double rate) {
    redisContext *c = redisConnect("127.0.0.1", port);
    double began = now(CLOCK_MONOTONIC);
    for (long i = 0; i < count; i++) {
        double due = began + (double)i / rate, left = due - now(CLOCK_MONOTONIC);
        if (left > 0) usleep((useconds_t)(left * 1e6));
        char body[64];
        int n = snprintf(body, sizeof body, "%.9f", now(CLOCK_MONOTONIC));
        freeReplyObject(must(c, redisCommand(c, "XADD in * id m%ld body %b", i, body, (size_t)n)));
    }
    redisFree(c);
    _exit(0);
}

static void latency(redisContext *c, int port, long count, double rate) {
    char last[64] = "0-0";
    long seen = 0;
    double *took = calloc((size_t)count, sizeof *took);
    freeReplyObject(must(c, redisCommand(c, "DEL out")));
    fflush(stdout);
    pid_t sender = fork();
    if (sender == 0) send_all(port, count, rate);
    double limit = now(CLOCK_MONOTONIC) + (double)count / rate + 20;
    while (seen < count && now(CLOCK_MONOTONIC) < limit) {
        redisReply *r = must(c, redisCommand(c, "XREAD COUNT 1000 BLOCK 1000 STREAMS out %s", last));
        double at = now(CLOCK_MONOTONIC);
        if (r->type != REDIS_REPLY_NIL) {
            redisReply *entries = r->element[0]->element[1];
            for (size_t i = 0; i < entries->elements && seen < count; i++) {
                took[seen++] = at - atof(body_of(entries->element[i])->str);
                snprintf(last, sizeof last, "%s", entries->element[i]->element[0]->str);
            }
        }
        freeReplyObject(r);
    }
    waitpid(sender, NULL, 0);
    if (seen < count) {
        fprintf(stderr, "raw_redis: %ld of %ld came\n", seen, count);
        exit(1);
    }
    qsort(took, (size_t)count, sizeof *took, by_value);
    printf("{\"p50\":%.6f,\"p99\":%.6f,\"worst\":%.6f}\n", took[count / 2], took[count * 99 / 100],
           took[count - 1]);
    free(took);
}

int main(int argc, char **argv) {
    if (argc < 4) return 64;
    int port = atoi(argv[2]);
    long count = atol(argv[3]);
    redisContext *c = redisConnect("127.0.0.1", port);
    if (!c || c->err) {
        fprintf(stderr, "raw_redis: no server on port %d\n", port);
        return 1;
    }
    if (!strcmp(argv[1], "fill") && argc == 5)
        fill(c, count, (size_t)atol(argv[4]));
    else if (!strcmp(argv[1], "consume"))
        consume(c, count, 0);
    else if (!strcmp(argv[1], "group"))
        group(c);
    else if (!strcmp(argv[1], "echo"))
        consume(c, count, 1);
    else if (!strcmp(argv[1], "latency") && argc == 5)
        latency(c, port, count, atof(argv[4]));
    else
        return 64;
    redisFree(c);
    return 0;
}
