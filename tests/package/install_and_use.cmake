# Run by ctest: installs, then configures, builds and runs consumers out of tree.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    string(JOIN " " command ${ARGN})
    message(FATAL_ERROR "failed (${result}): ${command}")
  endif()
endfunction()

set(prefix ${WORK_DIR}/prefix)
file(REMOVE_RECURSE ${WORK_DIR})
run(${CMAKE_COMMAND} --install ${BUILD_DIR} --component library --prefix ${prefix})

# Nothing but the public headers may be installed.
file(GLOB_RECURSE installed RELATIVE ${prefix}/include ${prefix}/include/*)
foreach(header IN LISTS installed)
  if(NOT header MATCHES "^kvlink/[a-z_]+\\.h$")
    message(FATAL_ERROR "installed, but not a public header: ${header}")
  endif()
endforeach()

foreach(consumer tests/package/consumer examples)
  if(EXISTS ${SOURCE_DIR}/${consumer}/CMakeLists.txt)
    set(build ${WORK_DIR}/${consumer})
    run(${CMAKE_COMMAND} -S ${SOURCE_DIR}/${consumer} -B ${build} -G ${GENERATOR}
        -D CMAKE_PREFIX_PATH=${prefix} -D CMAKE_BUILD_TYPE=Release -D KVLINK_VERSION=${VERSION}
        -D CMAKE_FIND_USE_PACKAGE_REGISTRY=OFF)
    run(${CMAKE_COMMAND} --build ${build})
    run(${CMAKE_CTEST_COMMAND} --test-dir ${build} --output-on-failure --no-tests=error)
  endif()
endforeach()
