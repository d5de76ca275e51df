# Third-party libraries, one target each. All come from Debian packages (scripts/setup.sh) except
# ggml and libllama (cmake/llama_cpp.cmake). THIRD_PARTY_LICENSES.md lists their use and licences.
#
#   room             LIBS
#   base             kvlink_xxhash
#   kernel           hwy::hwy
#   tier             rocksdb hiredis lz4 zstd OpenSSL::SSL
#   model            kvlink_llama (its own nlohmann/json comes with it: never add Debian's there)
#   ckpt             zstd OpenSSL::Crypto nlohmann_json::nlohmann_json
#   events           kvlink_zmq
#   server, cli      Boost::headers nlohmann_json::nlohmann_json spdlog::spdlog OpenSSL::Crypto
#                    kvlink_prometheus CLI11::CLI11 tomlplusplus::tomlplusplus PkgConfig::CAIRO
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

# xxHash is compiled into the translation unit that includes it, so libkvlink links nothing for it.
find_path(KVLINK_XXHASH_INCLUDE_DIR xxhash.h REQUIRED)
add_library(kvlink_xxhash INTERFACE)
target_compile_definitions(kvlink_xxhash INTERFACE XXH_INLINE_ALL)

# Plain names, as Debian's CMake packages of these ask for more than we use. Found here, so that
# what is missing is said when configuring.
foreach(library rocksdb hiredis lz4 zstd)
  find_library(KVLINK_LIBRARY_${library} ${library} REQUIRED)
endforeach()
find_package(OpenSSL 3 REQUIRED)

if(KVLINK_ENGINE)
  find_package(Boost 1.81 REQUIRED)
  find_package(CLI11 REQUIRED)
  find_package(hwy REQUIRED)
  find_package(nlohmann_json 3.11 REQUIRED)
  find_package(spdlog REQUIRED)
  find_package(tomlplusplus REQUIRED)
  # Only the registry of prometheus-cpp is used; its CMake config would also ask for civetweb, curl
  # and zlib.
  find_package(PkgConfig REQUIRED)
  pkg_check_modules(PROMETHEUS_CORE REQUIRED IMPORTED_TARGET prometheus-cpp-core)
  pkg_check_modules(CAIRO REQUIRED IMPORTED_TARGET cairo)
  find_path(KVLINK_ZMQ_INCLUDE_DIR zmq.h REQUIRED)
  find_library(KVLINK_ZMQ_LIBRARY zmq REQUIRED)
  add_library(kvlink_zmq INTERFACE)
  target_link_libraries(kvlink_zmq INTERFACE ${KVLINK_ZMQ_LIBRARY})
  add_library(kvlink_prometheus INTERFACE)
  target_link_libraries(kvlink_prometheus INTERFACE PkgConfig::PROMETHEUS_CORE)
endif()
