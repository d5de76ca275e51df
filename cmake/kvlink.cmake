# Functions with which rooms and tests declare themselves. A room's CMakeLists.txt is
#
#   kvlink_room(pool SOURCES page_pool.cc DEPS base)
#   kvlink_test(pool_test SOURCES page_pool_test.cc DEPS pool)
#
# The table of who may depend on whom is tests/arch/rooms.toml; the `arch` test checks both the
# includes and these DEPS against it.
include_guard()

# Python of the set-up when it is there: it has what the tests need.
find_program(KVLINK_PYTHON python3 PATHS ${PROJECT_SOURCE_DIR}/.deps/venv/bin NO_DEFAULT_PATH)
find_program(KVLINK_PYTHON python3 REQUIRED)

function(kvlink_add_directory_if_present dir)
  if(EXISTS ${PROJECT_SOURCE_DIR}/${dir}/CMakeLists.txt)
    add_subdirectory(${PROJECT_SOURCE_DIR}/${dir})
  endif()
endfunction()

# Compile options of everything that the calling directory adds afterwards: warnings, baseline,
# sanitizers. Floating-point contraction is off, because a fused multiply-add that the compiler
# chooses in one loop and not in its remainder would make bits depend on the number of rows.
macro(kvlink_own_code_options)
  add_compile_options(
    -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-align
    -Wno-missing-field-initializers -ffp-contract=off -fno-omit-frame-pointer)
  if(KVLINK_MARCH)
    add_compile_options(-march=${KVLINK_MARCH})
  endif()
  if(KVLINK_WERROR)
    add_compile_options(-Werror)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # False alarms of gcc 12 inside libstdc++ at -O2 and above (GCC bugs 105329, 105651, 105562).
    add_compile_options(-Wno-restrict -Wno-error=stringop-overflow -Wno-error=stringop-overread
                        -Wno-error=array-bounds -Wno-error=maybe-uninitialized)
  endif()
  if(KVLINK_DEBUG)
    add_compile_definitions(KVLINK_DEBUG=1 _GLIBCXX_ASSERTIONS=1)
  endif()
  if(KVLINK_SANITIZE)
    add_compile_options(-fsanitize=${KVLINK_SANITIZE} -fno-sanitize-recover=all)
    add_link_options(-fsanitize=${KVLINK_SANITIZE})
  endif()
  if(KVLINK_FUZZ)
    add_compile_options(-fsanitize=fuzzer-no-link)
  endif()
  if(KVLINK_COVERAGE)
    # Atomic, or threads' counts get lost, and some come out negative.
    add_compile_options(--coverage -fprofile-abs-path -fprofile-update=prefer-atomic)
    add_link_options(--coverage)
    # Builds the core's tests, runs each once and tells what they reached; kvlink_test and kvlink_fuzz
    # add themselves.
    cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
    add_custom_target(coverage
      COMMAND find ${PROJECT_BINARY_DIR} -name "*.gcda" -delete
      COMMAND ${CMAKE_CTEST_COMMAND} --output-on-failure --parallel ${cores}
              -LE "arch|heavy" -E "^examples[.]"
      COMMAND ${KVLINK_PYTHON} ${PROJECT_SOURCE_DIR}/cmake/coverage.py ${PROJECT_BINARY_DIR}
      WORKING_DIRECTORY ${PROJECT_BINARY_DIR} VERBATIM USES_TERMINAL)
  endif()
endmacro()

# kvlink_room(<name> [SOURCES a.cc ...] [DEPS rooms ...] [LIBS targets ...])
# The room as a static library kvlink_<name> (alias kvlink::<name>); without sources, headers only.
# Includes are written from src/ ("pool/page_pool.h") and include/ ("kvlink/cache.h"). LIBS are third
# party and private: their include folders and definitions end at this room and its tests, so that,
# say, the copy of nlohmann/json inside llama.cpp is not what the server compiles against.
function(kvlink_room name)
  cmake_parse_arguments(PARSE_ARGV 1 ROOM "" "" "SOURCES;DEPS;LIBS")
  if(ROOM_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "kvlink_room(${name}): unknown arguments ${ROOM_UNPARSED_ARGUMENTS}")
  endif()
  set(target kvlink_${name})
  if(ROOM_SOURCES)
    add_library(${target} STATIC ${ROOM_SOURCES})
    target_link_libraries(${target} PRIVATE ${ROOM_LIBS})
    set(visibility PUBLIC)
  else()
    add_library(${target} INTERFACE)
    set(visibility INTERFACE)
  endif()
  add_library(kvlink::${name} ALIAS ${target})
  target_include_directories(${target} ${visibility} ${PROJECT_SOURCE_DIR}/src)
  list(REMOVE_ITEM ROOM_DEPS public)
  list(TRANSFORM ROOM_DEPS PREPEND kvlink_)
  target_link_libraries(${target} ${visibility} kvlink_public ${ROOM_DEPS})
  set_property(GLOBAL APPEND PROPERTY KVLINK_LIBS_OF_${name} ${ROOM_LIBS})
endfunction()

