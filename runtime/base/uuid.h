/* uuid.h - version 7 UUIDs: they sort by time, which keeps stores and indexes compact. */
#pragma once
#include <stdint.h>

enum { MW_UUID_TEXT = 37 }; /* with the NUL */
void mw_uuid(char out[MW_UUID_TEXT]);
uint64_t mw_random64(void); /* from the kernel, buffered; loop thread only */
