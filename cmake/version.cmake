# Bakes version and commit into build/<preset>/generated/version_info.cc at configure time. The file changes only when
# its text does, so that configuring again compiles nothing.
set(DDPRUN_COMMIT "unknown")
find_program(DDPRUN_GIT git)
if(DDPRUN_GIT AND EXISTS ${CMAKE_SOURCE_DIR}/.git)
  execute_process(COMMAND ${DDPRUN_GIT} -C ${CMAKE_SOURCE_DIR} describe --always --dirty --abbrev=12 --exclude=*
    OUTPUT_VARIABLE _described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE _rc)
  if(_rc EQUAL 0)
    set(DDPRUN_COMMIT "${_described}")
  endif()
endif()
if(DDPRUN_HAVE_CUDA)
  set(DDPRUN_CUDA_TEXT "CUDA ${CUDAToolkit_VERSION}, NCCL and cuDNN found at build time")
else()
  set(DDPRUN_CUDA_TEXT "CUDA, NCCL and cuDNN not built in")
endif()
set(DDPRUN_COMPILER_TEXT "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, ${CMAKE_BUILD_TYPE}")
configure_file(${CMAKE_SOURCE_DIR}/cmake/version_info.cc.in ${CMAKE_BINARY_DIR}/generated/version_info.cc @ONLY)
