# Packages: `cpack --preset deb` makes the Debian packages kvlink (the component `program`) and
# libkvlink-dev (`library`) in build/packages. What only Debian wants is in packaging/debian; its
# stage.cmake runs between installing into the staging folder and packing.
#
# The address of who packages is DEBFULLNAME and DEBEMAIL, as with Debian's own tools.
if(DEFINED ENV{DEBEMAIL})
  set(KVLINK_PACKAGER "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
else()
  set(KVLINK_PACKAGER "KVLink developers <packages@kvlink.example>")
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME kvlink)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_VENDOR KVLink)
set(CPACK_PACKAGE_CONTACT "${KVLINK_PACKAGER}")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_SOURCE_DIR}/build/packages)
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_THREADS 0)
set(CPACK_COMPONENTS_ALL program library)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
# Below any revision that Debian itself may give the same version.
set(CPACK_DEBIAN_PACKAGE_RELEASE 0kvlink1)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SOURCE kvlink)

set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME kvlink)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})
set(CPACK_DEBIAN_PROGRAM_PACKAGE_DEPENDS "init-system-helpers (>= 1.54~)")
# Fonts for the charts of calibrate; authorities for a Redis over TLS.
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS "fonts-dejavu-core, ca-certificates")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SUGGESTS "redis-server")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_CONTROL_EXTRA
    ${PROJECT_SOURCE_DIR}/packaging/debian/postinst ${PROJECT_SOURCE_DIR}/packaging/debian/prerm
    ${PROJECT_SOURCE_DIR}/packaging/debian/postrm ${PROJECT_SOURCE_DIR}/packaging/debian/conffiles)

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libkvlink-dev)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SHLIBDEPS OFF)
# What kvlink-config.cmake asks the linker for.
set(CPACK_DEBIAN_LIBRARY_PACKAGE_DEPENDS
    "librocksdb-dev, libhiredis-dev, liblz4-dev, libzstd-dev, libssl-dev (>= 3)")

# The first line of each is its synopsis; CPack indents the rest.
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")
set(CPACK_DEBIAN_PROGRAM_DESCRIPTION "language model server that shares KV cache between requests
kvlink serves GGUF models over an OpenAI-compatible HTTP API and keeps one
copy of every block of keys and values that several requests need: prompts
with a common beginning are computed once, stored once and read once, and
the answers are bit for bit those of a server that shares nothing. Blocks
can move to disk and to Redis and survive a restart.

The package has a systemd unit, which is not enabled: the server needs a
model, which is not part of the package.")
set(CPACK_DEBIAN_LIBRARY_DESCRIPTION "library that shares the KV cache of language models - development files
libkvlink finds, keeps, moves and checks blocks of keys and values for any
inference engine: prefix sharing token by token, copy on write, eviction,
tiers on disk and in Redis. There is no tensor library inside.

The package has the static library, its headers and a CMake package.")

# Read by packaging/debian/stage.cmake in cpack, which sees CPACK_* only.
set(CPACK_KVLINK_DEBIAN_DIR ${PROJECT_SOURCE_DIR}/packaging/debian)
set(CPACK_KVLINK_STRIP "${CMAKE_STRIP}")
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/packaging/debian/stage.cmake)
include(CPack)
