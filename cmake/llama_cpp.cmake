# ggml, libllama and llama-common from a copy of llama.cpp, built as shared libraries beside the
# executable. Rooms link `kvlink_llama`.
#
# The copy is KVLINK_LLAMA_CPP_DIR; scripts/setup.sh puts the pinned one there, with ggml's list of
# x86 CPU variants cut to those in KVLINK_CPU_VARIANTS of that script (an uncut copy works too, it
# only takes longer to build). The variant that fits the processor is chosen at run time:
# ggml_backend_load_all_from_path(folder of the executable).
#
# Off, because their results for a row depend on how many rows are computed together, which would
# break "exact reuse never changes an answer": llamafile's matrix product, repacked weights. OpenMP
# is off because threads belong to the engine. (A third such path, the tiled product of K-quants,
# is switched by the environment variable GGML_CPU_TILED_MM=0 at run time only.)
set(KVLINK_LLAMA_CPP_DIR "${PROJECT_SOURCE_DIR}/.deps/llama.cpp" CACHE PATH
    "Folder of llama.cpp's sources")
if(NOT EXISTS ${KVLINK_LLAMA_CPP_DIR}/ggml/CMakeLists.txt)
  message(FATAL_ERROR
    "KVLINK_LLAMA_CPP_DIR: no llama.cpp sources in '${KVLINK_LLAMA_CPP_DIR}'. "
    "Run scripts/setup.sh, or give another copy, or build libkvlink alone with -DKVLINK_ENGINE=OFF.")
endif()

# A function, so that flags and options meant for llama.cpp stay out of our own directories.
function(kvlink_add_llama_cpp)
  set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)  # option() keeps the values set here
  set(BUILD_SHARED_LIBS ON)
  set(GGML_BACKEND_DL ON)
  set(LLAMA_BUILD_COMMON ON)
  foreach(option GGML_NATIVE GGML_LLAMAFILE GGML_CPU_REPACK GGML_OPENMP GGML_CCACHE
                 GGML_ALL_WARNINGS LLAMA_ALL_WARNINGS LLAMA_BUILD_TESTS LLAMA_BUILD_TOOLS
                 LLAMA_BUILD_EXAMPLES LLAMA_BUILD_SERVER LLAMA_BUILD_APP LLAMA_BUILD_UI
                 LLAMA_USE_PREBUILT_UI LLAMA_OPENSSL LLAMA_SUBPROCESS LLAMA_LLGUIDANCE
                 LLAMA_BUILD_MTMD)
    set(${option} OFF)
  endforeach()
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|aarch64|arm64")
    set(GGML_CPU_ALL_VARIANTS ON)
  endif()
  # The build info would otherwise change with every commit of ours.
  set(LLAMA_BUILD_NUMBER 0)
  set(LLAMA_BUILD_COMMIT "kvlink")
  set(GIT_EXE "")
  # The same flags in every preset: a debug build of ours still gets fast products.
  foreach(language C CXX)
    foreach(config DEBUG RELWITHDEBINFO RELEASE)
      set(CMAKE_${language}_FLAGS_${config} "-O3 -DNDEBUG")
    endforeach()
  endforeach()
  set(CMAKE_MESSAGE_LOG_LEVEL ERROR)
  add_subdirectory(${KVLINK_LLAMA_CPP_DIR} ${PROJECT_BINARY_DIR}/llama.cpp EXCLUDE_FROM_ALL)
endfunction()
kvlink_add_llama_cpp()

# Beside the executable, found by RPATH $ORIGIN.
foreach(dir ggml/src src common)
  get_property(targets DIRECTORY ${KVLINK_LLAMA_CPP_DIR}/${dir} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(type MATCHES "^(SHARED|MODULE)_LIBRARY$")
      set_target_properties(${target} PROPERTIES
        LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}
        BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "$ORIGIN")
    endif()
  endforeach()
endforeach()

# SYSTEM, so that our warnings do not fire in their headers. ggml-cpu.h and ggml-backend-impl.h are
# not reachable from outside ggml on purpose: the CPU backend is loaded, not linked.
add_library(kvlink_llama INTERFACE)
target_link_libraries(kvlink_llama INTERFACE llama-common llama ggml)
foreach(target llama-common llama-common-base llama ggml ggml-base nlohmann sheredom)
  get_target_property(dirs ${target} INTERFACE_INCLUDE_DIRECTORIES)
  if(dirs)
    set_target_properties(${target} PROPERTIES INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${dirs}")
  endif()
endforeach()
