#include "net/hosts.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

enum { MOST_HOSTS = 64, LONGEST_NAME = 253 };

static int parse_port(const char *text, const char *host, int *out, mw_error *e) {
    char *end;
    long port = *text >= '0' && *text <= '9' ? strtol(text, &end, 10) : 0;
    if (port < 1 || port > 65535 || *end)
        return mw_fail(e, MW_EUSAGE, false, "\"%s\" is no port of \"%s\": expected 1 to 65535", text, host);
    *out = (int)port;
    return 0;
}

static int parse_bracketed(char *text, mw_host_name *out, mw_error *e) {
    char *end = strchr(text, ']');
    struct in6_addr address;
    if (!end) return mw_fail(e, MW_EUSAGE, false, "\"%s\": the ] after the IPv6 address is missing", text);
    *end = 0;
    out->name = text + 1;
    char *zone = strchr(text, '%'); /* fe80::1%eth0 */
    if (zone) *zone = 0;
    bool good = inet_pton(AF_INET6, out->name, &address) == 1;
    if (zone) *zone = '%';
    if (!good) return mw_fail(e, MW_EUSAGE, false, "\"%s\" is no IPv6 address", out->name);
    if (!end[1]) return 0;
    if (end[1] != ':')
        return mw_fail(e, MW_EUSAGE, false, "\"%s\" after [%s]: expected :PORT", end + 1, out->name);
    return parse_port(end + 2, out->name, &out->port, e);
}

static int check_name(const char *name, mw_error *e) {
    if (!*name)
        return mw_fail(e, MW_EUSAGE, false, "an empty host name: expected host[:port],host[:port]...");
    if (strlen(name) > LONGEST_NAME)
        return mw_fail(e, MW_EUSAGE, false, "host name \"%.40s...\" is longer than %d characters", name,
                       LONGEST_NAME);
    for (const char *c = name; *c; c++) {
        bool letter = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9');
        if (!letter && !strchr("-._", *c) && (unsigned char)*c < 0x80)
            return mw_fail(e, MW_EUSAGE, false, "\"%s\" is no host name: it has a \"%c\"", name,
                           (unsigned char)*c < ' ' ? '?' : *c);
    }
    return 0;
}

static int parse_host(char *text, mw_host_name *out, mw_error *e) {
    if (*text == '[') return parse_bracketed(text, out, e);
    char *colon = strchr(text, ':');
    out->name = text;
    if (colon && strchr(colon + 1, ':'))
        return mw_fail(e, MW_EUSAGE, false, "\"%s\": an IPv6 address is written in brackets, [%s]", text,
                       text);
    if (colon) *colon = 0;
    if (check_name(text, e)) return -1;
    return colon ? parse_port(colon + 1, text, &out->port, e) : 0;
}

static int parse_path(mw_hosts *h, mw_error *e) {
    size_t most = sizeof((struct sockaddr_un *)0)->sun_path - 1;
    if (strlen(h->space) > most)
        return mw_fail(e, MW_EUSAGE, false, "the path of a Unix socket has at most %zu bytes: %s", most,
                       h->space);
    h->unix_socket = true;
    h->list[h->count++] = (mw_host_name){.name = h->space};
    return 0;
}

static int parse(mw_hosts *h, int default_port, mw_error *e) {
    if (h->space[0] == '/') return parse_path(h, e);
    for (char *text = h->space, *next; text; text = next) {
        next = strchr(text, ',');
        if (next) *next++ = 0;
        if (h->count == MOST_HOSTS) return mw_fail(e, MW_EUSAGE, false, "more than %d hosts", MOST_HOSTS);
        h->list[h->count].port = default_port;
        if (parse_host(text, &h->list[h->count++], e)) return -1;
    }
    return 0;
}

int mw_hosts_parse(mw_hosts *h, const char *text, int default_port, mw_error *e) {
    mw_hosts made = {.space = strdup(text ? text : ""), .list = calloc(MOST_HOSTS, sizeof *made.list)};
    if (!made.space || !made.list) abort();
    if (parse(&made, default_port, e)) {
        mw_hosts_free(&made);
        return -1;
    }
    mw_hosts_free(h);
    *h = made;
    return 0;
}

void mw_hosts_free(mw_hosts *h) {
    free(h->list);
    free(h->space);
    *h = (mw_hosts){0};
}
