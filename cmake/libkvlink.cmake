# libkvlink: the core rooms as one static library, installed with include/kvlink and a CMake package
# (find_package(kvlink) gives kvlink::kvlink, the name that works in this tree as well).
include(CMakePackageConfigHelpers)

set(objects "")
set(libs Threads::Threads)
foreach(room IN LISTS core_rooms)
  if(TARGET kvlink_${room})
    get_target_property(type kvlink_${room} TYPE)
    if(type STREQUAL "STATIC_LIBRARY")
      list(APPEND objects $<TARGET_OBJECTS:kvlink_${room}>)
    endif()
    get_property(room_libs GLOBAL PROPERTY KVLINK_LIBS_OF_${room})
    list(APPEND libs ${room_libs})
  endif()
endforeach()
list(REMOVE_ITEM libs kvlink_xxhash)  # compiled in
list(REMOVE_DUPLICATES libs)

if(objects)
  add_library(libkvlink STATIC ${objects})
  add_library(kvlink::kvlink ALIAS libkvlink)
  set_target_properties(libkvlink PROPERTIES
    OUTPUT_NAME kvlink EXPORT_NAME kvlink LINKER_LANGUAGE CXX)
  target_link_libraries(libkvlink PUBLIC kvlink_public PRIVATE ${libs})
  set_target_properties(kvlink_public PROPERTIES EXPORT_NAME public)

  set(kvlink_dependencies "")
  foreach(lib IN LISTS libs)
    if(NOT lib MATCHES "::")
      continue()  # a plain library, found by the linker
    endif()
    string(REGEX REPLACE "::.*" "" package ${lib})
    string(APPEND kvlink_dependencies "find_dependency(${package})\n")
  endforeach()
  set(package_dir lib/cmake/kvlink)
  configure_package_config_file(cmake/kvlink-config.cmake.in ${PROJECT_BINARY_DIR}/kvlink-config.cmake
    INSTALL_DESTINATION ${package_dir} NO_SET_AND_CHECK_MACRO)
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/kvlink-config-version.cmake
    COMPATIBILITY SameMinorVersion)
  install(TARGETS libkvlink kvlink_public EXPORT kvlink-targets
          ARCHIVE DESTINATION lib COMPONENT library)
  install(DIRECTORY include/kvlink DESTINATION include COMPONENT library
          FILES_MATCHING PATTERN "*.h")
  install(EXPORT kvlink-targets NAMESPACE kvlink:: DESTINATION ${package_dir} COMPONENT library)
  install(FILES ${PROJECT_BINARY_DIR}/kvlink-config.cmake
                ${PROJECT_BINARY_DIR}/kvlink-config-version.cmake
          DESTINATION ${package_dir} COMPONENT library)
  install(FILES LICENSE THIRD_PARTY_LICENSES.md DESTINATION share/doc/kvlink COMPONENT library)
endif()
