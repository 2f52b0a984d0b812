# Programs that need nothing of the host but glibc 2.34 (the trainer also oneDNN and OpenMP): libraries are linked as
# archives. Object files are the same either way, but for those of fmt. Sanitizers want the shared libstdc++.
#   ddprun_fmt, ddprun_yaml   what common links
#   ddprun_program(TARGET)                   how a program is linked
#   DDPRUN_IS_SELF_CONTAINED                 what came of DDPRUN_SELF_CONTAINED
set(DDPRUN_SELF_CONTAINED AUTO CACHE STRING "Programs that need only libc and libm: AUTO, ON or OFF")
set_property(CACHE DDPRUN_SELF_CONTAINED PROPERTY STRINGS AUTO ON OFF)

set(_archives JPEG=jpeg PNG=png16 ZLIB=z PCRE2=pcre2-8 YAML=yaml-cpp SSL=ssl CRYPTO=crypto)
set(_missing "")
set(DDPRUN_IS_SELF_CONTAINED OFF)
if(DDPRUN_SELF_CONTAINED STREQUAL "AUTO" AND
   (NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR CMAKE_CXX_FLAGS MATCHES "-fsanitize"))
  set(_missing "g++ without sanitizers")
elseif(NOT DDPRUN_SELF_CONTAINED STREQUAL "OFF")
  foreach(_archive ${_archives})
    string(REPLACE "=" ";" _archive ${_archive})
    list(GET _archive 0 _name)
    list(GET _archive 1 _library)
    find_library(DDPRUN_ARCHIVE_${_name} lib${_library}.a)
    if(NOT DDPRUN_ARCHIVE_${_name})
      list(APPEND _missing lib${_library}.a)
    endif()
  endforeach()
endif()
if(DDPRUN_SELF_CONTAINED STREQUAL "OFF")
  set(_missing "DDPRUN_SELF_CONTAINED=OFF")
elseif(_missing AND DDPRUN_SELF_CONTAINED STREQUAL "ON")
  message(FATAL_ERROR "DDPRUN_SELF_CONTAINED=ON, but not found: ${_missing}. Install them (deploy/install-dependencies.sh), or set it to OFF.")
elseif(NOT _missing)
  set(DDPRUN_IS_SELF_CONTAINED ON)
endif()

add_library(ddprun_fmt INTERFACE)
add_library(ddprun_yaml INTERFACE)
if(NOT DDPRUN_IS_SELF_CONTAINED)
  message(STATUS "Self-contained programs: off (${_missing})")
  target_link_libraries(ddprun_fmt INTERFACE fmt::fmt)
  target_link_libraries(ddprun_yaml INTERFACE yaml-cpp)
  # Where this folder was configured with archives before.
  foreach(_cached JPEG_LIBRARY_RELEASE PNG_LIBRARY_RELEASE ZLIB_LIBRARY_RELEASE DDPRUN_PCRE2_LIBRARY OPENSSL_SSL_LIBRARY OPENSSL_CRYPTO_LIBRARY)
    if("${${_cached}}" MATCHES "[.]a$")
      unset(${_cached} CACHE)
    endif()
  endforeach()
  function(ddprun_program target)
  endfunction()
  return()
endif()

message(STATUS "Self-contained programs: on")
# FindJPEG and the others take what stands in the cache.
set(JPEG_LIBRARY_RELEASE ${DDPRUN_ARCHIVE_JPEG} CACHE FILEPATH "" FORCE)
set(PNG_LIBRARY_RELEASE ${DDPRUN_ARCHIVE_PNG} CACHE FILEPATH "" FORCE)
set(ZLIB_LIBRARY_RELEASE ${DDPRUN_ARCHIVE_ZLIB} CACHE FILEPATH "" FORCE)
set(DDPRUN_PCRE2_LIBRARY ${DDPRUN_ARCHIVE_PCRE2} CACHE FILEPATH "" FORCE)
set(OPENSSL_SSL_LIBRARY ${DDPRUN_ARCHIVE_SSL} CACHE FILEPATH "" FORCE)
set(OPENSSL_CRYPTO_LIBRARY ${DDPRUN_ARCHIVE_CRYPTO} CACHE FILEPATH "" FORCE)
set(OPENSSL_USE_STATIC_LIBS ON)

add_library(ddprun_fmt_bodies STATIC cmake/fmt_bodies.cc)
get_target_property(_fmt_definitions fmt::fmt INTERFACE_COMPILE_DEFINITIONS)
get_target_property(_fmt_include fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
target_compile_definitions(ddprun_fmt_bodies PUBLIC ${_fmt_definitions})
target_include_directories(ddprun_fmt_bodies SYSTEM PUBLIC ${_fmt_include})
target_link_libraries(ddprun_fmt INTERFACE ddprun_fmt_bodies)
target_link_libraries(ddprun_yaml INTERFACE ${DDPRUN_ARCHIVE_YAML})

add_library(ddprun_glibc_compat OBJECT cmake/glibc_compat.c)
# --exclude-libs: nothing of libstdc++.a is exported to libraries that bring their own (oneDNN).
function(ddprun_program target)
  target_link_libraries(${target} PRIVATE ddprun_glibc_compat)
  target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc -Wl,--exclude-libs,ALL -Wl,--gc-sections)
endfunction()
