#include "net/tls/tls.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdlib.h>
#include <string.h>

#include "net/socket.h"
#include "net/tls/defs.h"

/* ---- OpenSSL's side of the socket: reads it, and writes to the fifo ---- */

static int wire_read(BIO *b, char *to, int len) {
    mw_tls *t = BIO_get_data(b);
    BIO_clear_retry_flags(b);
    if (t->over) return 0;
    ssize_t n = t->dry ? 0 : mw_socket_read(t->fd, to, (size_t)len, &t->ended);
    t->over = n < 0;
    t->dry = n < len; /* less than asked for: asking again would only cost a system call */
    if (n > 0) return (int)n;
    if (n == 0) BIO_set_retry_read(b);
    return n == 0 ? -1 : 0;
}

static int wire_write(BIO *b, const char *data, int len) {
    mw_tls *t = BIO_get_data(b);
    memcpy(mw_fifo_reserve(&t->wire, (size_t)len), data, (size_t)len);
    mw_fifo_filled(&t->wire, (size_t)len);
    return len;
}

static long wire_control(BIO *b, int what, long number, void *pointer) {
    (void)number, (void)pointer;
    const mw_tls *t = BIO_get_data(b);
    if (what == BIO_CTRL_EOF) return t->over;
    return what == BIO_CTRL_FLUSH;
}

static BIO *wire_bio(mw_tls *t) {
    static BIO_METHOD *method;
    if (!method) {
        method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "moonwire stream");
        if (!method) abort();
        BIO_meth_set_read(method, wire_read);
        BIO_meth_set_write(method, wire_write);
        BIO_meth_set_ctrl(method, wire_control);
    }
    BIO *b = BIO_new(method);
    if (!b) abort();
    BIO_set_data(b, t);
    BIO_set_init(b, 1);
    return b;
}

/* ---- sessions ---- */

/* Called when the server gives a ticket: true keeps the reference. */
static int keep_session(SSL *ssl, SSL_SESSION *session) {
    mw_tls *t = SSL_get_app_data(ssl);
    SSL_SESSION_free(t->session);
    t->session = session;
    memcpy(t->session_name, t->name, sizeof t->name);
    return 1;
}

static void forget_session(mw_tls *t) {
    SSL_SESSION_free(t->session);
    t->session = NULL;
}

static bool is_address(const char *name) {
    struct in6_addr space;
    return inet_pton(AF_INET, name, &space) == 1 || inet_pton(AF_INET6, name, &space) == 1;
}

static bool expect_name(SSL *ssl, const char *name) {
    if (is_address(name)) return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name);
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set_tlsext_host_name(ssl, name) && SSL_set1_host(ssl, name);
}

static void choose_name(mw_tls *t, const char *host) {
    size_t len = strcspn(host, "%"); /* the zone of fe80::1%eth0 is nobody's name */
    if (t->o->name) {
        host = t->o->name;
        len = strlen(host);
    }
    if (len >= sizeof t->name) len = sizeof t->name - 1;
    memcpy(t->name, host, len);
    t->name[len] = 0;
}

int mw_tls_begin(mw_tls *t, int fd, const char *host, mw_error *e) {
    mw_tls_end(t);
    choose_name(t, host);
    t->fd = fd;
    t->dry = t->over = t->failed = false;
    t->verdict.text[0] = 0;
    t->ssl = SSL_new(t->context);
    if (!t->ssl) abort();
    BIO *b = wire_bio(t);
    SSL_set_bio(t->ssl, b, b);
    SSL_set_app_data(t->ssl, t);
    SSL_set_connect_state(t->ssl);
    if (t->name[0] && !expect_name(t->ssl, t->name))
        return mw_fail(e, MW_EUSAGE, false, "\"%s\" cannot be the name of a certificate", t->name);
    if (t->session && strcmp(t->name, t->session_name) == 0) SSL_set_session(t->ssl, t->session);
    return 0;
}

