/* raw_rabbitmq.c - the floor under the RabbitMQ driver: rabbitmq-c, as directly as it goes.
 * raw_rabbitmq publish PORT VHOST COUNT BODY     persistent, confirmed, at most 1000 without a confirm, to
 * "in" raw_rabbitmq consume PORT VHOST COUNT          prefetch 1000, one multiple ack for each 100
 * raw_rabbitmq echo PORT VHOST COUNT             reads "in", publishes to "out", acks when that is confirmed
 * raw_rabbitmq latency PORT VHOST COUNT RATE     sends COUNT to "in" at that rate and times their way to
 * "out" Each prints a JSON object. */
#if __has_include(<rabbitmq-c/amqp.h>)
#include <rabbitmq-c/amqp.h>
#include <rabbitmq-c/tcp_socket.h>
#else
#include <amqp.h>
#include <amqp_tcp_socket.h>
#endif
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { ACK_EVERY = 100, WINDOW = 1000 };

static double now(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void die(const char *what) {
    fprintf(stderr, "raw_rabbitmq: %s\n", what);
    exit(1);
}

static amqp_connection_state_t connect_to(int port, const char *vhost) {
    amqp_connection_state_t c = amqp_new_connection();
    amqp_socket_t *socket = amqp_tcp_socket_new(c);
    if (amqp_socket_open(socket, "127.0.0.1", port)) die("no server");
    if (amqp_login(c, vhost, 0, 131072, 0, AMQP_SASL_METHOD_PLAIN, "guest", "guest").reply_type !=
        AMQP_RESPONSE_NORMAL)
        die("login");
    amqp_channel_open(c, 1);
    return c;
}

static void declare(amqp_connection_state_t c, const char *name) {
    amqp_queue_declare(c, 1, amqp_cstring_bytes(name), 0, 1, 0, 0, amqp_empty_table);
    if (amqp_get_rpc_reply(c).reply_type != AMQP_RESPONSE_NORMAL) die("declare");
}

static long unconfirmed;
static uint64_t confirmed_to;

/* One frame from the broker that is a confirm; others are an error here. */
static void wait_confirm(amqp_connection_state_t c) {
    amqp_frame_t f;
    if (amqp_simple_wait_frame(c, &f) != AMQP_STATUS_OK) die("lost");
    if (f.frame_type != AMQP_FRAME_METHOD || f.payload.method.id != AMQP_BASIC_ACK_METHOD)
        die("not confirmed");
    amqp_basic_ack_t *ack = f.payload.method.decoded;
    if (ack->multiple) {
        unconfirmed -= (long)(ack->delivery_tag - confirmed_to);
        confirmed_to = ack->delivery_tag;
    } else { /* not in order with the multiple ones in general; of one queue they are */
        unconfirmed--;
        confirmed_to = ack->delivery_tag;
    }
    amqp_maybe_release_buffers(c);
}

/* The same properties and headers as the messages of fill.c, byte for byte as long: the broker's cost depends
 * on them. With short ones it needed a third less CPU to take a message, probably because Erlang keeps
 * binaries of up to 64 bytes inside of a process. */
static void send(amqp_connection_state_t c, const char *queue, long i, const char *body, size_t len) {
    char id[64], key[24];
    uint64_t now_s = (uint64_t)time(NULL);
    snprintf(id, sizeof id, "%08lx-%04lx-7000-8000-%012lx", i, i >> 16, (long)getpid());
    snprintf(key, sizeof key, "customer-%05ld", i % 1000);
    amqp_table_entry_t entries[2] = {
        {.key = amqp_cstring_bytes("mw-key"),
         .value = {.kind = AMQP_FIELD_KIND_UTF8, .value.bytes = amqp_cstring_bytes(key)}},
        {.key = amqp_cstring_bytes("mw-time"),
         .value = {.kind = AMQP_FIELD_KIND_I64, .value.i64 = (int64_t)now_s * 1000}}};
    amqp_basic_properties_t p = {._flags = AMQP_BASIC_CONTENT_TYPE_FLAG | AMQP_BASIC_DELIVERY_MODE_FLAG |
                                           AMQP_BASIC_MESSAGE_ID_FLAG | AMQP_BASIC_PRIORITY_FLAG |
                                           AMQP_BASIC_HEADERS_FLAG | AMQP_BASIC_TIMESTAMP_FLAG,
                                 .content_type = amqp_cstring_bytes("application/json"),
                                 .delivery_mode = 2,
                                 .priority = 4,
                                 .message_id = amqp_cstring_bytes(id),
                                 .timestamp = now_s,
                                 .headers = {2, entries}};
    amqp_bytes_t bytes = {.len = len, .bytes = (void *)(uintptr_t)body};
    if (amqp_basic_publish(c, 1, amqp_empty_bytes, amqp_cstring_bytes(queue), 1, 0, &p, bytes))
        die("publish");
    unconfirmed++;
}

static void report(double wall, double cpu) {
    printf("{\"wall\":%.6f,\"cpu\":%.6f}\n", now(CLOCK_MONOTONIC) - wall,
           now(CLOCK_PROCESS_CPUTIME_ID) - cpu);
}

static void publish(amqp_connection_state_t c, long count, size_t size) {
    char *body = malloc(size + 64);
    declare(c, "in");
    amqp_confirm_select(c, 1);
    double wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    for (long i = 0; i < count; i++) {
        int n = snprintf(body, size + 64, "{\"number\":%ld,\"text\":\"", i);
        for (; (size_t)n + 2 < size; n++) body[n] = (char)('a' + (i + n) % 26);
        n += snprintf(body + n, 8, "\"}");
        send(c, "in", i, body, (size_t)n);
        while (unconfirmed >= WINDOW) wait_confirm(c);
    }
    while (unconfirmed) wait_confirm(c);
    report(wall, cpu);
    free(body);
}

static void start_consumer(amqp_connection_state_t c, const char *queue) {
    amqp_basic_qos(c, 1, 0, 1000, 0);
    amqp_basic_consume(c, 1, amqp_cstring_bytes(queue), amqp_empty_bytes, 0, 0, 0, amqp_empty_table);
    if (amqp_get_rpc_reply(c).reply_type != AMQP_RESPONSE_NORMAL) die("consume");
}

static void next(amqp_connection_state_t c, amqp_envelope_t *e) {
    amqp_maybe_release_buffers(c);
    if (amqp_consume_message(c, e, NULL, 0).reply_type != AMQP_RESPONSE_NORMAL) die("consume");
}

static void consume(amqp_connection_state_t c, long count) {
    long bytes = 0;
    double wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
    start_consumer(c, "in");
    for (long i = 1; i <= count; i++) {
        amqp_envelope_t e;
        next(c, &e);
        bytes += (long)e.message.body.len; /* the trivial handler */
        if (i % ACK_EVERY == 0 || i == count) amqp_basic_ack(c, 1, e.delivery_tag, 1);
        amqp_destroy_envelope(&e);
        if (i == count / 10) { /* what comes before is the start */
            wall = now(CLOCK_MONOTONIC);
            cpu = now(CLOCK_PROCESS_CPUTIME_ID);
        }
    }
    if (!bytes) die("empty");
    double all = (double)count / (double)(count - count / 10); /* as if for all of them */
    printf("{\"wall\":%.6f,\"cpu\":%.6f}\n", (now(CLOCK_MONOTONIC) - wall) * all,
           (now(CLOCK_PROCESS_CPUTIME_ID) - cpu) * all);
}

static void echo(int port, const char *vhost, amqp_connection_state_t in, long count) {
    amqp_connection_state_t out = connect_to(port, vhost);
    declare(in, "in");
    declare(out, "out");
    amqp_confirm_select(out, 1);
    start_consumer(in, "in");
    for (long i = 0; i < count; i++) {
        amqp_envelope_t e;
        next(in, &e);
        send(out, "out", i, e.message.body.bytes, e.message.body.len);
        while (unconfirmed) wait_confirm(out);
        amqp_basic_ack(in, 1, e.delivery_tag, 0);
        amqp_destroy_envelope(&e);
    }
    printf("{}\n");
}

static void send_all(int port, const char *vhost, long count, double rate) {
    amqp_connection_state_t c = connect_to(port, vhost);
    double began = now(CLOCK_MONOTONIC);
    amqp_confirm_select(c, 1);
    for (long i = 0; i < count; i++) {
        double left = began + (double)i / rate - now(CLOCK_MONOTONIC);
        if (left > 0) usleep((useconds_t)(left * 1e6));
        char body[64];
        int n = snprintf(body, sizeof body, "%.9f", now(CLOCK_MONOTONIC));
        send(c, "in", i, body, (size_t)n);
        while (unconfirmed >= WINDOW) wait_confirm(c);
    }
    while (unconfirmed) wait_confirm(c);
    _exit(0);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void latency(int port, const char *vhost, amqp_connection_state_t c, long count, double rate) {
    double *took = calloc((size_t)count, sizeof *took);
    declare(c, "in");
    declare(c, "out");
    amqp_queue_purge(c, 1, amqp_cstring_bytes("out"));
    start_consumer(c, "out");
    fflush(stdout);
    pid_t sender = fork();
    if (sender == 0) send_all(port, vhost, count, rate);
    for (long i = 0; i < count; i++) {
        amqp_envelope_t e;
        char text[64] = "";
        next(c, &e);
        memcpy(text, e.message.body.bytes, e.message.body.len < 63 ? e.message.body.len : 63);
        took[i] = now(CLOCK_MONOTONIC) - atof(text);
        amqp_basic_ack(c, 1, e.delivery_tag, 0);
        amqp_destroy_envelope(&e);
    }
    waitpid(sender, NULL, 0);
    qsort(took, (size_t)count, sizeof *took, by_value);
    printf("{\"p50\":%.6f,\"p99\":%.6f,\"worst\":%.6f}\n", took[count / 2], took[count * 99 / 100],
           took[count - 1]);
    free(took);
}

int main(int argc, char **argv) {
    if (argc < 5) return 64;
    int port = atoi(argv[2]);
    long count = atol(argv[4]);
    alarm(240); /* a benchmark that hangs must not hang its caller */
    amqp_connection_state_t c = connect_to(port, argv[3]);
    if (!strcmp(argv[1], "publish") && argc == 6)
        publish(c, count, (size_t)atol(argv[5]));
    else if (!strcmp(argv[1], "consume"))
        consume(c, count);
    else if (!strcmp(argv[1], "echo"))
        echo(port, argv[3], c, count);
    else if (!strcmp(argv[1], "latency") && argc == 6)
        latency(port, argv[3], c, count, atof(argv[5]));
    else
        return 64;
    amqp_connection_close(c, AMQP_REPLY_SUCCESS);
    amqp_destroy_connection(c);
    return 0;
}
