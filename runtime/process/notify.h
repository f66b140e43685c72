/* notify.h - tells systemd how we are: one datagram to the socket that NOTIFY_SOCKET names, nothing without
 * it. See sd_notify(3). Never blocks, never fails. */
#pragma once
#include "loop/loop.h"

void mw_notify_ready(mw_loop *loop); /* at the start and after a reload; from now on the watchdog is fed */
void mw_notify_reloading(void);
void mw_notify_stopping(void);
void mw_notify_status(const char *text); /* one line, for `systemctl status` */
void mw_notify_end(void);                /* the watchdog is fed no longer */
