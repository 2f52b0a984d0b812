find_package(OpenMP REQUIRED COMPONENTS CXX)
ddprun_test(engine_ranks_test process SOURCES engine_ranks_test.cc
  LIBS ddprun_models ddprun_optim ddprun_test_comm OpenMP::OpenMP_CXX TIMEOUT 240)
ddprun_test(engine_nodes_test process SOURCES engine_nodes_test.cc ../../support/surface_run.cc
  LIBS ddprun_common TIMEOUT 180)
add_dependencies(engine_nodes_test trainer ddprun)
