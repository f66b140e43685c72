/* tls_peer.h - for tls_test.c: an authority and certificates of our own, made anew for every run, and a TLS
 * server in a thread of the program that behaves as it is told. */
#pragma once
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "stream_owner.h"

/* ---- certificates ---- */

static char folder[64]; /* where the files stand */

static const char *file_of(const char *name) {
    static char paths[8][128];
    static int turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

typedef struct identity {
    EVP_PKEY *key;
    X509 *cert;
} identity;

static void extend(X509 *cert, X509 *issuer, int kind, const char *value) {
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, cert, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &context, kind, value);
    if (!e || !X509_add_ext(cert, e, -1)) abort();
    X509_EXTENSION_free(e);
}

/* names: "DNS:a.test,IP:127.0.0.1", or NULL for an authority. Valid from so many days on, until so many. */
static identity make_identity(const char *common, const char *names, const identity *issuer, int from,
                              int until) {
    static long serial = 1;
    identity made = {EVP_EC_gen("P-256"), X509_new()};
    X509_NAME *name = X509_get_subject_name(made.cert);
    X509_set_version(made.cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(made.cert), serial++);
    X509_time_adj_ex(X509_getm_notBefore(made.cert), from, 0, NULL);
    X509_time_adj_ex(X509_getm_notAfter(made.cert), until, 0, NULL);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, (const unsigned char *)common, -1, -1, 0);
    X509 *by = issuer ? issuer->cert : made.cert;
    X509_set_issuer_name(made.cert, X509_get_subject_name(by));
    X509_set_pubkey(made.cert, made.key);
    extend(made.cert, by, NID_basic_constraints, names ? "critical,CA:FALSE" : "critical,CA:TRUE");
    if (names && *names) extend(made.cert, by, NID_subject_alt_name, names);
    if (!X509_sign(made.cert, issuer ? issuer->key : made.key, EVP_sha256())) abort();
    return made;
}

static void forget_identity(identity *i) {
    EVP_PKEY_free(i->key);
    X509_free(i->cert);
    *i = (identity){0};
}

static void save_cert(const identity *i, const char *name) {
    FILE *f = fopen(file_of(name), "w");
    if (!f || !PEM_write_X509(f, i->cert) || fclose(f)) abort();
}

static void save_key(const identity *i, const char *name, const char *password) {
    FILE *f = fopen(file_of(name), "w");
    if (!f ||
        !PEM_write_PrivateKey(f, i->key, password ? EVP_aes_128_cbc() : NULL, NULL, 0, NULL,
                              (void *)password) ||
        fclose(f))
        abort();
}

/* ---- the server ---- */

typedef enum {
    ECHO,    /* gives everything back */
    CRUMBS,  /* likewise, each byte in a record of its own */
    CUT,     /* hears something, answers, and is gone without a goodbye */
    GOODBYE, /* likewise with a goodbye, and leaves the socket open */
    REKEY,   /* changes keys before every answer, and wants us to do so */
    AGAIN,   /* wants to negotiate again (TLS 1.2), then gives everything back */
    DEAF,    /* reads nothing after the handshake */
    SILENT,  /* accepts and says nothing at all */
    PLAIN,   /* speaks no TLS */
    CLOSER,  /* accepts and closes */
} manner;

typedef struct tls_peer {
    peer at;
    SSL_CTX *context;
    manner how;
    pthread_t thread;
    atomic_bool ending;
    atomic_int shaken, reused, failed;
    char client[64]; /* the name in the client's certificate */
} tls_peer;

static bool wait_readable(tls_peer *p, int fd) { /* false: it is to end */
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    while (!p->ending)
        if (poll(&poll_fd, 1, 20) > 0) return true;
    return false;
}

static int give_back(tls_peer *p, SSL *ssl, const char *data, int len) {
    if (p->how == REKEY && !SSL_key_update(ssl, SSL_KEY_UPDATE_REQUESTED)) return -1;
    if (p->how != CRUMBS) return SSL_write(ssl, data, len);
    for (int i = 0; i < len; i++)
        if (SSL_write(ssl, data + i, 1) != 1) return -1;
    return len;
}

static void converse(tls_peer *p, SSL *ssl, int fd) {
    static char data[1 << 16];
    if (p->how == DEAF) {
        while (!p->ending) nap(5);
        return;
    }
    if (p->how == AGAIN) (void)!(SSL_renegotiate(ssl) && SSL_do_handshake(ssl));
    while (SSL_pending(ssl) || wait_readable(p, fd)) {
        int n = SSL_read(ssl, data, sizeof data);
        if (n <= 0) return;
        if (give_back(p, ssl, data, n) != n || p->how == CUT) return;
        if (p->how != GOODBYE) continue;
        SSL_shutdown(ssl);
        while (!p->ending) nap(5);
    }
}

static void note_client(tls_peer *p, SSL *ssl) {
    X509 *cert = SSL_get1_peer_certificate(ssl);
    if (cert)
        X509_NAME_get_text_by_NID(X509_get_subject_name(cert), NID_commonName, p->client, sizeof p->client);
    X509_free(cert);
}

static void serve(tls_peer *p, int fd) {
    if (p->how == CLOSER) return;
    if (p->how == PLAIN) (void)!write(fd, "-ERR this is plain text\r\n", 25);
    if (p->how == SILENT || p->how == PLAIN) {
        while (!p->ending) nap(5);
        return;
    }
    SSL *ssl = SSL_new(p->context);
    SSL_set_fd(ssl, fd);
    if (SSL_accept(ssl) == 1) {
        note_client(p, ssl);
        p->reused += SSL_session_reused(ssl);
        p->shaken++;
        converse(p, ssl, fd);
    } else {
        p->failed++;
    }
    SSL_free(ssl);
    ERR_clear_error();
}

static void *run_tls_peer(void *arg) {
    tls_peer *p = arg;
    sigset_t pipe; /* of this thread only: the stream must do without */
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, NULL);
    while (wait_readable(p, p->at.listener)) {
        int fd = accept(p->at.listener, NULL, NULL);
        if (fd < 0) continue;
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = 5}, sizeof(struct timeval));
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &(struct timeval){.tv_sec = 5}, sizeof(struct timeval));
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        serve(p, fd);
        close(fd);
    }
    OPENSSL_thread_stop();
    return NULL;
}

static void set_up_tls_peer(tls_peer *p, manner how, const identity *who) {
    *p = (tls_peer){
        .at = listen_on("127.0.0.1", 0, 16), .how = how, .context = SSL_CTX_new(TLS_server_method())};
    SSL_CTX_use_certificate(p->context, who->cert);
    SSL_CTX_use_PrivateKey(p->context, who->key);
}

static void start_tls_peer(tls_peer *p) {
    if (pthread_create(&p->thread, NULL, run_tls_peer, p)) abort();
}

static void end_tls_peer(tls_peer *p) {
    p->ending = true;
    pthread_join(p->thread, NULL);
    SSL_CTX_free(p->context);
    end_peer(&p->at);
}
