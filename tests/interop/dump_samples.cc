// dump_samples FORMAT PATH TRAINING(0|1) SIZE EPOCH INDEX...: writes the samples' inputs as raw f32 to stdout.
// Lets the interop tests compare our pixels with torchvision's.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "worker/data/dataset.h"

int main(int argc, char** argv) {
  if (argc < 7) return 2;
  ddprun::data::DatasetOptions options;
  options.format = argv[1];
  options.paths.inputs = argv[2];
  options.training = argv[3][0] == '1';
  options.crop = options.flip = options.training;
  options.image_size = std::atoi(argv[4]);
  options.mean = {0.485, 0.456, 0.406};
  options.std = {0.229, 0.224, 0.225};
  auto dataset = ddprun::data::open_dataset(options);
  if (!dataset) {
    std::fprintf(stderr, "%s\n", dataset.error().message().c_str());
    return 1;
  }
  std::vector<std::byte> input((*dataset)->spec().input_bytes());
  std::vector<std::byte> target((*dataset)->spec().target_bytes());
  for (int i = 6; i < argc; ++i) {
    const ddprun::data::SampleKey key{.seed = 0, .epoch = std::atoi(argv[5]), .index = std::atoi(argv[i])};
    auto done = (*dataset)->read(key, input.data(), target.data());
    if (!done) {
      std::fprintf(stderr, "%s\n", done.error().message().c_str());
      return 1;
    }
    std::fwrite(input.data(), 1, input.size(), stdout);
    std::fprintf(stderr, "%s\n", (*dataset)->name_of(key.index).c_str());
  }
  return 0;
}
