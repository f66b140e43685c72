# Every spec/unit/c/NAME_test.c is a program of its own over the whole runtime, built on demand by the target
# c_tests into <build>/c-tests/. It passes with exit code 0 and is skipped with 77.
function(add_c_tests)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/spec/unit/c/*_test.c)
  add_custom_target(c_tests)
  foreach(source IN LISTS sources)
    get_filename_component(name ${source} NAME_WE)
    add_executable(${name} EXCLUDE_FROM_ALL ${source})
    # A release build must not compile the asserts of a test away.
    target_compile_options(${name} PRIVATE -UNDEBUG)
    target_link_libraries(${name} PRIVATE mw_core)
    if(MW_LTO)
      set_target_properties(${name} PROPERTIES INTERPROCEDURAL_OPTIMIZATION OFF)
      target_link_options(${name} PRIVATE -fno-lto)
    endif()
    set_target_properties(${name} PROPERTIES ENABLE_EXPORTS ON RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/c-tests)
    add_dependencies(c_tests ${name})
  endforeach()
  # Preloaded into the programs of spec/faults.
  add_library(failing_disk MODULE EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/spec/support/failing_disk.c)
  set_target_properties(failing_disk PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/c-tests)
  add_dependencies(c_tests failing_disk)
endfunction()
