# Puts the Lua library into the binary as text: lua/**/*.lua, handlers/*.lua and the FFI header that both
# languages share. The result is one C file with a table of { name, bytes, length } (runtime/lua/embedded.h).
function(embed_lua out)
  file(GLOB_RECURSE files CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/lua/*.lua
       ${PROJECT_SOURCE_DIR}/handlers/*.lua ${PROJECT_SOURCE_DIR}/runtime/core/parts.h
       ${PROJECT_SOURCE_DIR}/runtime/core/backoff.h ${PROJECT_SOURCE_DIR}/runtime/core/spec.h
       ${PROJECT_SOURCE_DIR}/runtime/lua/ffi_api.h)
  list(SORT files)
  set(generated ${PROJECT_BINARY_DIR}/embedded_lua.c)
  set(inputs ${files})
  list(TRANSFORM inputs PREPEND ${PROJECT_SOURCE_DIR}/)
  string(REPLACE ";" "|" joined "${files}")
  add_custom_command(OUTPUT ${generated}
    COMMAND ${CMAKE_COMMAND} -DROOT=${PROJECT_SOURCE_DIR} -DFILES=${joined} -DOUT=${generated}
            -P ${PROJECT_SOURCE_DIR}/cmake/embed.cmake
    DEPENDS ${inputs} ${PROJECT_SOURCE_DIR}/cmake/embed.cmake VERBATIM)
  set(${out} ${generated} PARENT_SCOPE)
endfunction()
