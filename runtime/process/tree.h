/* tree.h - a project's files as they stand on disk, and what to watch to learn of changes: its folders; and,
 * where a name is a link, each link on the way to what it names, because `current -> releases/2` changes
 * without a change in any folder of the project. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/inotify.h>

#include "base/buf.h"

typedef struct mw_tree {
    int fd;         /* inotify's */
    mw_buf folders; /* of those of the project: what inotify calls it, and its path */
    mw_buf spots;   /* of names that matter in any folder: links, and what they lead to */
    uint64_t print; /* of all files: another one when any of them is another, or was written */
} mw_tree;

int mw_tree_read(mw_tree *t, const char *dir); /* -1: errno tells why nothing can be watched */
bool mw_tree_concerns(const mw_tree *t, const struct inotify_event *event);
void mw_tree_free(mw_tree *t);
