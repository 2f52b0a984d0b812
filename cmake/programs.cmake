# How the four programs are linked and what an installation puts beside the trainer.
option(DDPRUN_BUNDLE "Install oneDNN and OpenMP beside the trainer, for hosts that have none (the wheel)" OFF)

ddprun_program(ddprun_store_client) # for programs that may have another libstdc++, or none
foreach(_program ddprun ddprun-rendezvous ddpctl trainer)
  ddprun_program(${_program})
  set_target_properties(${_program} PROPERTIES INSTALL_RPATH "")
endforeach()

if(DDPRUN_BUNDLE)
  # An RPATH, not a RUNPATH: that one does not count for what oneDNN itself needs.
  set_target_properties(trainer PROPERTIES INSTALL_RPATH "$ORIGIN/lib")
  target_link_options(trainer PRIVATE -Wl,--disable-new-dtags)
  if(DDPRUN_HAVE_CUDA)
    # pip's nvidia-* packages (the wheel's extra "cuda") in the environment that this lies in, whatever its Python.
    set(_nvidia "$ORIGIN")
    foreach(_minor RANGE 9 15)
      foreach(_part cu13 cudnn nccl)
        list(APPEND _nvidia "$ORIGIN/../../lib/python3.${_minor}/site-packages/nvidia/${_part}/lib")
      endforeach()
    endforeach()
    set_target_properties(ddprun_cuda PROPERTIES INSTALL_RPATH "${_nvidia}" INSTALL_RPATH_USE_LINK_PATH OFF)
    # An RPATH, too: cuDNN and cuBLAS look for each other.
    target_link_options(ddprun_cuda PRIVATE -Wl,--disable-new-dtags)
  endif()
  set(_bundled ${DDPRUN_DNNL_LIBRARY} ${OpenMP_gomp_LIBRARY})
  # Debian's oneDNN can also use OpenCL and so wants its loader.
  find_library(DDPRUN_OPENCL_LOADER NAMES OpenCL libOpenCL.so.1)
  if(DDPRUN_OPENCL_LOADER)
    list(APPEND _bundled ${DDPRUN_OPENCL_LOADER})
  endif()
  foreach(_library ${_bundled})
    install(CODE "
      execute_process(COMMAND ${CMAKE_OBJDUMP} -p \"${_library}\" OUTPUT_VARIABLE _headers COMMAND_ERROR_IS_FATAL ANY)
      string(REGEX MATCH \"SONAME +([^\\n]+)\" _line \"\${_headers}\")
      get_filename_component(_folder ${DDPRUN_INSTALL_LIBEXECDIR}/lib ABSOLUTE BASE_DIR \"\${CMAKE_INSTALL_PREFIX}\")
      file(REAL_PATH \"${_library}\" _real)
      file(INSTALL DESTINATION \"\$ENV{DESTDIR}\${_folder}\" TYPE FILE RENAME \"\${CMAKE_MATCH_1}\" FILES \"\${_real}\")
      " COMPONENT ddprun)
  endforeach()
endif()
