/* door.h - where the control sockets of a project's processes are, and how a command gets through one. For
 * the CLI; its calls wait, so they have no business on a worker's loop. Lua functions of moonwire.core:
 *     control_path(project) -> path | nil, text         for this process
 *     control_sockets(project) -> { path... } | nil, text  of every process that runs the project
 *     control_call(path, line, seconds) -> reply | nil, text */
#pragma once
#include <lua.h>

int mw_door_path(lua_State *L);
int mw_door_sockets(lua_State *L);
int mw_door_call(lua_State *L);
