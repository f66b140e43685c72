/* child.h - another run of this program, beside the loop: a reload's specs, or those of `moonwire test
 * --watch`. It ends with its parent. Lua functions of moonwire.core:
 *     child(argv, options) -> child | nil, text
 *         options.capture: what it writes is kept, and it has a process group of its own; in it descriptor 3
 *         is a file with the text options.files, 4 an empty one for its report
 *     child:poll() -> exit code (128 + signal) | nil while it runs      never waits
 *     child:output(most) -> the end of what it wrote     child:report() -> text
 *     child:kill()
 *     be_child(captured)    in that other run: dies with the parent; captured: writes no endless files */
#pragma once
#include <lua.h>

int mw_child_new(lua_State *L);
int mw_child_be(lua_State *L);
