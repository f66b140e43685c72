/* defs.h - what the TLS files share: tls.c moves bytes, context.c reads the user's files, words.c
 * says what went wrong. The only header with OpenSSL in it. */
#pragma once
#include <openssl/ssl.h>

#include "net/tls/tls.h"

struct mw_tls {
    const mw_tls_options *o;
    SSL_CTX *context;
    uint64_t files; /* their state when they were read */
    SSL *ssl;       /* NULL between connections */
    int fd;
    char name[256]; /* whom we expect */
    mw_fifo wire;
    bool dry;             /* the socket had no more when it was last read */
    bool over;            /* the socket ended: */
    mw_error ended;       /* how */
    bool failed;          /* reading came to an end: */
    mw_error failure;     /* why */
    mw_error verdict;     /* why the certificate was refused; its text is "" when it was not */
    SSL_SESSION *session; /* of the last connection to `session_name` */
    char session_name[256];
};

SSL_CTX *mw_tls_context(const mw_tls_options *o, mw_error *e);
uint64_t mw_tls_files(const mw_tls_options *o); /* changes when one of the files does */

/* For SSL_set_verify: notes the verdict in the mw_tls that is the SSL's app data. */
int mw_tls_judge(int good, X509_STORE_CTX *chain);
/* Fills e from the verdict, the socket's end or OpenSSL's queue, and returns -1. */
int mw_tls_explain(mw_tls *t, mw_error *e);
