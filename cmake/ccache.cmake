# Compiles through ccache when it is installed. Paths below the source tree are taken relative to
# it, so that another clone or preset finds what this one compiled.
if(NOT DEFINED CMAKE_CXX_COMPILER_LAUNCHER)
  find_program(KVLINK_CCACHE ccache)
  if(KVLINK_CCACHE)
    set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_MAXSIZE=10G
                 ${KVLINK_CCACHE})
    set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
    set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  endif()
endif()
