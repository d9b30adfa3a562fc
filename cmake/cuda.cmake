# -DEVERGRAD_CUDA=AUTO|ON|OFF selects whether libevergrad_cuda.so is built
# (worker/backend/cuda/device). AUTO builds it if nvcc of CUDA 12 or 13 and cuDNN 9 are found, and
# otherwise prints the reason once. ON fails with a list of the missing parts. Nothing else depends
# on CUDA, because the worker loads the library at run time. Sets EVERGRAD_CUDA_FOUND.
set(EVERGRAD_CUDA AUTO CACHE STRING "The CUDA backend: AUTO, ON or OFF")
set_property(CACHE EVERGRAD_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT EVERGRAD_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "EVERGRAD_CUDA is AUTO, ON or OFF: got=${EVERGRAD_CUDA}")
endif()
set(EVERGRAD_CUDA_FOUND OFF)
if(EVERGRAD_CUDA STREQUAL "OFF")
  return()
endif()

set(missing "")
include(CheckLanguage)
# The architectures are set before the language is enabled, because CMake would otherwise ask a
# device for its architecture. The PTX of the newest architecture serves later ones.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
endif()
# CMake searches only PATH, to which CUDA's installer adds nothing. The compiler is set through the
# environment, so that a compiler that does not work is no error here.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(EVERGRAD_NVCC nvcc HINTS ENV PATH PATHS ENV CUDA_PATH ENV CUDA_HOME /usr/local/cuda
    /opt/cuda PATH_SUFFIXES bin NO_CACHE)
  if(EVERGRAD_NVCC)
    set(ENV{CUDACXX} ${EVERGRAD_NVCC})
  endif()
endif()
check_language(CUDA)
if(NOT CMAKE_CUDA_COMPILER)
  string(APPEND missing " nvcc (CUDA 12 or 13) that works with the host compiler;")
else()
  find_package(CUDAToolkit QUIET)
  if(NOT CUDAToolkit_FOUND OR CUDAToolkit_VERSION_MAJOR LESS 12)
    string(APPEND missing " CUDA 12 or 13 (found ${CUDAToolkit_VERSION});")
  endif()
  if(CUDAToolkit_FOUND AND NOT TARGET CUDA::cudart_static)
    string(APPEND missing " libcudart_static.a;")  # wheels of CUDA 12 have only the shared library
  endif()
  if(NOT EXISTS "${CUDAToolkit_INCLUDE_DIRS}/cublasLt.h" AND NOT CUDAToolkit_INCLUDE_DIRS
    MATCHES ";")
    string(APPEND missing " cublasLt.h;")
  endif()
  # cuDNN may be a package beside CUDA, a folder that CUDNN_ROOT names, or a part of Python's wheel.
  find_path(CUDNN_INCLUDE_DIR cudnn_graph.h HINTS ${CUDNN_ROOT} ENV CUDNN_ROOT PATH_SUFFIXES include
    PATHS ${CUDAToolkit_INCLUDE_DIRS})
  set(cudnn_major "")
  if(EXISTS "${CUDNN_INCLUDE_DIR}/cudnn_version.h")
    file(STRINGS ${CUDNN_INCLUDE_DIR}/cudnn_version.h line REGEX "^#define CUDNN_MAJOR ")
    string(REGEX REPLACE "^#define CUDNN_MAJOR ([0-9]+).*" "\\1" cudnn_major "${line}")
  endif()
  if(NOT cudnn_major EQUAL 9)
    string(APPEND missing " cuDNN 9 (cudnn_graph.h; -DCUDNN_ROOT names its folder);")
  endif()
endif()

if(missing STREQUAL "")
  set(EVERGRAD_CUDA_FOUND ON)
  if(CMAKE_CXX_COMPILER_LAUNCHER AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
  endif()
  set(CMAKE_CUDA_FLAGS_RELEASE "-O3")
  set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "-O3")
  set(CMAKE_CUDA_FLAGS_DEBUG "-O1")
  enable_language(CUDA)
  message(STATUS "CUDA backend: CUDA ${CUDAToolkit_VERSION}, cuDNN ${cudnn_major}, "
    "architectures ${CMAKE_CUDA_ARCHITECTURES}")
elseif(EVERGRAD_CUDA STREQUAL "ON")
  message(FATAL_ERROR "EVERGRAD_CUDA=ON, but this is missing:${missing}")
else()
  message(STATUS "CUDA backend: left out, missing:${missing}")
endif()
