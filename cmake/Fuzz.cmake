# libFuzzer targets (spec/fuzz/NAME_fuzz.c), each with just the files it attacks, built by the preset "fuzz" and its
# target fuzz_tools into <build>/fuzz/. Clang only.
option(MW_FUZZ "Have the target fuzz_tools (with clang)" OFF)
if(NOT MW_FUZZ)
  return()
endif()
add_custom_target(fuzz_tools)

function(add_fuzzer name) # SOURCE..., below runtime/
  list(TRANSFORM ARGN PREPEND ${PROJECT_SOURCE_DIR}/runtime/)
  add_executable(${name}_fuzz EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/spec/fuzz/${name}_fuzz.c ${ARGN})
  target_compile_options(${name}_fuzz PRIVATE -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined)
  target_link_options(${name}_fuzz PRIVATE -fsanitize=fuzzer,address,undefined)
  target_link_libraries(${name}_fuzz PRIVATE mw_flags PkgConfig::LUAJIT m)
  set_target_properties(${name}_fuzz PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/fuzz)
  add_dependencies(fuzz_tools ${name}_fuzz)
endfunction()

file(GLOB json RELATIVE ${PROJECT_SOURCE_DIR}/runtime ${PROJECT_SOURCE_DIR}/runtime/json/*.c)
add_fuzzer(json ${json})
add_fuzzer(hosts net/hosts.c base/error.c)
add_fuzzer(resp redis/resp.c base/buf.c base/error.c)
file(GLOB amqp RELATIVE ${PROJECT_SOURCE_DIR}/runtime ${PROJECT_SOURCE_DIR}/runtime/drivers/amqp/protocol/*.c)
add_fuzzer(amqp ${amqp} core/message.c base/buf.c base/error.c base/hash.c base/text.c base/uuid.c)
add_fuzzer(marks drivers/kafka/consume/marks.c drivers/kafka/consume/marks_text.c base/buf.c base/hash.c base/text.c)
