ddprun_test(trainer_soak_test fault
  SOURCES trainer_soak_test.cc ${CMAKE_SOURCE_DIR}/tests/support/surface_run.cc
  LIBS ddprun_common nlohmann_json::nlohmann_json TIMEOUT 600)
add_dependencies(trainer_soak_test trainer ddprun)
