ddprun_test(comm_fault_test fault SOURCES comm_fault_test.cc LIBS ddprun_test_comm TIMEOUT 180)
ddprun_test(comm_netns_test fault SOURCES comm_netns_test.cc LIBS ddprun_test_comm TIMEOUT 120)
