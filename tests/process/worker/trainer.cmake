ddprun_test(trainer_process_test process
  SOURCES trainer_process_test.cc ../../support/surface_run.cc
  LIBS ddprun_common nlohmann_json::nlohmann_json TIMEOUT 180)
add_dependencies(trainer_process_test trainer ddprun)
