/* nearest.h - the right name for a misspelt one, for error messages. */
#pragma once

/* The nearest of a NULL-terminated list, or NULL when none is near enough to be meant. */
const char *mw_nearest(const char *word, const char *const *list);
