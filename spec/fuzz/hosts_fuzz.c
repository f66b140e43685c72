/* hosts_fuzz.c - libFuzzer target: the parser of host lists, and as a pattern for the parsers of drivers the
 * example of frames.h, fed as a stream feeds it. */
#include "frames.h"
#include "net/hosts.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_hosts(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    mw_hosts hosts = {0};
    mw_error e = {0};
    if (!text) abort();
    memcpy(text, data, size);
    text[size] = 0;
    int bad = mw_hosts_parse(&hosts, text, 1, &e);
    if (bad ? !e.text[0] || hosts.count : !hosts.count) feed_die("neither hosts nor an error");
    for (unsigned i = 0; i < hosts.count; i++) {
        int port = hosts.list[i].port;
        if (!hosts.list[i].name[0] || (!hosts.unix_socket && (port < 1 || port > 65535)))
            feed_die("a host without a name or port");
    }
    mw_hosts_free(&hosts);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    check_hosts(data, size);
    return feed(&frames_parser, data, size);
}
