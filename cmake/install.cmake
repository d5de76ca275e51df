# What `cmake --install` lays out for the executable (component `program`); libkvlink's part, the
# component `library`, is in libkvlink.cmake. The prefix may be moved afterwards.
#
#   bin/kvlink -> ../lib/kvlink/kvlink
#   lib/kvlink/                    the executable with ggml and libllama: ggml loads its CPU variants
#                                  from the executable's folder
#   share/kvlink/                  calibrations, found from the executable's folder upwards
#   share/doc/kvlink, share/man, share/bash-completion, ...
#   etc/kvlink/kvlink.toml, lib/systemd/system/kvlink.service      as they are in packages (in /usr)
set(private_dir lib/kvlink)

set(llama_libraries "")
foreach(dir ggml/src src common)
  get_property(targets DIRECTORY ${KVLINK_LLAMA_CPP_DIR}/${dir} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(type MATCHES "^(SHARED|MODULE)_LIBRARY$")
      list(APPEND llama_libraries ${target})
    endif()
  endforeach()
endforeach()

# A server on the network: no table of functions stays writable once it runs (full RELRO).
foreach(target kvlink ${llama_libraries})
  target_link_options(${target} PRIVATE LINKER:-z,relro LINKER:-z,now)
endforeach()

# Their headers are theirs: nothing of ours includes them.
install(TARGETS kvlink RUNTIME DESTINATION ${private_dir} COMPONENT program)
install(TARGETS ${llama_libraries}
  LIBRARY DESTINATION ${private_dir} COMPONENT program NAMELINK_SKIP
  PUBLIC_HEADER DESTINATION include COMPONENT third_party_headers EXCLUDE_FROM_ALL)
install(CODE [[
  set(prefix "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}")
  file(MAKE_DIRECTORY "${prefix}/bin")
  file(CREATE_LINK ../lib/kvlink/kvlink "${prefix}/bin/kvlink" SYMBOLIC)
]] COMPONENT program)

install(FILES packaging/kvlink.toml DESTINATION etc/kvlink COMPONENT program)
install(FILES packaging/systemd/kvlink.service DESTINATION lib/systemd/system COMPONENT program)

file(GLOB documents CONFIGURE_DEPENDS docs/*.md)
install(FILES README.md README.zh.md CHANGELOG.md LICENSE THIRD_PARTY_LICENSES.md SECURITY.md
              packaging/debian/copyright ${documents}
        DESTINATION share/doc/kvlink COMPONENT program)
