/* report.h - a running pipeline as Lua tables: what `moonwire status` and `moonwire explain` are answered
 * with. Times are in seconds; what is not known is left out. Each pushes one table. */
#pragma once
#include <lua.h>

#include "core/link.h"
#include "core/shared/tally.h"
#include "pipeline/pipeline.h"

void mw_report_status(lua_State *L, mw_pipeline *p);
/* From the figures alone, as they were at the last look. */
void mw_report_tally(lua_State *L, const mw_tally *t, const char *name, const char *channel);
void mw_report_explain(lua_State *L, mw_pipeline *p, const char *what, size_t len); /* a key, or an id */

/* Appends to the table on top: one for each connection of the link to a server. */
void mw_report_connections(lua_State *L, const mw_link *l, int64_t now_ms);
void mw_report_peers(lua_State *L, const char *broker, const mw_peer *peers, size_t count, int64_t now_ms);
