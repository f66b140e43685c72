/* tls_test.c - streams over TLS: who is believed, what is said when somebody is not, and bytes through it
 * all. The certificates are made here, the server is a thread of this program. SIGPIPE is left as it is. */
#include <ftw.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/stat.h>

#include "tls_peer.h"

/* ---- system calls of the stream, counted; the server's OpenSSL uses read and write ---- */

static atomic_int sends, recvs;

ssize_t send(int fd, const void *data, size_t len, int flags) {
    sends++;
    return sendto(fd, data, len, flags, NULL, 0);
}

ssize_t recv(int fd, void *to, size_t room, int flags) {
    recvs++;
    return recvfrom(fd, to, room, flags, NULL, NULL);
}

static identity authority, stranger, server, client;

static void make_all(void) {
    strcpy(folder, "/tmp/mw-tls-XXXXXX");
    if (!mkdtemp(folder)) abort();
    authority = make_identity("Test Authority", NULL, NULL, -10, 10);
    stranger = make_identity("Somebody Else", NULL, NULL, -10, 10);
    server = make_identity("db.test", "DNS:db.test,IP:127.0.0.1", &authority, -10, 10);
    client = make_identity("client seven", "DNS:client", &authority, -10, 10);
    save_cert(&authority, "ca.pem");
    save_cert(&stranger, "stranger.pem");
    save_cert(&client, "client.pem");
    save_key(&client, "client.key", NULL);
    save_key(&client, "secret.key", "a password");
    save_key(&server, "other.key", NULL);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at) {
    (void)st, (void)type, (void)at;
    return remove(path);
}

