/* core.h - the one loop of this process, and the C module "moonwire.core" that every state has. */
#pragma once
#include <lua.h>

#include "loop/loop.h"

int luaopen_moonwire_core(lua_State *L); /* runtime/module.c */
mw_loop *mw_core_loop(void);             /* the one loop of this process, made on first use */
void mw_core_shutdown(void);             /* at exit: everything that is left is freed */
