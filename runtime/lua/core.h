/* core.h - the C module "moonwire.core": what needs the Lua C API instead of FFI, because it runs the loop or
 * enters another state. */
#pragma once
#include <lua.h>

#include "loop/loop.h"

int luaopen_moonwire_core(lua_State *L);
mw_loop *mw_core_loop(void); /* the one loop of this process, made on first use */
void mw_core_shutdown(void); /* at exit: everything that is left is freed */
