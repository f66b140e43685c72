# What the benchmarks need in C, built on demand by the target bench_tools into <build>/bench/: programs of their
# own for each spec/bench/c/NAME.c, and fill.c, which is loaded into the running binary and resolves against it.
set(bench_dir ${PROJECT_BINARY_DIR}/bench)
add_custom_target(bench_tools)

add_library(bench_fill MODULE EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/spec/bench/c/fill.c)
target_link_libraries(bench_fill PRIVATE mw_flags PkgConfig::LUAJIT)
set_target_properties(bench_fill PROPERTIES PREFIX "" OUTPUT_NAME fill LIBRARY_OUTPUT_DIRECTORY ${bench_dir})
add_dependencies(bench_tools bench_fill)

foreach(name IN ITEMS raw_lmdb raw_kafka launch)
  add_executable(bench_${name} EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/spec/bench/c/${name}.c)
  target_link_libraries(bench_${name} PRIVATE mw_flags PkgConfig::LMDB PkgConfig::RDKAFKA)
  set_target_properties(bench_${name} PROPERTIES OUTPUT_NAME ${name} RUNTIME_OUTPUT_DIRECTORY ${bench_dir})
  add_dependencies(bench_tools bench_${name})
endforeach()

# The one that needs the runtime.
add_executable(bench_stream_echo EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/spec/bench/c/stream_echo.c)
target_link_libraries(bench_stream_echo PRIVATE mw_core)
set_target_properties(bench_stream_echo PROPERTIES OUTPUT_NAME stream_echo RUNTIME_OUTPUT_DIRECTORY ${bench_dir} ENABLE_EXPORTS ON)
add_dependencies(bench_tools bench_stream_echo)

# The floor under the Redis driver; without hiredis that group is skipped.
pkg_check_modules(HIREDIS QUIET IMPORTED_TARGET hiredis)
if(HIREDIS_FOUND)
  add_executable(bench_raw_redis EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/spec/bench/c/raw_redis.c)
  target_link_libraries(bench_raw_redis PRIVATE mw_flags PkgConfig::HIREDIS)
  set_target_properties(bench_raw_redis PROPERTIES OUTPUT_NAME raw_redis RUNTIME_OUTPUT_DIRECTORY ${bench_dir})
  add_dependencies(bench_tools bench_raw_redis)
endif()

# The floor under the RabbitMQ driver; without rabbitmq-c that group is skipped.
pkg_check_modules(RABBITMQ QUIET IMPORTED_TARGET librabbitmq)
if(RABBITMQ_FOUND)
  add_executable(bench_raw_rabbitmq EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/spec/bench/c/raw_rabbitmq.c)
  target_link_libraries(bench_raw_rabbitmq PRIVATE mw_flags PkgConfig::RABBITMQ)
  set_target_properties(bench_raw_rabbitmq PROPERTIES OUTPUT_NAME raw_rabbitmq RUNTIME_OUTPUT_DIRECTORY ${bench_dir})
  add_dependencies(bench_tools bench_raw_rabbitmq)
endif()
