/* report.h - a running pipeline as Lua tables: what `moonwire status` and `moonwire explain` are answered
 * with. Times are in seconds; what is not known is left out. Both push one table. */
#pragma once
#include <lua.h>

#include "pipeline/pipeline.h"

void mw_report_status(lua_State *L, mw_pipeline *p);
void mw_report_explain(lua_State *L, mw_pipeline *p, const char *what, size_t len); /* a key, or an id */