static void forget_all(void) {
    forget_identity(&authority);
    forget_identity(&stranger);
    forget_identity(&server);
    forget_identity(&client);
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static mw_stream_options options_for(const tls_peer *p) {
    return (mw_stream_options){.hosts = p->at.hosts, .tls = {.on = true, .ca = file_of("ca.pem")}};
}

/* Connects once to a server with that certificate: what it says, or "" when it came up. */
static const char *verdict_on(const identity *who, mw_stream_options o, const char *host) {
    static char text[MW_ERROR_TEXT];
    char hosts[100];
    tls_peer p;
    owner own = {.greeting = "hello"};
    set_up_tls_peer(&p, ECHO, who);
    start_tls_peer(&p);
    snprintf(hosts, sizeof hosts, "%s:%d", host, p.at.port);
    o.hosts = hosts;
    o.tls.on = true;
    open_with(&own, o);
    UNTIL(own.downs || own.got_len == 5);
    snprintf(text, sizeof text, "%s", own.downs ? own.why.text : "");
    end_owner(&own);
    end_tls_peer(&p);
    return text;
}

/* ---- who is believed ---- */

static void test_believed(void) {
    mw_stream_options o = {.tls = {.ca = file_of("ca.pem")}};
    CHECK(!*verdict_on(&server, o, "127.0.0.1"), "by its address");
    o.tls.name = "db.test";
    CHECK(!*verdict_on(&server, o, "127.0.0.1"), "by its name");
    identity local = make_identity("x", "DNS:localhost", &authority, -1, 1);
    o.tls.name = NULL;
    CHECK(!*verdict_on(&local, o, "localhost"), "by the host's name");
    identity wild = make_identity("x", "DNS:*.wild.test", &authority, -1, 1);
    o.tls.name = "a.wild.test";
    CHECK(!*verdict_on(&wild, o, "127.0.0.1"), "by a wildcard");
    o.tls.name = "a.b.wild.test";
    CHECK(has(verdict_on(&wild, o, "127.0.0.1"), "is for *.wild.test"), "that spans one label");
    forget_identity(&local);
    forget_identity(&wild);
}

static void test_wrong_name(void) {
    identity other =
        make_identity("other.test", "DNS:other.test,DNS:more.test,IP:10.1.2.3", &authority, -1, 1);
    identity old = make_identity("db.test", "", &authority, -1, 1);
    mw_stream_options o = {.tls = {.ca = file_of("ca.pem"), .name = "db.test"}};
    CHECK(has(verdict_on(&other, o, "127.0.0.1"),
              "certificate of db.test is for other.test, more.test, 10.1.2.3"),
          "name");
    o.tls.name = NULL;
    CHECK(has(verdict_on(&other, o, "127.0.0.1"), "certificate of 127.0.0.1 is for other.test"), "address");
    o.tls.name = "db.test";
    CHECK(!*verdict_on(&old, o, "127.0.0.1"), "without alternative names the common one counts");
    o.tls.name = "db.tes";
    CHECK(has(verdict_on(&old, o, "127.0.0.1"), "certificate of db.tes is for db.test"), "and is told");
    forget_identity(&other);
    forget_identity(&old);
}

static void test_wrong_time(void) {
    identity expired = make_identity("db.test", "DNS:db.test", &authority, -9, -2);
    identity early = make_identity("db.test", "DNS:db.test", &authority, 2, 9);
    identity old_authority = make_identity("Old Authority", NULL, NULL, -9, -2);
    identity its = make_identity("db.test", "DNS:db.test", &old_authority, -9, 9);
    mw_stream_options o = {.tls = {.ca = file_of("ca.pem"), .name = "db.test"}};
    char day[80];
    time_t when = time(NULL) - 2 * 86400;
    CHECK(strftime(day, sizeof day, "certificate of db.test expired on %Y-%m-%d", gmtime(&when)), "the day");
    CHECK(has(verdict_on(&expired, o, "127.0.0.1"), day), "expired");
    CHECK(has(verdict_on(&early, o, "127.0.0.1"), "is not valid before"), "early");
    save_cert(&old_authority, "old.pem");
    o.tls.ca = file_of("old.pem");
    CHECK(has(verdict_on(&its, o, "127.0.0.1"), "that of its authority Old Authority expired on"),
          "authority");
    forget_identity(&expired);
    forget_identity(&early);
    forget_identity(&old_authority);
    forget_identity(&its);
}

static void test_unknown_authority(void) {
    identity own = make_identity("db.test", "DNS:db.test", NULL, -1, 1);
    mw_stream_options o = {.tls = {.name = "db.test"}};
    CHECK(has(verdict_on(&server, o, "127.0.0.1"), "unknown authority, \"Test Authority\": give ?ca=FILE"),
          "system's");
    o.tls.ca = file_of("stranger.pem");
    CHECK(has(verdict_on(&server, o, "127.0.0.1"), "the one given does not have it"), "another's");
    CHECK(has(verdict_on(&own, o, "127.0.0.1"), "unknown authority, \"db.test\""), "its own");
    o.tls = (mw_tls_options){.insecure = true};
    CHECK(!*verdict_on(&own, o, "127.0.0.1"), "insecure takes anything");
    forget_identity(&own);
}

static void test_folder_of_authorities(void) {
    char name[40];
    mkdir(file_of("plain"), 0700);
    mkdir(file_of("hashed"), 0700);
    mkdir(file_of("empty"), 0700);
    save_cert(&stranger, "plain/one.crt");
    save_cert(&authority, "plain/two.pem");
    snprintf(name, sizeof name, "hashed/%08lx.0",
             X509_NAME_hash_ex(X509_get_subject_name(authority.cert), NULL, NULL, NULL));
    save_cert(&authority, name);
    mw_stream_options o = {.tls = {.ca = file_of("plain")}};
    CHECK(!*verdict_on(&server, o, "127.0.0.1"), "files as they are");
    o.tls.ca = file_of("hashed");
    CHECK(!*verdict_on(&server, o, "127.0.0.1"), "files by hash");
}

static void test_our_certificate(void) {
    for (int version = TLS1_2_VERSION; version <= TLS1_3_VERSION; version++) {
        tls_peer p;
        set_up_tls_peer(&p, ECHO, &server);
        SSL_CTX_set_min_proto_version(p.context, version);
        SSL_CTX_set_max_proto_version(p.context, version);
        SSL_CTX_load_verify_file(p.context, file_of("ca.pem"));
        SSL_CTX_set_verify(p.context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
        start_tls_peer(&p);
        owner with = {.greeting = "hello"}, without = {.greeting = "hello"};
        mw_stream_options o = options_for(&p);
        open_with(&without, o);
        UNTIL(without.downs);
        CHECK(has(without.why.text, "?cert=FILE&key=FILE"), "%s", without.why.text);
        end_owner(&without);
        o.tls.cert = file_of("client.pem");
        o.tls.key = file_of("client.key");
        open_with(&with, o);
        UNTIL(with.got_len == 5);
        EQUAL(0, with.downs);
        CHECK(strcmp(p.client, "client seven") == 0, "\"%s\"", p.client);
        mw_peer look;
        mw_stream_look(with.s, "it", &look);
        CHECK(strcmp(look.tls, version == TLS1_2_VERSION ? "TLSv1.2" : "TLSv1.3") == 0, "%s", look.tls);
        end_owner(&with);
        end_tls_peer(&p);
    }
}

static void test_stranger_as_client(void) {
    identity foreign = make_identity("foreign", "DNS:foreign", &stranger, -1, 1);
    tls_peer p;
    save_cert(&foreign, "foreign.pem");
    save_key(&foreign, "foreign.key", NULL);
    set_up_tls_peer(&p, ECHO, &server);
    SSL_CTX_load_verify_file(p.context, file_of("ca.pem"));
    SSL_CTX_set_verify(p.context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    start_tls_peer(&p);
    owner o = {.greeting = "hello"};
    mw_stream_options options = options_for(&p);
    options.tls.cert = file_of("foreign.pem");
    options.tls.key = file_of("foreign.key");
    open_with(&o, options);
    UNTIL(o.downs);
    CHECK(has(o.why.text, "does not know the authority of our certificate"), "%s", o.why.text);
    end_owner(&o);
    end_tls_peer(&p);
    forget_identity(&foreign);
}

/* Certificates are renewed on disk: the next connection uses them. */
static void test_renewed_files(void) {
    tls_peer p;
    owner o = {.greeting = "hello", .content = true};
    set_up_tls_peer(&p, CUT, &server);
    start_tls_peer(&p);
    save_cert(&stranger, "renewed.pem");
    mw_stream_options options = options_for(&p);
    options.tls.ca = file_of("renewed.pem");
    open_with(&o, options);
    UNTIL(o.downs == 2);
    CHECK(has(o.why.text, "unknown authority"), "%s", o.why.text);
    save_cert(&authority, "renewed.pem");
    UNTIL(o.ups == 2);
    FILE *f = fopen(file_of("renewed.pem"), "w"); /* half written: the old one stays */
    fputs("nothing\n", f);
    fclose(f);
    UNTIL(o.ups == 4);
    end_owner(&o);
    end_tls_peer(&p);
}

static void test_files(void) {
    FILE *f = fopen(file_of("nothing.pem"), "w");
    fputs("nothing of use\n", f);
    fclose(f);
    static const struct {
        const char *ca, *cert, *key, *said;
    } bad[] = {
        {"missing.pem", NULL, NULL, "missing.pem: No such file"},
        {"nothing.pem", NULL, NULL, "nothing.pem: no certificates in it"},
        {"empty", NULL, NULL, "the folder has no certificates"},
        {"ca.pem", "missing.pem", "client.key", "missing.pem: no certificate in it"},
        {"ca.pem", "nothing.pem", "client.key", "nothing.pem: no certificate in it"},
        {"ca.pem", "client.pem", "missing.key", "missing.key: no private key"},
        {"ca.pem", "client.pem", "secret.key", "without a password"},
        {"ca.pem", "client.pem", "other.key", "does not belong"},
        {"ca.pem", "client.pem", NULL, "give key=FILE"},
        {"ca.pem", NULL, "client.key", "needs cert=FILE"},
    };
    mkdir(file_of("empty"), 0700);
    owner o = {0};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mw_error e = {0};
        mw_stream_options options = {.hosts = "h:1", .tls = {.on = true, .ca = file_of(bad[i].ca)}};
        if (bad[i].cert) options.tls.cert = file_of(bad[i].cert);
        if (bad[i].key) options.tls.key = file_of(bad[i].key);
        mw_stream *s = mw_stream_open(loop, &options, &events, &o, &e);
        CHECK(!s && has(e.text, bad[i].said), "%zu: %s", i, e.text);
        EQUAL(MW_EUSAGE, e.code);
        mw_stream_close(s);
    }
    mw_error e = {0};
    mw_stream_options options = {.hosts = "/tmp/x.sock", .tls = {.on = true}};
    CHECK(!mw_stream_open(loop, &options, &events, &o, &e) && has(e.text, "tls_name"), "%s", e.text);
}

static void test_url_options(void) {
    mw_url u;
    mw_error e;
    mw_tls_options t = {.on = true};
    EQUAL(0, mw_url_parse(&u, "x://h/?ca=%2Fa&cert=b&key=c&tls_name=d&insecure=true", &e));
    EQUAL(0, mw_tls_from_url(&u, &t, &e));
    CHECK(!strcmp(t.ca, "/a") && !strcmp(t.cert, "b") && !strcmp(t.key, "c") && !strcmp(t.name, "d") &&
              t.insecure,
          "all");
    t = (mw_tls_options){0};
    CHECK(mw_tls_from_url(&u, &t, &e) && has(e.text, "option ca is for TLS, and x: is without"), "%s",
          e.text);
    mw_url_free(&u);
    mw_url_parse(&u, "x://h/?insecure=yes", &e);
    t = (mw_tls_options){.on = true};
    CHECK(mw_tls_from_url(&u, &t, &e) && has(e.text, "insecure=yes: expected true or false"), "%s", e.text);
    mw_url_free(&u);
    mw_url_parse(&u, "x://h/", &e);
    EQUAL(0, mw_tls_from_url(&u, &t, &e));
    CHECK(!t.ca && !t.cert && !t.key && !t.name && !t.insecure, "none");
    mw_url_free(&u);
}

/* ---- who speaks no TLS, or none that is good enough ---- */

static void test_old_versions(void) {
    tls_peer p;
    owner o = {0};
    set_up_tls_peer(&p, ECHO, &server);
    SSL_CTX_set_security_level(p.context, 0);
    SSL_CTX_set_min_proto_version(p.context, TLS1_VERSION);
    SSL_CTX_set_max_proto_version(p.context, TLS1_1_VERSION);
    start_tls_peer(&p);
    open_with(&o, options_for(&p));
    UNTIL(o.downs == 2);
    EQUAL(0, o.ups);
    CHECK(has(o.why.text, "speaks no TLS 1.2 or newer"), "%s", o.why.text);
    end_owner(&o);
    end_tls_peer(&p);
}

static void expect_refusal(manner how, int64_t connect_ms, const char *said) {
    tls_peer p;
    owner o = {0};
    set_up_tls_peer(&p, how, &server);
    start_tls_peer(&p);
    mw_stream_options options = options_for(&p);
    options.connect_ms = connect_ms;
    open_with(&o, options);
    UNTIL(o.downs == 1);
    EQUAL(0, o.ups);
    CHECK(has(o.why.text, said) && has(o.why.text, p.at.hosts), "%s", o.why.text);
    end_owner(&o);
    end_tls_peer(&p);
}

static void test_no_tls_at_all(void) {
    expect_refusal(PLAIN, 0, "does not speak TLS on this port");
    expect_refusal(CLOSER, 0, "closed the connection during the TLS handshake");
    expect_refusal(SILENT, 200, "does not answer the TLS handshake (0.2 s)");
}

/* ---- bytes ---- */

static void echo_much(manner how, size_t size) {
    char *data = malloc(size);
    tls_peer p;
    owner o = {0};
    set_up_tls_peer(&p, how, &server);
    start_tls_peer(&p);
    for (size_t i = 0; i < size; i++) data[i] = (char)rnd(256);
    open_with(&o, options_for(&p));
    UNTIL(o.ups);
    for (size_t at = 0; at < size;) {
        size_t n = 1 + rnd(200000);
        if (n > size - at) n = size - at;
        mw_stream_write(o.s, data + at, n);
        at += n;
        mw_loop_step(loop, 0);
        UNTIL(mw_stream_pending(o.s) < 1 << 18);
    }
    UNTIL(o.got_len == size);
    CHECK(memcmp(o.got, data, size) == 0, "the same bytes");
    EQUAL(0, o.downs);
    mw_peer look;
    mw_stream_look(o.s, "it", &look);
    CHECK(look.tls && strcmp(look.tls, "TLSv1.3") == 0 && look.bytes_out > size, "%s", look.tls);
    free(data);
    end_owner(&o);
    end_tls_peer(&p);
}

static void test_much(void) { echo_much(ECHO, 8 << 20); }
static void test_crumbs(void) { echo_much(CRUMBS, 20000); }
static void test_new_keys(void) { echo_much(REKEY, 1 << 20); }

static void test_renegotiation(void) {
    tls_peer p;
    owner o = {.greeting = "hello"};
    set_up_tls_peer(&p, AGAIN, &server);
    SSL_CTX_set_max_proto_version(p.context, TLS1_2_VERSION);
    start_tls_peer(&p);
    open_with(&o, options_for(&p));
    UNTIL(o.downs || o.got_len == 5); /* it is refused; what the server makes of that is its own affair */
    EQUAL(1, p.shaken);
    end_owner(&o);
    end_tls_peer(&p);
}

static void test_system_calls(void) {
    tls_peer p;
    owner o = {0};
    set_up_tls_peer(&p, ECHO, &server);
    start_tls_peer(&p);
    open_with(&o, options_for(&p));
    UNTIL(o.ups && p.shaken);
    mw_stream_write(o.s, "first", 5);
    UNTIL(o.got_len == 5);
    turns(50); /* tickets */
    sends = recvs = 0;
    for (size_t i = 1; i <= 100; i++) {
        mw_stream_write(o.s, "01234", 5);
        mw_stream_write(o.s, "56789", 5);
        UNTIL(o.got_len == 5 + 10 * i);
    }
    EQUAL(100, sends);
    EQUAL(100, recvs);
    sends = 0;
    static char block[200 << 10];
    mw_stream_write(o.s, block, sizeof block); /* thirteen records */
    mw_loop_step(loop, 0);
    EQUAL(1, sends);
    UNTIL(o.got_len == 1005 + sizeof block);
    end_owner(&o);
    end_tls_peer(&p);
}

/* ---- ends ---- */

static void expect_end(manner how, mw_tls_options tls) {
    tls_peer p;
    owner o = {.greeting = "hello", .content = true};
    set_up_tls_peer(&p, how, &server);
    start_tls_peer(&p);
    open_with(&o, (mw_stream_options){.hosts = p.at.hosts, .tls = tls});
    UNTIL(o.downs == 1);
    EQUAL(5, o.got_len); /* what came before is seen */
    CHECK(has(o.why.text, "the server closed the connection"), "%s", o.why.text);
    end_owner(&o);
    end_tls_peer(&p);
}

static void test_ends(void) {
    expect_end(CUT, (mw_tls_options){.on = true, .ca = file_of("ca.pem")});
    expect_end(GOODBYE, (mw_tls_options){.on = true, .ca = file_of("ca.pem")});
    expect_end(CUT, (mw_tls_options){.on = true, .insecure = true}); /* not the certificate's fault */
}

static void test_peer_stops_reading(void) {
    static char block[1 << 16];
    tls_peer p;
    owner o = {0};
    set_up_tls_peer(&p, DEAF, &server);
    start_tls_peer(&p);
    mw_stream_options options = options_for(&p);
    options.write_ms = 300;
    options.retry_ms = options.retry_cap_ms = 60000;
    open_with(&o, options);
    UNTIL(o.ups);
    for (int64_t began = now_ms(); !mw_stream_full(o.s) && now_ms() - began < 20000;) {
        mw_stream_write(o.s, block, sizeof block);
        mw_loop_step(loop, 0);
    }
    UNTIL(o.downs == 1);
    CHECK(has(o.why.text, "took nothing for 0.3 s") || has(o.why.text, "does not answer"), "%s", o.why.text);
    end_owner(&o);
    end_tls_peer(&p);
}

static void test_sessions_are_reused(void) {
    tls_peer p;
    owner o = {.greeting = "hello", .content = true};
    set_up_tls_peer(&p, CUT, &server);
    start_tls_peer(&p);
    open_with(&o, options_for(&p));
    UNTIL(o.downs == 4);
    EQUAL(20, o.got_len);
    CHECK(p.reused >= 3, "%d of %d", p.reused, p.shaken);
    end_owner(&o);
    end_tls_peer(&p);
}

static void test_close_at_any_time(void) {
    tls_peer p;
    set_up_tls_peer(&p, ECHO, &server);
    start_tls_peer(&p);
    for (int i = 0; i < 40; i++) {
        owner o = {.greeting = "hello"};
        open_with(&o, options_for(&p));
        for (int k = 0; k < i; k++) mw_loop_step(loop, 1);
        end_owner(&o);
    }
    owner up = {.close_on_up = true}, in = {.greeting = "x", .close_on_input = true};
    open_with(&up, options_for(&p));
    UNTIL(up.ups);
    open_with(&in, options_for(&p));
    UNTIL(in.inputs);
    turns(20);
    EQUAL(0, up.downs + in.downs);
    end_owner(&in);
    end_tls_peer(&p);
}

static const test tests[] = {{"believed", test_believed},
                             {"wrong_name", test_wrong_name},
                             {"wrong_time", test_wrong_time},
                             {"unknown_authority", test_unknown_authority},
                             {"folder_of_authorities", test_folder_of_authorities},
                             {"our_certificate", test_our_certificate},
                             {"stranger_as_client", test_stranger_as_client},
                             {"renewed_files", test_renewed_files},
                             {"files", test_files},
                             {"url_options", test_url_options},
                             {"old_versions", test_old_versions},
                             {"no_tls_at_all", test_no_tls_at_all},
                             {"much", test_much},
                             {"crumbs", test_crumbs},
                             {"new_keys", test_new_keys},
                             {"renegotiation", test_renegotiation},
                             {"system_calls", test_system_calls},
                             {"ends", test_ends},
                             {"peer_stops_reading", test_peer_stops_reading},
                             {"sessions_are_reused", test_sessions_are_reused},
                             {"close_at_any_time", test_close_at_any_time},
                             {0}};

int main(int argc, char **argv) {
    alarm(220);
    make_all();
    loop = mw_loop_new();
    int code = run_tests(tests, argc, argv);
    mw_loop_free(loop);
    forget_all();
    return code;
}
