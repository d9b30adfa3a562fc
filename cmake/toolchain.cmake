# Compiler settings shared by every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
# The debug information has line tables only. They are enough for a stack trace and take a third of
# the compile time of full debug information.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g")

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # The compiler cache stores an object that uses a precompiled header only if it may ignore times,
  # and macros that the header could have used (cmake/precompiled.cmake).
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
        CCACHE_SLOPPINESS=pch_defines,time_macros ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
  add_link_options(-fuse-ld=mold)
endif()

# These options are for the host's compilers only, because nvcc has other options
# (worker/backend/cuda/device).
add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>)
# The CPU baseline. With -ffp-contract=off there is no implicit FMA, so kernels give the same bits
# on every dispatch target.
include(CheckCXXCompilerFlag)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-march=x86-64-v3>
    $<$<COMPILE_LANGUAGE:C,CXX>:-mtune=generic>)
endif()
add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-ffp-contract=off>
  $<$<COMPILE_LANGUAGE:C,CXX>:-fno-math-errno>)

# g++ 12 warns of overlapping copies (-Wrestrict) where strings are concatenated, and is wrong (GCC
# bug 105329).
set(EVERGRAD_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual
  -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND EVERGRAD_WARNINGS -Wno-restrict)
  # If a sanitizer instruments the code, these warnings of g++ are often wrong.
  if(EVERGRAD_SANITIZE)
    list(APPEND EVERGRAD_WARNINGS -Wno-array-bounds -Wno-maybe-uninitialized
      -Wno-stringop-overflow -Wno-stringop-overread)
  endif()
endif()
if(EVERGRAD_WARNINGS_AS_ERRORS)
  list(APPEND EVERGRAD_WARNINGS -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  list(APPEND EVERGRAD_WARNINGS -Wthread-safety)
endif()
if(EVERGRAD_SANITIZE STREQUAL "address")
  foreach(option -fsanitize=address,undefined -fno-sanitize-recover=undefined
    -fno-omit-frame-pointer)
    add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:${option}>")
  endforeach()
  add_link_options(-fsanitize=address,undefined)
elseif(EVERGRAD_SANITIZE STREQUAL "fuzz")
  # All code reports its coverage; only tests/fuzz links libFuzzer's main.
  foreach(option -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
    -fno-omit-frame-pointer)
    add_compile_options("$<$<COMPILE_LANGUAGE:C,CXX>:${option}>")
  endforeach()
  add_link_options(-fsanitize=fuzzer-no-link,address,undefined)
elseif(EVERGRAD_SANITIZE STREQUAL "thread")
  add_compile_options($<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=thread>
    $<$<COMPILE_LANGUAGE:C,CXX>:-fno-omit-frame-pointer>)
  add_link_options(-fsanitize=thread)
endif()
# Tests are compiled with -O1, which takes two thirds of the time of -O2. Compiling a test takes
# much longer than running it.
set(EVERGRAD_TEST_OPTIMIZATION $<$<CONFIG:Release>:-O1>)
