add_library(ddprun_test_comm STATIC ${CMAKE_SOURCE_DIR}/tests/support/comm_ranks.cc)
target_link_libraries(ddprun_test_comm PUBLIC ddprun_comm ddprun_ddp)

ddprun_test(comm_contract_test process-tsan SOURCES comm_contract_test.cc LIBS ddprun_test_comm TIMEOUT 180)
ddprun_test(comm_nccl_test process-tsan SOURCES comm_nccl_test.cc LIBS ddprun_test_comm ddprun_device TIMEOUT 120)
ddprun_test(reducer_test process-tsan SOURCES reducer_test.cc LIBS ddprun_test_comm TIMEOUT 180)
ddprun_test(flight_process_test process SOURCES flight_process_test.cc TIMEOUT 120)
add_dependencies(flight_process_test ddprun ddpctl trainer)
ddprun_test(comm_nodes_test process SOURCES comm_nodes_test.cc TIMEOUT 120)
add_dependencies(comm_nodes_test ddprun trainer)

# For tests/interop/test_hooks.py.
add_executable(hook_ranks ${CMAKE_SOURCE_DIR}/tests/interop/hook_ranks.cc)
set_target_properties(hook_ranks PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
target_link_libraries(hook_ranks PRIVATE ddprun_warnings ddprun_test_comm)