# kvlink_test(<name> SOURCES x_test.cc ... [DEPS rooms ...] [LIBS targets ...] [LABELS unit ...]
#             [TIMEOUT seconds] [WHOLE] [SERIAL])
# A gtest and gmock executable, with the LIBS of the room in whose folder it is declared. ctest sees every TEST as a test of its own, "<name>.Suite.Case";
# with WHOLE the executable is one test (for suites that share a costly set-up, such as a model).
# SERIAL keeps other tests from running beside it (for what measures time).
function(kvlink_test name)
  if(NOT KVLINK_TESTS)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 TEST "WHOLE;SERIAL" "TIMEOUT" "SOURCES;DEPS;LIBS;LABELS")
  if(TEST_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "kvlink_test(${name}): unknown arguments ${TEST_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT TEST_LABELS)
    set(TEST_LABELS unit)
  endif()
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 300)
  endif()
  if(KVLINK_COVERAGE)
    math(EXPR TEST_TIMEOUT "4 * ${TEST_TIMEOUT}")  # nothing is optimised
  endif()
  add_executable(${name} ${TEST_SOURCES})
  # What is tested lies in libraries; the tests themselves are built for the time that building takes.
  target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1> $<$<CONFIG:Debug>:-O0>)
  list(REMOVE_ITEM TEST_DEPS public)
  list(TRANSFORM TEST_DEPS PREPEND kvlink_)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  if(KVLINK_COVERAGE)
    add_dependencies(coverage ${name})
  endif()
  get_filename_component(room ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  get_property(room_libs GLOBAL PROPERTY KVLINK_LIBS_OF_${room})
  target_link_libraries(${name} PRIVATE
    kvlink_public ${TEST_DEPS} ${TEST_LIBS} ${room_libs} GTest::gmock_main)
  if(TEST_WHOLE)
    add_test(NAME ${name} COMMAND ${name})
    set_tests_properties(${name} PROPERTIES
      LABELS "${TEST_LABELS}" TIMEOUT ${TEST_TIMEOUT} RUN_SERIAL ${TEST_SERIAL})
  else()
    # A list does not survive the way into the discovery script unless its semicolons are escaped.
    string(REPLACE ";" "\\;" labels "${TEST_LABELS}")
    gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST TEST_PREFIX "${name}."
      DISCOVERY_TIMEOUT 60
      PROPERTIES LABELS "${labels}" TIMEOUT ${TEST_TIMEOUT} RUN_SERIAL ${TEST_SERIAL})
  endif()
endfunction()

# kvlink_fuzz(<target>_fuzz SOURCES x_fuzz.cc ... [DEPS rooms ...] [PARTS files ...] [LIBS targets ...])
# A target that defines LLVMFuzzerTestOneInput. The preset `fuzz` links it with libFuzzer; everywhere
# else it replays the files in corpus/<target>, as a test. Where a room of DEPS is not built, as in
# that preset, PARTS are compiled instead: files under src/.
function(kvlink_fuzz name)
  if(NOT KVLINK_TESTS)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 FUZZ "" "" "SOURCES;DEPS;PARTS;LIBS")
  add_executable(${name} ${FUZZ_SOURCES})
  target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  set(parts "")
  foreach(room IN LISTS FUZZ_DEPS)
    if(TARGET kvlink_${room})
      target_link_libraries(${name} PRIVATE kvlink_${room})
    else()
      set(parts ${FUZZ_PARTS})
    endif()
  endforeach()
  if(parts)
    list(TRANSFORM parts PREPEND ${PROJECT_SOURCE_DIR}/src/)
    target_sources(${name} PRIVATE ${parts})
  endif()
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE kvlink_public ${FUZZ_LIBS})
  if(KVLINK_FUZZ)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    return()
  endif()
  target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/fuzz_replay.cc)
  if(KVLINK_COVERAGE)
    add_dependencies(coverage ${name})
  endif()
  string(REGEX REPLACE "_fuzz$" "" corpus ${name})
  add_test(NAME ${name} COMMAND ${name} ${CMAKE_CURRENT_SOURCE_DIR}/corpus/${corpus})
  set_tests_properties(${name} PROPERTIES LABELS unit TIMEOUT 300)
endfunction()

# kvlink_pytest(<name> FILES test_x.py ... [LABELS e2e ...] [TIMEOUT seconds] [SERIAL])
# One ctest test that runs pytest of the set-up's own Python. The environment holds KVLINK_BINARY
# (the executable), KVLINK_MODEL (the default model) and KVLINK_SOURCE_DIR. Without the engine there
# is no executable, and so no test.
function(kvlink_pytest name)
  if(NOT KVLINK_TESTS OR NOT KVLINK_ENGINE)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 TEST "SERIAL" "TIMEOUT" "FILES;LABELS")
  if(NOT TEST_LABELS)
    set(TEST_LABELS e2e)
  endif()
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 600)
  endif()
  list(TRANSFORM TEST_FILES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  add_test(NAME ${name}
    COMMAND ${KVLINK_PYTHON} -m pytest -q -p no:cacheprovider ${TEST_FILES}
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES
    LABELS "${TEST_LABELS}" TIMEOUT ${TEST_TIMEOUT} RUN_SERIAL ${TEST_SERIAL}
    ENVIRONMENT "KVLINK_BINARY=${PROJECT_BINARY_DIR}/kvlink;KVLINK_MODEL=${KVLINK_DEFAULT_MODEL};KVLINK_SOURCE_DIR=${PROJECT_SOURCE_DIR};PYTHONDONTWRITEBYTECODE=1")
endfunction()
