#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "worker/base/file_bytes.h"
#include "worker/data/formats.h"
#include "worker/data/image.h"
#include "worker/data/sample_random.h"

namespace ddprun::data {
namespace {

namespace fs = std::filesystem;

std::string ending_of(const fs::path& path) {
  std::string ending = path.extension().string();
  std::transform(ending.begin(), ending.end(), ending.begin(), [](unsigned char c) { return std::tolower(c); });
  return ending;
}

// A picture for others, which we cannot read.
bool is_foreign_image(const fs::path& path) {
  static const std::set<std::string> kEndings = {".avif", ".bmp", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".jxl",
                                                 ".pbm",  ".pgm", ".ppm", ".tga",  ".tif",  ".tiff", ".webp"};
  return kEndings.count(ending_of(path)) != 0;
}

// What programs leave behind: .ipynb_checkpoints and .git, the ._1.jpg and __MACOSX of archives made on a Mac. As a
// class it would shift the numbers of all others; within a class it has copies, or no pictures at all.
bool is_hidden(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.front() == '.' || name == "__MACOSX";
}

// What is passed by, to be said in one line for each reason.
class LeftOut {
 public:
  explicit LeftOut(std::string root) : root_(std::move(root)) {}

  void hidden(const fs::path& path) { hidden_.push_back(path.lexically_relative(root_).string()); }
  void foreign(const fs::path& path) { ++foreign_[ending_of(path)]; }

  // "2 .gif, 1 .webp"; "" for none
  std::string foreign_counts() const {
    std::vector<std::string> parts;
    for (const auto& [ending, count] : foreign_) parts.push_back(fmt::format("{} {}", count, ending));
    return fmt::format("{}", fmt::join(parts, ", "));
  }

  std::vector<std::string> lines() const {
    constexpr std::size_t kNamed = 3;
    std::vector<std::string> lines;
    if (!hidden_.empty()) {
      std::vector<std::string> names = hidden_;
      std::sort(names.begin(), names.end());
      const std::size_t more = names.size() - std::min(names.size(), kNamed);
      names.resize(names.size() - more);
      lines.push_back(fmt::format("{}: hidden names are no classes and no samples, left out: {}{}", root_,
                                  fmt::join(names, ", "), more == 0 ? "" : fmt::format(" and {} more", more)));
    }
    if (!foreign_.empty()) {
      lines.push_back(
          fmt::format("{}: pictures that are neither JPEG nor PNG are left out: {}; convert them to have "
                      "them as samples",
                      root_, foreign_counts()));
    }
    return lines;
  }

 private:
  std::string root_;
  std::vector<std::string> hidden_;
  std::map<std::string, std::size_t> foreign_;  // by ending
};

// A link whose target is missing would be a sample, or a whole class, that is left out without a word.
bool is_broken_link(const fs::directory_entry& entry) {
  std::error_code ignored;
  return entry.is_symlink(ignored) && !entry.exists(ignored);
}

Error broken_link(const fs::path& path) {
  return Error(Errc::not_found, path.string() + ": a link to something that is not there");
}

class ImageFolder final : public Dataset {
 public:
  struct File {
    std::string path;
    std::int32_t label;
  };

  ImageFolder(std::vector<File> files, std::vector<std::string> class_names, std::vector<std::string> left_out,
              const DatasetOptions& options)
      : files_(std::move(files)), left_out_(std::move(left_out)), options_(options) {
    spec_.input_shape = {options.image_size, options.image_size, 3};
    spec_.classes = options.classes > 0 ? options.classes : static_cast<std::int64_t>(class_names.size());
    spec_.class_names = std::move(class_names);
    for (std::size_t c = 0; c < 3; ++c) {
      mean_[c] = options.mean.empty() ? 0.0F : static_cast<float>(options.mean[options.mean.size() == 1 ? 0 : c]);
      std_[c] = options.std.empty() ? 1.0F : static_cast<float>(options.std[options.std.size() == 1 ? 0 : c]);
    }
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(files_.size()); }
  const SampleSpec& spec() const override { return spec_; }

