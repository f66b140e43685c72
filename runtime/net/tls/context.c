/* context.c - what the user's options say, read from the files they name. */
#include <dirent.h>
#include <errno.h>
#include <openssl/err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/hash.h"
#include "net/tls/defs.h"

enum { READ_AT_ONCE = 64 << 10 };

static const char *const BUNDLE = "/etc/ssl/certs/ca-certificates.crt"; /* images may have it and no folder */

/* The innermost reason, which is the one that names the matter. */
static const char *reason(void) {
    static char text[160];
    unsigned long code = ERR_peek_error();
    const char *words = code ? ERR_reason_error_string(code) : NULL;
    snprintf(text, sizeof text, "%s", words ? words : code ? strerror(ERR_GET_REASON(code)) : "not readable");
    ERR_clear_error();
    return text;
}

static bool is_hashed(const char *name) { /* 5ed36f99.0 */
    return strspn(name, "0123456789abcdef") == 8 && name[8] == '.' && name[9] >= '0' && name[9] <= '9';
}

static bool is_certificate(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot && (strcmp(dot, ".pem") == 0 || strcmp(dot, ".crt") == 0 || strcmp(dot, ".cer") == 0);
}

static bool has_hashes(const char *folder) {
    DIR *dir = folder ? opendir(folder) : NULL;
    bool found = false;
    for (struct dirent *d; dir && !found && (d = readdir(dir));) found = is_hashed(d->d_name);
    if (dir) closedir(dir);
    return found;
}

/* A folder that was not prepared by `openssl rehash`: all of it is read now. */
static int load_each(SSL_CTX *c, const char *folder, mw_error *e) {
    char path[4096];
    int loaded = 0, result = 0;
    DIR *dir = opendir(folder);
    if (!dir) return mw_fail(e, MW_EUSAGE, false, "ca=%s: %s", folder, strerror(errno));
    for (struct dirent *d; !result && (d = readdir(dir));) {
        if (!is_certificate(d->d_name)) continue;
        snprintf(path, sizeof path, "%s/%s", folder, d->d_name);
        if (SSL_CTX_load_verify_file(c, path) == 1)
            loaded++;
        else
            result = mw_fail(e, MW_EUSAGE, false, "ca=%s: no certificates in it: %s", path, reason());
    }
    closedir(dir);
    if (!result && !loaded)
        return mw_fail(e, MW_EUSAGE, false, "ca=%s: the folder has no certificates (.pem, .crt, .cer)",
                       folder);
    return result;
}

static int load_authorities(SSL_CTX *c, const char *ca, mw_error *e) {
    struct stat st;
    if (!ca) {
        SSL_CTX_set_default_verify_paths(c);
        if (!has_hashes(X509_get_default_cert_dir())) (void)!SSL_CTX_load_verify_file(c, BUNDLE);
        ERR_clear_error();
        return 0;
    }
    if (stat(ca, &st)) return mw_fail(e, MW_EUSAGE, false, "ca=%s: %s", ca, strerror(errno));
    if (S_ISDIR(st.st_mode)) {
        if (!has_hashes(ca)) return load_each(c, ca, e);
        if (SSL_CTX_load_verify_dir(c, ca) == 1) return 0;
    } else if (SSL_CTX_load_verify_file(c, ca) == 1) {
        return 0;
    }
    return mw_fail(e, MW_EUSAGE, false, "ca=%s: no certificates in it: %s", ca, reason());
}

/* Nobody is there to type one, and OpenSSL would ask the terminal. */
static int no_password(char *space, int size, int writing, void *unused) {
    (void)space, (void)size, (void)writing, (void)unused;
    return -1;
}

static int load_ours(SSL_CTX *c, const char *cert, const char *key, mw_error *e) {
    if (!cert && !key) return 0;
    if (!cert)
        return mw_fail(e, MW_EUSAGE, false, "key=%s needs cert=FILE, the certificate it belongs to", key);
    SSL_CTX_set_default_passwd_cb(c, no_password);
    if (SSL_CTX_use_certificate_chain_file(c, cert) != 1)
        return mw_fail(e, MW_EUSAGE, false, "cert=%s: no certificate in it: %s", cert, reason());
    if (!key && SSL_CTX_use_PrivateKey_file(c, cert, SSL_FILETYPE_PEM) != 1)
        return mw_fail(e, MW_EUSAGE, false, "cert=%s: no private key in it; give key=FILE", cert);
    if (key && SSL_CTX_use_PrivateKey_file(c, key, SSL_FILETYPE_PEM) != 1) {
        if (ERR_GET_REASON(ERR_peek_error()) == X509_R_KEY_VALUES_MISMATCH)
            return mw_fail(e, MW_EUSAGE, false, "key=%s does not belong to cert=%s", key, cert);
        return mw_fail(e, MW_EUSAGE, false,
                       "key=%s: no private key in it that can be read without a password: %s", key, reason());
    }
    return 0;
}

uint64_t mw_tls_files(const mw_tls_options *o) {
    const char *const paths[] = {o->ca, o->cert, o->key};
    uint64_t states[3][4] = {0};
    struct stat st;
    for (int i = 0; i < 3; i++) {
        if (!paths[i] || stat(paths[i], &st)) continue;
        states[i][0] = (uint64_t)st.st_ino;
        states[i][1] = (uint64_t)st.st_size;
        states[i][2] = (uint64_t)st.st_mtim.tv_sec;
        states[i][3] = (uint64_t)st.st_mtim.tv_nsec;
    }
    return mw_hash64(states, sizeof states);
}

SSL_CTX *mw_tls_context(const mw_tls_options *o, mw_error *e) {
    SSL_CTX *c = SSL_CTX_new(TLS_client_method());
    if (!c) abort();
    ERR_clear_error();
    SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION);
    /* An end without a goodbye is an end: protocols have lengths of their own, and the session stays good. */
    SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_mode(c, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_read_ahead(c, 1); /* a record's head and body, and those behind it, by one system call */
    SSL_CTX_set_default_read_buffer_len(c, READ_AT_ONCE);
    if ((o->insecure || load_authorities(c, o->ca, e) == 0) && load_ours(c, o->cert, o->key, e) == 0)
        return c;
    ERR_clear_error();
    SSL_CTX_free(c);
    return NULL;
}
