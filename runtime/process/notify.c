#include "process/notify.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static mw_timer watchdog;
static mw_loop *watched;

static void tell(const char *state) {
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (!path || (*path != '/' && *path != '@') || strlen(path) >= sizeof address.sun_path) return;
    strcpy(address.sun_path, path);
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    if (*path == '@')
        address.sun_path[0] = 0; /* the abstract namespace */
    else
        len++;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&address, len);
    close(fd);
}

/* Half of what systemd allows; 0: nobody watches. */
static int64_t watchdog_ms(void) {
    const char *usec = getenv("WATCHDOG_USEC"), *pid = getenv("WATCHDOG_PID");
    if (!usec || (pid && atol(pid) != (long)getpid())) return 0;
    long long value = atoll(usec);
    return value > 0 ? (value + 1999) / 2000 : 0;
}

static void feed(mw_timer *t) {
    tell("WATCHDOG=1");
    mw_timer_start(watched, t, watchdog_ms(), feed);
}

void mw_notify_ready(mw_loop *loop) {
    tell("READY=1");
    watched = loop;
    if (watchdog_ms() && !mw_timer_running(&watchdog)) feed(&watchdog);
}

void mw_notify_reloading(void) {
    struct timespec now;
    char text[80];
    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(text, sizeof text, "RELOADING=1\nMONOTONIC_USEC=%lld",
             (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000);
    tell(text);
}

void mw_notify_stopping(void) { tell("STOPPING=1"); }

void mw_notify_status(const char *text) {
    char line[256];
    snprintf(line, sizeof line, "STATUS=%s", text);
    tell(line);
}

void mw_notify_end(void) { mw_timer_stop(&watchdog); }
