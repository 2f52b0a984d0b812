add_executable(collective_bench ${CMAKE_SOURCE_DIR}/tests/bench/worker/collective_bench.cc)
set_target_properties(collective_bench PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
target_link_libraries(collective_bench PRIVATE ddprun_warnings ddprun_test_comm)
