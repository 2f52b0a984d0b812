#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "worker/comm/nccl_communicator.h"
#include "worker/device/backend.h"

// The installed libnccl through libddprun_cuda.so. Needs no device: ids can be made without one, and the error of an
// initialisation without one must come out as ours.
namespace ddprun::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class RealNccl : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    auto backend = cuda::load_backend();
    if (!backend) GTEST_SKIP() << "built without CUDA: " << backend.error().message();
    backend_ = *backend;
  }
  cuda::DeviceBackend* backend_ = nullptr;
};

TEST_F(RealNccl, MakesDifferentUniqueIds) {
  NcclUniqueId first{}, second{};
  ASSERT_EQ(backend_->nccl().get_unique_id(&first), NcclApi::kSuccess) << backend_->nccl().last_error(nullptr);
  ASSERT_EQ(backend_->nccl().get_unique_id(&second), NcclApi::kSuccess);
  EXPECT_NE(first, second);
  EXPECT_THAT(backend_->nccl().version(), HasSubstr("."));
}

TEST_F(RealNccl, InitialisationWithoutADeviceIsOurError) {
  auto devices = backend_->device_count();
  if (devices && *devices > 0) GTEST_SKIP() << "this host has " << *devices << " GPUs; the test is about having none";
  NcclApi& nccl = backend_->nccl();
  NcclUniqueId id{};
  ASSERT_EQ(nccl.get_unique_id(&id), NcclApi::kSuccess);
  NcclComm comm = nullptr;
  const int status = nccl.init_rank(&comm, 1, id, 0);
  ASSERT_NE(status, NcclApi::kSuccess);
  const Error error = nccl_error(nccl, nullptr, 0, "ncclCommInitRankConfig", status);
  EXPECT_THAT(error.message(),
              AllOf(HasSubstr("NCCL on rank 0: ncclCommInitRankConfig"), HasSubstr("driver"), HasSubstr("dmesg")));
}

}  // namespace
}  // namespace ddprun::comm
