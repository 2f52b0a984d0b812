ddprun_test(comm_fault_test fault SOURCES comm_fault_test.cc LIBS ddprun_test_comm TIMEOUT 180)