static void say_goodbye(mw_tls *t) {
    mw_error e;
    SSL_shutdown(t->ssl);
    if (!mw_fifo_size(&t->wire)) return;
    (void)!mw_socket_write(t->fd, t->wire.data + t->wire.at, mw_fifo_size(&t->wire), &e);
}

void mw_tls_end(mw_tls *t) {
    if (!t->ssl) return;
    bool shaken = SSL_is_init_finished(t->ssl);
    if (shaken && !t->over && !t->failed && !mw_fifo_size(&t->wire)) say_goodbye(t);
    if (shaken)
        SSL_set_shutdown(t->ssl, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN); /* or the session is void */
    SSL_free(t->ssl);
    ERR_clear_error();
    t->ssl = NULL;
    mw_fifo_taken(&t->wire, mw_fifo_size(&t->wire));
}

/* ---- bytes ---- */

int mw_tls_handshake(mw_tls *t, mw_error *e) {
    t->dry = false;
    ERR_clear_error();
    int done = SSL_do_handshake(t->ssl);
    if (done == 1) return 1;
    if (SSL_get_error(t->ssl, done) == SSL_ERROR_WANT_READ) return 0;
    forget_session(t);
    return mw_tls_explain(t, e);
}

ssize_t mw_tls_read(mw_tls *t, void *to, size_t room, bool *more, mw_error *e) {
    size_t got = 0, n = 0;
    if (t->failed) return mw_fail(e, t->failure.code, true, "%s", t->failure.text);
    t->dry = false;
    ERR_clear_error();
    while (got < room) { /* one record at a time */
        if (SSL_read_ex(t->ssl, (char *)to + got, room - got, &n) != 1) break;
        got += n;
    }
    *more = got == room;
    if (*more || SSL_get_error(t->ssl, 0) == SSL_ERROR_WANT_READ) return (ssize_t)got;
    mw_tls_explain(t, &t->failure);
    t->failed = *more = true; /* what came before the end is handed out first */
    return got ? (ssize_t)got : mw_tls_read(t, to, room, more, e);
}

int mw_tls_write(mw_tls *t, const void *data, size_t len, mw_error *e) {
    size_t written;
    ERR_clear_error();
    if (SSL_write_ex(t->ssl, data, len, &written) == 1 && written == len) return 0;
    return mw_tls_explain(t, e);
}

mw_fifo *mw_tls_wire(mw_tls *t) { return &t->wire; }

const char *mw_tls_version(const mw_tls *t) { return t->ssl ? SSL_get_version(t->ssl) : NULL; }

/* ---- life ---- */

static int load_context(mw_tls *t, mw_error *e) {
    uint64_t files = mw_tls_files(t->o); /* before they are read: a change in between is seen next time */
    SSL_CTX *context = mw_tls_context(t->o, e);
    if (!context) return -1;
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(context, keep_session);
    if (!t->o->insecure) SSL_CTX_set_verify(context, SSL_VERIFY_PEER, mw_tls_judge);
    SSL_CTX_free(t->context);
    t->context = context;
    t->files = files;
    forget_session(t);
    return 0;
}

int mw_tls_refresh(mw_tls *t, mw_error *e) {
    uint64_t files = mw_tls_files(t->o);
    if (files == t->files) return 0;
    if (load_context(t, e) == 0) return 0;
    t->files = files; /* said once */
    return -1;
}

mw_tls *mw_tls_new(const mw_tls_options *o, mw_error *e) {
    mw_tls *t = calloc(1, sizeof *t);
    if (!t) abort();
    t->o = o;
    if (load_context(t, e) == 0) return t;
    free(t);
    return NULL;
}

void mw_tls_free(mw_tls *t) {
    if (!t) return;
    mw_tls_end(t);
    SSL_SESSION_free(t->session);
    SSL_CTX_free(t->context);
    mw_fifo_free(&t->wire);
    free(t);
}
