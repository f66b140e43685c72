/* words.c - what went wrong with TLS, in words that say what to do. */
#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "net/tls/defs.h"

static void add(char *text, size_t room, const char *more) {
    size_t len = strlen(text);
    snprintf(text + len, room - len, "%s%s", len ? ", " : "", more);
}

static void printable(char *text) { /* a certificate may say anything */
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 127) *text = '?';
}

static void common_name(const X509_NAME *name, char *out, size_t room) {
    if (X509_NAME_get_text_by_NID((X509_NAME *)name, NID_commonName, out, (int)room) < 0)
        X509_NAME_oneline(name, out, (int)room);
    printable(out);
}

static void alternative(const GENERAL_NAME *name, char *out, size_t room) {
    *out = 0;
    if (name->type == GEN_DNS)
        snprintf(out, room, "%.*s", ASN1_STRING_length(name->d.dNSName),
                 (const char *)ASN1_STRING_get0_data(name->d.dNSName));
    if (name->type == GEN_IPADD)
        inet_ntop(ASN1_STRING_length(name->d.iPAddress) == 16 ? AF_INET6 : AF_INET,
                  ASN1_STRING_get0_data(name->d.iPAddress), out, (socklen_t)room);
    printable(out);
}

/* Whom it is for: its alternative names, else the common one. */
static void names_of(X509 *cert, char *out, size_t room) {
    GENERAL_NAMES *names = X509_get_ext_d2i(cert, NID_subject_alt_name, NULL, NULL);
    char one[64];
    *out = 0;
    for (int i = 0; i < sk_GENERAL_NAME_num(names) && strlen(out) + 4 < room; i++) {
        alternative(sk_GENERAL_NAME_value(names, i), one, sizeof one);
        if (*one) add(out, room, one);
    }
    GENERAL_NAMES_free(names);
    if (!*out) common_name(X509_get_subject_name(cert), out, room);
}

static const char *date(const ASN1_TIME *at, char out[40]) {
    struct tm tm;
    if (!ASN1_TIME_to_tm(at, &tm) || !strftime(out, 40, "%Y-%m-%d %H:%M UTC", &tm))
        strcpy(out, "an unknown day");
    return out;
}

static void note_wrong_name(mw_tls *t, X509 *cert) {
    char names[160];
    names_of(cert, names, sizeof names);
    mw_fail(&t->verdict, MW_EFORMAT, true,
            "certificate of %s is for %s; is that the right server? (tls_name=HOST if it is)", t->name,
            names);
}

static void note_expired(mw_tls *t, X509 *cert, bool of_authority) {
    char name[160] = "", day[40];
    if (of_authority) common_name(X509_get_subject_name(cert), name, sizeof name);
    mw_fail(&t->verdict, MW_EFORMAT, true, "certificate of %s%s%s expired on %s", t->name,
            of_authority ? ": that of its authority " : "", name, date(X509_get0_notAfter(cert), day));
}

static void note_unknown_authority(mw_tls *t, X509 *cert) {
    char name[160];
    common_name(X509_get_issuer_name(cert), name, sizeof name);
    mw_fail(&t->verdict, MW_EFORMAT, true,
            "certificate of %s is from an unknown authority, \"%s\": give ?ca=FILE%s", t->name, name,
            t->o->ca ? "; the one given does not have it" : "");
}

static void note_verdict(mw_tls *t, X509 *cert, int code, int depth) {
    char day[40];
    switch (code) {
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH: note_wrong_name(t, cert); break;
    case X509_V_ERR_CERT_HAS_EXPIRED: note_expired(t, cert, depth > 0); break;
    case X509_V_ERR_CERT_NOT_YET_VALID:
        mw_fail(&t->verdict, MW_EFORMAT, true,
                "certificate of %s is not valid before %s; is the clock right?", t->name,
                date(X509_get0_notBefore(cert), day));
        break;
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN: note_unknown_authority(t, cert); break;
    default:
        mw_fail(&t->verdict, MW_EFORMAT, true, "certificate of %s: %s", t->name,
                X509_verify_cert_error_string(code));
    }
}

int mw_tls_judge(int good, X509_STORE_CTX *chain) {
    const SSL *ssl = X509_STORE_CTX_get_ex_data(chain, SSL_get_ex_data_X509_STORE_CTX_idx());
    mw_tls *t = SSL_get_app_data(ssl);
    X509 *cert = X509_STORE_CTX_get_current_cert(chain);
    if (!good && cert && !t->verdict.text[0])
        note_verdict(t, cert, X509_STORE_CTX_get_error(chain), X509_STORE_CTX_get_error_depth(chain));
    return good;
}

static const char *words_for(const mw_tls *t, unsigned long code) {
    switch (ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) : 0) {
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_HTTP_REQUEST:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
    case SSL_R_UNEXPECTED_MESSAGE: return "the server does not speak TLS on this port";
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_TLSV1_ALERT_PROTOCOL_VERSION: return "the server speaks no TLS 1.2 or newer";
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
        return "the server wants a certificate of ours: give ?cert=FILE&key=FILE";
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
        return "the server does not know the authority of our certificate (cert=FILE)";
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN: return "the server refuses our certificate (cert=FILE)";
    case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
        return t->o->cert ? "the server refuses the TLS handshake"
                          : "the server refuses the TLS handshake; does it want a certificate of ours "
                            "(?cert=FILE&key=FILE)?";
    default: return NULL;
    }
}

int mw_tls_explain(mw_tls *t, mw_error *e) {
    unsigned long code = ERR_peek_error();
    const char *words = words_for(t, code);
    bool shaken = SSL_is_init_finished(t->ssl);
    if (t->verdict.text[0])
        *e = t->verdict;
    else if (words)
        mw_fail(e, MW_EFORMAT, true, "%s", words);
    else if (t->over && !shaken)
        mw_fail(e, t->ended.code, true, "%s during the TLS handshake; does it speak TLS on this port?",
                t->ended.text);
    else if (t->over)
        mw_fail(e, t->ended.code, true, "%s", t->ended.text);
    else if (SSL_get_shutdown(t->ssl) & SSL_RECEIVED_SHUTDOWN)
        mw_fail(e, 0, true, "the server closed the connection");
    else
        mw_fail(e, MW_EFORMAT, true, "TLS: %s", code ? ERR_reason_error_string(code) : "broken");
    ERR_clear_error();
    return -1;
}