  Result<void> read(const SampleKey& key, std::byte* input, std::byte* target) const override {
    const File& file = files_[static_cast<std::size_t>(key.index)];
    auto mapped = MappedFile::open(file.path);
    if (!mapped) return std::move(mapped).error();
    SampleRandom random(key);
    const bool crop = options_.training && options_.crop;
    const std::int64_t size = options_.image_size;
    const ChooseBox choose = [&random, crop, size](std::int64_t width, std::int64_t height) {
      return crop ? random_box(width, height, random) : center_box(width, height, size);
    };
    auto pixels = decode_image((*mapped)->bytes(), choose, size, /*exact=*/!options_.training);
    if (!pixels) return std::move(pixels).error().with_context(file.path);
    const bool mirror = options_.training && options_.flip && (random.next() >> 63) != 0;
    resize_normalise(*pixels, size, mirror, mean_, std_, reinterpret_cast<float*>(input));
    std::memcpy(target, &file.label, sizeof(file.label));
    return {};
  }

  std::string name_of(std::int64_t index) const override { return files_[static_cast<std::size_t>(index)].path; }
  std::vector<std::string> left_out() const override { return left_out_; }

 private:
  std::vector<File> files_;
  std::vector<std::string> left_out_;
  DatasetOptions options_;
  SampleSpec spec_;
  std::array<float, 3> mean_{}, std_{};
};

}  // namespace

bool is_image_name(const fs::path& path) {
  const std::string ending = ending_of(path);
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

static Result<std::unique_ptr<Dataset>> open_pictures(const DatasetOptions& options) {
  std::vector<ImageFolder::File> files;
  for (const std::string& path : options.files) files.push_back({path, 0});
  return std::unique_ptr<Dataset>(
      std::make_unique<ImageFolder>(std::move(files), std::vector<std::string>(), std::vector<std::string>(), options));
}

Result<std::unique_ptr<Dataset>> open_image_folder(const DatasetOptions& options) {
  if (options.unlabeled) return open_pictures(options);
  const std::string& root = options.paths.inputs;
  std::error_code failed;
  LeftOut left_out(root);
  std::vector<std::string> classes;
  for (fs::directory_iterator it(root, failed), end; !failed && it != end; it.increment(failed)) {
    std::error_code ignored;
    if (is_hidden(it->path())) {
      if (it->is_directory(ignored)) left_out.hidden(it->path());
      continue;
    }
    if (is_broken_link(*it)) return broken_link(it->path());
    if (it->is_directory(ignored)) classes.push_back(it->path().filename().string());
  }
  if (failed) return file_error(failed.value(), root);
  std::sort(classes.begin(), classes.end());
  if (classes.empty()) return Error(Errc::invalid_argument, root + ": has no folders (one for each class)");
  if (options.classes > 0 && static_cast<std::int64_t>(classes.size()) > options.classes) {
    return Error(Errc::invalid_argument, fmt::format("{}: {} classes (folders), the model has {} outputs", root,
                                                     classes.size(), options.classes));
  }
  if (!options.mean.empty() && options.mean.size() != 1 && options.mean.size() != 3) {
    return Error(Errc::invalid_argument,
                 fmt::format("data.normalize has {} numbers for 3 channels", options.mean.size()));
  }
  std::vector<ImageFolder::File> files;
  for (std::size_t c = 0; c < classes.size(); ++c) {
    const std::string folder = root + "/" + classes[c];
    std::vector<std::string> paths;
    LeftOut of_class(folder);
    for (fs::recursive_directory_iterator it(folder, fs::directory_options::follow_directory_symlink, failed), end;
         !failed && it != end; it.increment(failed)) {
      std::error_code ignored;
      if (is_hidden(it->path())) {
        it.disable_recursion_pending();
        if (is_image_name(it->path()) || it->is_directory(ignored)) left_out.hidden(it->path());
        continue;
      }
      if (is_broken_link(*it)) return broken_link(it->path());
      if (!it->is_regular_file(ignored)) continue;
      if (is_image_name(it->path())) paths.push_back(it->path().string());
      if (is_foreign_image(it->path())) {
        left_out.foreign(it->path());
        of_class.foreign(it->path());
      }
    }
    if (failed) return file_error(failed.value(), folder);
    if (paths.empty()) {
      const std::string others = of_class.foreign_counts();
      return Error(Errc::invalid_argument, folder + ": no .jpg, .jpeg or .png file in this class" +
                                               (others.empty() ? "" : ", but " + others + ": convert them"));
    }
    std::sort(paths.begin(), paths.end());
    for (std::string& path : paths) {
      files.push_back(ImageFolder::File{std::move(path), static_cast<std::int32_t>(c)});
    }
  }
  return std::unique_ptr<Dataset>(
      std::make_unique<ImageFolder>(std::move(files), std::move(classes), left_out.lines(), options));
}

}  // namespace ddprun::data
