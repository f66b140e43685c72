# What the benchmarks need in C, built on demand by the target bench_tools into <build>/bench/: programs of their
# own for each spec/bench/NAME.c, and fill.c, which is loaded into the running binary and resolves against it.
set(bench_dir ${PROJECT_BINARY_DIR}/bench)
add_custom_target(bench_tools)

add_library(bench_fill MODULE EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/spec/bench/fill.c)
target_link_libraries(bench_fill PRIVATE mw_flags PkgConfig::LUAJIT)
set_target_properties(bench_fill PROPERTIES PREFIX "" OUTPUT_NAME fill LIBRARY_OUTPUT_DIRECTORY ${bench_dir})
add_dependencies(bench_tools bench_fill)

foreach(name IN ITEMS raw_lmdb raw_kafka launch)
  add_executable(bench_${name} EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/spec/bench/${name}.c)
  target_link_libraries(bench_${name} PRIVATE mw_flags PkgConfig::LMDB PkgConfig::RDKAFKA)
  set_target_properties(bench_${name} PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${bench_dir})
  add_dependencies(bench_tools bench_${name})
endforeach()
