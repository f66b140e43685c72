/* report.h - a running pipeline as Lua tables: what `moonwire status` and `moonwire explain` are answered
 * with. Times are in seconds; what is not known is left out. Each pushes one table. */
#pragma once
#include <lua.h>

#include "core/tally.h"
#include "pipeline/pipeline.h"

void mw_report_status(lua_State *L, mw_pipeline *p);
/* From the figures alone, as they were at the last look. */
void mw_report_tally(lua_State *L, const mw_tally *t, const char *name, const char *channel);
void mw_report_explain(lua_State *L, mw_pipeline *p, const char *what, size_t len); /* a key, or an id */
