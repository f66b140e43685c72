# Debian ships no libev.pc.
find_path(LIBEV_INCLUDE_DIR ev.h)
find_library(LIBEV_LIBRARY ev)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Libev REQUIRED_VARS LIBEV_LIBRARY LIBEV_INCLUDE_DIR)
if(Libev_FOUND AND NOT TARGET Libev::Libev)
  add_library(Libev::Libev UNKNOWN IMPORTED)
  set_target_properties(Libev::Libev PROPERTIES IMPORTED_LOCATION ${LIBEV_LIBRARY}
                        INTERFACE_INCLUDE_DIRECTORIES ${LIBEV_INCLUDE_DIR})
endif()
