# Run by cpack over the staging folder of each component, before packing: what Debian wants and a
# plain `cmake --install` does not. Fails where a step fails.
set(stage_version "${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}")

function(stage_run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    string(JOIN " " command ${ARGN})
    message(FATAL_ERROR "failed (${result}): ${command}")
  endif()
endfunction()

# Policy 12.5 and 12.7: licences and changelogs. The upstream changelog is ours, too.
function(stage_documents root package)
  set(doc ${root}/usr/share/doc/${package})
  file(MAKE_DIRECTORY ${doc})
  file(REMOVE ${doc}/LICENSE ${doc}/CHANGELOG.md)
  file(COPY ${CPACK_KVLINK_DEBIAN_DIR}/copyright DESTINATION ${doc}
       FILE_PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
  configure_file(${CPACK_KVLINK_DEBIAN_DIR}/../../CHANGELOG.md ${doc}/changelog COPYONLY)
  string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
  file(WRITE ${doc}/changelog.Debian "kvlink (${stage_version}) bookworm; urgency=medium

  * Version ${CPACK_PACKAGE_VERSION}; /usr/share/doc/${package}/changelog.gz says what is new.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}
")
  stage_run(gzip -9n ${doc}/changelog ${doc}/changelog.Debian)
endfunction()

function(stage_program root)
  # Configuration is in /etc, whatever the prefix.
  file(MAKE_DIRECTORY ${root}/etc)
  file(RENAME ${root}/usr/etc/kvlink ${root}/etc/kvlink)
  file(REMOVE_RECURSE ${root}/usr/etc)
  file(GLOB binaries ${root}/usr/lib/kvlink/*)
  foreach(binary IN LISTS binaries)
    if(NOT IS_SYMLINK ${binary})
      stage_run(${CPACK_KVLINK_STRIP} --strip-unneeded --remove-section=.comment ${binary})
    endif()
  endforeach()
  # Debian's zsh looks elsewhere than zsh's own default.
  if(EXISTS ${root}/usr/share/zsh/site-functions)
    file(RENAME ${root}/usr/share/zsh/site-functions ${root}/usr/share/zsh/vendor-completions)
  endif()
  file(GLOB manuals ${root}/usr/share/man/man1/*.1)
  if(manuals)
    stage_run(gzip -9n ${manuals})
  endif()
  stage_documents(${root} kvlink)
  if(EXISTS ${CPACK_KVLINK_DEBIAN_DIR}/kvlink.lintian-overrides)
    configure_file(${CPACK_KVLINK_DEBIAN_DIR}/kvlink.lintian-overrides
                   ${root}/usr/share/lintian/overrides/kvlink COPYONLY)
  endif()
endfunction()

function(stage_library root)
  # An archive keeps its symbols, or nothing could link with it, but not its debug information.
  stage_run(${CPACK_KVLINK_STRIP} --strip-debug --enable-deterministic-archives
            --remove-section=.comment ${root}/usr/lib/libkvlink.a)
  file(REMOVE_RECURSE ${root}/usr/share/doc/kvlink)  # the other package's
  stage_documents(${root} libkvlink-dev)
endfunction()

foreach(component IN ITEMS program library)
  set(stage_root ${CPACK_TEMPORARY_DIRECTORY}/${component})
  if(NOT EXISTS ${stage_root}/usr)
    message(FATAL_ERROR "no component '${component}' was staged in ${stage_root}")
  endif()
  cmake_language(CALL stage_${component} ${stage_root})
endforeach()
