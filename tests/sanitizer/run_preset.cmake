# Configures, builds and tests one preset. Run from the top of the tree.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    string(JOIN " " command ${ARGN})
    message("${output}")  # apart, because an error's text is wrapped
    message(FATAL_ERROR "failed (${result}): ${command}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

run(${CMAKE_COMMAND} --preset ${PRESET})
run(${CMAKE_COMMAND} --build --preset ${PRESET})
cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
# ThreadSanitizer of gcc 12 gives up when the kernel randomises addresses by more than 28 bits.
set(launcher "")
find_program(setarch setarch)
if(PRESET STREQUAL "tsan" AND setarch)
  execute_process(COMMAND ${setarch} --addr-no-randomize true RESULT_VARIABLE refused ERROR_QUIET)
  if(NOT refused)
    set(launcher ${setarch} --addr-no-randomize)
  endif()
endif()
run(${launcher} ${CMAKE_CTEST_COMMAND} --preset ${PRESET} -LE "arch|heavy|integration" -j ${cores})
# The figures of the inner run, on one line that no one mistakes for the outer run's.
string(REGEX MATCH "tests failed out of ([0-9]+)" _ "${output}")
message(STATUS "${PRESET}: ${CMAKE_MATCH_1} tests ran clean")
