# Options take ON (required), OFF, or AUTO (used when found). H3_HAVE_<NAME> tells the code.
find_package(PkgConfig QUIET)
find_package(Threads REQUIRED)

function(h3_option name help)
  set(H3_${name} AUTO CACHE STRING "${help} (ON, OFF or AUTO)")
  set_property(CACHE H3_${name} PROPERTY STRINGS ON OFF AUTO)
endfunction()

h3_option(FFMPEG "Media through FFmpeg's libraries; without it PPM in, Y4M and WAV out")
h3_option(UNICODE "Unicode tables of utf8proc; without it the tokenizer takes ASCII text only")
h3_option(ONEDNN "oneDNN convolutions and f32 matmul on the CPU")
h3_option(CUDA "The NVIDIA back end")
h3_option(SERVER "h3 serve")
option(H3_TESTS "Build the tests (needs GoogleTest)" ON)
option(H3_FUZZ "Build the fuzz targets (clang)" OFF)
set(H3_SANITIZE "" CACHE STRING "Sanitizers, e.g. address,undefined or thread")

# h3_resolve(NAME module...): creates h3_dep_<name> when every pkg-config module is found.
function(h3_resolve name)
  set(H3_HAVE_${name} OFF)
  string(TOLOWER ${name} lower)
  if(NOT H3_${name} STREQUAL "OFF")
    if(PkgConfig_FOUND)
      pkg_check_modules(H3_DEP_${name} QUIET IMPORTED_TARGET ${ARGN})
    endif()
    if(H3_DEP_${name}_FOUND)
      set(H3_HAVE_${name} ON)
      add_library(h3_dep_${lower} INTERFACE)
      target_link_libraries(h3_dep_${lower} INTERFACE PkgConfig::H3_DEP_${name})
      target_compile_definitions(h3_dep_${lower} INTERFACE H3_HAVE_${name}=1)
    elseif(H3_${name} STREQUAL "ON")
      message(FATAL_ERROR "H3_${name}=ON but ${ARGN} was not found; install it or use H3_${name}=AUTO")
    endif()
  endif()
  message(STATUS "h3: ${name} ${H3_HAVE_${name}}")
  set(H3_HAVE_${name} ${H3_HAVE_${name}} PARENT_SCOPE)
endfunction()

h3_resolve(FFMPEG libavformat libavcodec libswscale libswresample libavutil)
h3_resolve(UNICODE libutf8proc)

# oneDNN has no pkg-config file in Debian.
set(H3_HAVE_ONEDNN OFF)
if(NOT H3_ONEDNN STREQUAL "OFF")
  find_package(dnnl CONFIG QUIET)
  if(dnnl_FOUND)
    set(H3_HAVE_ONEDNN ON)
    add_library(h3_dep_onednn INTERFACE)
    target_link_libraries(h3_dep_onednn INTERFACE DNNL::dnnl)
    target_compile_definitions(h3_dep_onednn INTERFACE H3_HAVE_ONEDNN=1)
  elseif(H3_ONEDNN STREQUAL "ON")
    message(FATAL_ERROR "H3_ONEDNN=ON but oneDNN was not found; install libdnnl-dev or use H3_ONEDNN=AUTO")
  endif()
endif()
message(STATUS "h3: ONEDNN ${H3_HAVE_ONEDNN}")

# -Wconversion stays off: index arithmetic mixes int64_t and pointers throughout.
add_library(h3_flags INTERFACE)
target_compile_options(h3_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wno-missing-field-initializers
    -fno-math-errno -fno-trapping-math -ffp-contract=off>)
if(H3_SANITIZE)
  target_compile_options(h3_flags INTERFACE -fsanitize=${H3_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(h3_flags INTERFACE -fsanitize=${H3_SANITIZE})
endif()
target_include_directories(h3_flags INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR})
target_link_libraries(h3_flags INTERFACE Threads::Threads)
