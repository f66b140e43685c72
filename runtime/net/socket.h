/* socket.h - the system calls: non-blocking sockets with the options every stream wants. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "net/peer.h"
#include "net/resolver.h"

/* Begins to connect. The descriptor, or -1; *connected when it already is. unanswered_ms: how long the kernel
 * sends again what is not acknowledged. */
int mw_socket_connect(const mw_address *to, int64_t unanswered_ms, bool *connected, mw_error *e);
int mw_socket_connected(int fd, mw_error *e); /* it is writable: 0, or -1 and why it came to nothing */

/* Both: how many bytes, 0 when it would block, -1 when the connection is over. */
ssize_t mw_socket_read(int fd, void *to, size_t room, mw_error *e);
ssize_t mw_socket_write(int fd, const void *data, size_t len, mw_error *e);

int mw_socket_queued(int fd); /* bytes that the kernel took and the peer's did not; -1: unknown */

void mw_address_path(const char *path, mw_address *out); /* of a Unix socket; its length was checked */
void mw_address_text(const mw_address *a, char out[MW_ADDRESS_TEXT]);
