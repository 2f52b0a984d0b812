# What an installation has beside the programs, and the Debian packages: one per component.
#   cpack --config build/release/CPackConfig.cmake -B OUTPUT      (deploy/package/deb.sh does it and looks at the result)
find_package(Python3 COMPONENTS Interpreter)
set(_docs ${CMAKE_BINARY_DIR}/docs)
if(Python3_FOUND)
  add_custom_command(OUTPUT ${_docs}/changelog.gz
    COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/deploy/package/docs.py ${CMAKE_BINARY_DIR} ${_docs} ${PROJECT_VERSION}
    DEPENDS ddprun ddpctl ddprun-rendezvous ${CMAKE_SOURCE_DIR}/deploy/package/docs.py ${CMAKE_SOURCE_DIR}/CHANGELOG.md
    COMMENT "Man pages and completions")
  add_custom_target(docs ALL DEPENDS ${_docs}/changelog.gz)
endif()

set(_copyright deploy/package/debian/copyright)
install(FILES ${_copyright} DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/ddprun COMPONENT ddprun)
install(FILES ${_docs}/changelog.gz DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/ddprun COMPONENT ddprun OPTIONAL)
install(DIRECTORY deploy/configs DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/ddprun/examples COMPONENT ddprun)
install(FILES deploy/slurm/submit_job.sh DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/ddprun/examples COMPONENT ddprun)
function(install_docs component section)
  foreach(_name ${ARGN})
    install(FILES ${_docs}/man/man${section}/${_name}.${section}.gz
      DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/man/man${section} COMPONENT ${component} OPTIONAL)
    install(FILES ${_docs}/bash/${_name} DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/bash-completion/completions COMPONENT ${component} OPTIONAL)
    install(FILES ${_docs}/zsh/_${_name} DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/zsh/vendor-completions COMPONENT ${component} OPTIONAL)
    install(FILES ${_docs}/fish/${_name}.fish DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/fish/vendor_completions.d COMPONENT ${component} OPTIONAL)
  endforeach()
endfunction()
install_docs(ddprun 1 ddprun ddprun-launch ddpctl)
install_docs(ddprun-rendezvous 8 ddprun-rendezvous)
if(SKBUILD)
  return()
endif()

# The unit belongs to the host's systemd: only a package for /usr brings it.
option(DDPRUN_HOST_FILES "Install the systemd unit and /etc/ddprun as well (Debian packages)" OFF)
if(DDPRUN_HOST_FILES)
  install(FILES deploy/systemd/ddprun-rendezvous.service DESTINATION lib/systemd/system COMPONENT ddprun-rendezvous)
  install(FILES deploy/systemd/rendezvous.yaml DESTINATION /etc/ddprun COMPONENT ddprun-rendezvous)
  install(FILES ${_copyright} DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/ddprun-rendezvous COMPONENT ddprun-rendezvous)
  install(FILES ${_docs}/changelog.gz DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/ddprun-rendezvous COMPONENT ddprun-rendezvous)
  install(FILES ${_copyright} DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/ddprun-dev COMPONENT ddprun-dev)
  install(FILES ${_docs}/changelog.gz DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/ddprun-dev COMPONENT ddprun-dev)
  foreach(_package ddprun ddprun-rendezvous)
    install(FILES deploy/package/debian/${_package}.lintian-overrides
      DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/lintian/overrides RENAME ${_package} COMPONENT ${_package})
  endforeach()
  if(DDPRUN_HAVE_CUDA)
    install(FILES ${_copyright} DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/ddprun-cuda COMPONENT ddprun-cuda)
    install(FILES ${_docs}/changelog.gz DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/ddprun-cuda COMPONENT ddprun-cuda)
    install(FILES deploy/package/debian/ddprun-cuda.lintian-overrides
      DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/lintian/overrides RENAME ddprun-cuda COMPONENT ddprun-cuda)
  endif()
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME ddprun)
set(CPACK_PACKAGE_CONTACT "ddprun maintainers <maintainers@ddprun.example>")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_COMPONENTS_ALL ddprun ddprun-rendezvous ddprun-dev)
if(DDPRUN_HAVE_CUDA)
  list(APPEND CPACK_COMPONENTS_ALL ddprun-cuda)
endif()
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
foreach(_package ddprun ddprun-rendezvous ddprun-cuda ddprun-dev)
  string(TOUPPER ${_package} _upper)
  set(CPACK_DEBIAN_${_upper}_PACKAGE_NAME ${_package})
endforeach()
set(CPACK_COMPONENT_DDPRUN_DESCRIPTION "launcher and trainer for data-parallel training jobs
ddprun starts, wires, watches and heals data-parallel training jobs. It takes
torchrun's command lines, gives workers torchrun's environment and speaks the
c10d store protocol. A data-parallel trainer in C++ comes with it.")
set(CPACK_DEBIAN_DDPRUN_PACKAGE_RECOMMENDS "libhwloc15")
set(CPACK_DEBIAN_DDPRUN_PACKAGE_SUGGESTS "ddprun-rendezvous, python3")
set(CPACK_COMPONENT_DDPRUN-RENDEZVOUS_DESCRIPTION "standing rendezvous for ddprun's training jobs
A daemon where the nodes of many jobs meet and get their ranks. Jobs do not
need it: without one, a node of the job serves the rendezvous itself.")
set(CPACK_DEBIAN_DDPRUN-RENDEZVOUS_PACKAGE_CONTROL_EXTRA
  "${CMAKE_SOURCE_DIR}/deploy/package/debian/conffiles;${CMAKE_SOURCE_DIR}/deploy/package/debian/postinst;${CMAKE_SOURCE_DIR}/deploy/package/debian/prerm;${CMAKE_SOURCE_DIR}/deploy/package/debian/postrm")
set(CPACK_DEBIAN_DDPRUN-RENDEZVOUS_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_DDPRUN-RENDEZVOUS_PACKAGE_SECTION net)
set(CPACK_DEBIAN_DDPRUN-DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DDPRUN-DEV_PACKAGE_CONTROL_EXTRA "${CMAKE_SOURCE_DIR}/deploy/package/debian/triggers;${CMAKE_SOURCE_DIR}/deploy/package/debian/shlibs")
set(CPACK_DEBIAN_DDPRUN-DEV_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_COMPONENT_DDPRUN-DEV_DESCRIPTION "key-value store of ddprun's jobs, from C
A small library with which any program can meet in the store of a job
(PyTorch's TCPStore): connect, set, get, add, wait, each with a deadline.")
set(CPACK_COMPONENT_DDPRUN-CUDA_DESCRIPTION "GPU backend of ddprun's trainer
CUDA, cuDNN and NCCL for the trainer. They come from NVIDIA's packages.")
set(CPACK_DEBIAN_DDPRUN-CUDA_PACKAGE_DEPENDS "ddprun (= ${PROJECT_VERSION}), libc6 (>= 2.34), libgcc-s1, libstdc++6 (>= 11)")
set(CPACK_DEBIAN_DDPRUN-CUDA_PACKAGE_SHLIBDEPS OFF)
include(CPack)
