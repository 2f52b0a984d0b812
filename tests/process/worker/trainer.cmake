foreach(name trainer_process_test trainer_resume_test trainer_hard_times_test trainer_weights_test
    trainer_validation_test trainer_apply_test trainer_connect_test)
  ddprun_test(${name} process
    SOURCES ${name}.cc ../../support/surface_run.cc
    LIBS ddprun_common nlohmann_json::nlohmann_json TIMEOUT 240)
  add_dependencies(${name} trainer ddprun)
endforeach()

# For tests/interop/test_data.py.
add_executable(dump_samples ${CMAKE_SOURCE_DIR}/tests/interop/dump_samples.cc)
set_target_properties(dump_samples PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
target_link_libraries(dump_samples PRIVATE ddprun_warnings ddprun_data)
ddprun_test(batch_wait_test process SOURCES batch_wait_test.cc LIBS ddprun_run ddprun_test_comm TIMEOUT 120)
