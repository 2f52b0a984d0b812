// loader_bench FOLDER [THREADS] [IMAGE_SIZE] [TARGET_SECONDS]: images a second of the training pipeline (decode, random
// crop, flip, normalise) over an image folder, for loader_bench.py, which runs torchvision's DataLoader beside it.
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

#include "common/clock.h"
#include "worker/data/loader.h"

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: loader_bench FOLDER [THREADS] [IMAGE_SIZE] [SECONDS]\n");
    return 2;
  }
  const int threads = argc > 2 ? std::atoi(argv[2]) : 1;
  ddprun::data::DatasetOptions options;
  options.format = "image_folder";
  options.paths.inputs = argv[1];
  options.crop = options.flip = true;
  options.image_size = argc > 3 ? std::atoi(argv[3]) : 224;
  const double wanted_s = argc > 4 ? std::atof(argv[4]) : 5;
  options.mean = {0.485, 0.456, 0.406};
  options.std = {0.229, 0.224, 0.225};
  auto dataset = ddprun::data::open_dataset(options);
  if (!dataset) {
    std::fprintf(stderr, "loader_bench: %s\n", dataset.error().message().c_str());
    return 1;
  }
  ddprun::data::LoaderOptions loading;
  loading.batch_size = 32;
  loading.num_workers = threads;
  const std::shared_ptr<const ddprun::data::Dataset> images_on_disk = std::move(*dataset);
  auto created = ddprun::data::Loader::create(images_on_disk, loading);
  if (!created) {
    std::fprintf(stderr, "loader_bench: %s\n", created.error().message().c_str());
    return 1;
  }
  ddprun::data::Loader& loader = **created;
  std::vector<std::int64_t> order(static_cast<std::size_t>(images_on_disk->size()));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::int64_t images = 0;
  const auto start = ddprun::SteadyClock::now();
  const auto elapsed = [start] { return std::chrono::duration<double>(ddprun::SteadyClock::now() - start).count(); };
  for (std::int64_t epoch = 0; elapsed() < wanted_s; ++epoch) {
    if (auto begun = loader.begin_epoch(epoch, order); !begun) {
      std::fprintf(stderr, "loader_bench: %s\n", begun.error().message().c_str());
      return 1;
    }
    for (;;) {
      auto batch = loader.next();
      if (!batch) {
        std::fprintf(stderr, "loader_bench: %s\n", batch.error().message().c_str());
        return 1;
      }
      if (*batch == nullptr) break;
      images += (*batch)->size;
    }
  }
  std::printf("%.1f\n", static_cast<double>(images) / elapsed());
  return 0;
}
