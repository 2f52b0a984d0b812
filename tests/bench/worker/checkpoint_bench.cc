// checkpoint_bench [MB] [FOLDER]: how long a save keeps the training waiting, beside a memcpy of the same bytes in the
// same run. Aim: at most 1.5 times the copy.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "common/clock.h"
#include "worker/checkpoint/writer.h"

int main(int argc, char** argv) {
  namespace ck = ddprun::checkpoint;
  const std::size_t megabytes = argc > 1 ? static_cast<std::size_t>(std::atoi(argv[1])) : 200;
  std::string folder = std::string(argc > 2 ? argv[2] : "/tmp") + "/ddprun-checkpoint-bench-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) return 1;
  auto directory = ck::CheckpointDirectory::open(folder);
  if (!directory) {
    std::fprintf(stderr, "%s\n", directory.error().message().c_str());
    return 1;
  }
  // As a model has it: tensors of 4 MB, as many of optimizer state.
  constexpr std::size_t kTensor = 4 << 20;
  const std::size_t count = std::max<std::size_t>(2, (megabytes << 20) / kTensor);
  std::vector<ck::TensorShape> model;
  std::vector<ck::TensorShape> optimizer;
  for (std::size_t i = 0; i < count; ++i) {
    ck::TensorShape shape{"t" + std::to_string(i), ck::TensorType::f32, {kTensor / 4}, kTensor};
    (i < count / 2 ? model : optimizer).push_back(shape);
  }
  std::vector<std::byte> source(count * kTensor, std::byte{1});
  std::vector<std::byte> target(count * kTensor, std::byte{2});
  const auto seconds = [](ddprun::TimePoint from) {
    return std::chrono::duration<double>(ddprun::SteadyClock::now() - from).count();
  };
  std::vector<double> copies;
  std::vector<double> pauses;
  double saved_s = 0;
  {
    auto created = ck::CheckpointWriter::create(
        ck::write_into(std::make_shared<const ck::CheckpointDirectory>(std::move(*directory)), 2),
        std::chrono::minutes(10), model, optimizer);
    if (!created) {
      std::fprintf(stderr, "%s\n", created.error().message().c_str());
      return 1;
    }
    ck::CheckpointWriter& writer = **created;
    for (int round = 0; round < 7; ++round) {
      auto start = ddprun::SteadyClock::now();
      std::memcpy(target.data(), source.data(), source.size());
      copies.push_back(seconds(start));
      (void)writer.begin();  // idle by now: see wait() below
      start = ddprun::SteadyClock::now();
      const auto begun = writer.begin();
      if (!begun) {
        std::fprintf(stderr, "%s\n", begun.error().message().c_str());
        break;
      }
      const std::vector<std::byte*>& places = **begun;
      for (std::size_t i = 0; i < count; ++i) std::memcpy(places[i], source.data() + i * kTensor, kTensor);
      ck::TrainState state;
      state.step = round;
      writer.submit(state);
      pauses.push_back(seconds(start));
      auto done = writer.wait();
      saved_s = seconds(start);
      if (!done) {
        std::fprintf(stderr, "%s\n", done.error().message().c_str());
        break;
      }
    }
  }
  std::filesystem::remove_all(folder);
  const double copy = *std::min_element(copies.begin(), copies.end());
  const double pause = *std::min_element(pauses.begin(), pauses.end());
  std::printf("%zu MB: pause %.1f ms, memcpy %.1f ms, ratio of the best %.2f (aim 1.5); on the disk after %.0f ms\n",
              (count * kTensor) >> 20, pause * 1e3, copy * 1e3, pause / copy, saved_s * 1e3);
  return 0;
}
