#include "launcher/output/log_tree.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>

#include "common/log.h"
#include "common/system.h"
#include "common/unique_fd.h"

namespace ddprun::launcher {
namespace {

// A run id is free text; in a folder's name only what every file system takes.
std::string folder_name(const std::string& run_id) {
  std::string name = run_id.substr(0, 100);
  for (char& c : name) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("._-+=@:").find(c) != std::string_view::npos;
    if (!plain) c = '_';
  }
  return name == "." || name == ".." || name.empty() ? "_" : name;
}

}  // namespace

void remove_tree(const std::string& path) {
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
}

Result<void> LogTree::make_root(const std::string& parent, const std::string& run_id, const std::string& host) {
  const std::string start = parent + "/" + folder_name(run_id) + "_" + (host.empty() ? "" : folder_name(host) + "_");
  for (int attempt = 0; attempt < 100; ++attempt) {
    const std::string path = start + random_hex(4);
    if (::mkdir(path.c_str(), 0777) == 0) {
      root_ = path;
      return {};
    }
    if (errno != EEXIST) return Error::from_errno(errno, "cannot make a folder for this run in " + parent);
  }
  return Error(Errc::system, "cannot find a free folder name in " + parent);
}

Result<std::shared_ptr<LogTree>> LogTree::open(const std::string& log_dir, const std::string& run_id,
                                               std::shared_ptr<FolderKeeper> keeper, const std::string& host) {
  std::shared_ptr<LogTree> tree(new LogTree());
  tree->run_id_ = run_id;
  tree->keeper_ = std::move(keeper);
  if (log_dir.empty()) {
    tree->temporary_ = true;
    return tree;
  }
  if (log_dir == "/dev/null") {
    tree->disabled_ = true;
    return tree;
  }
  std::error_code ec;
  const std::filesystem::path absolute = std::filesystem::absolute(log_dir, ec);
  std::string parent = ec ? log_dir : absolute.string();
  while (parent.size() > 1 && parent.back() == '/') parent.pop_back();
  std::filesystem::create_directories(parent, ec);
  struct stat status = {};
  if (::stat(parent.c_str(), &status) == 0 && !S_ISDIR(status.st_mode)) {
    return Error(Errc::invalid_argument, "log directory " + parent + " exists but is a file; give a folder");
  }
  if (ec) return Error::from_errno(ec.value(), "cannot make log directory " + parent);
  if (auto made = tree->make_root(parent, run_id, host); !made) return std::move(made).error();
  // Not only the name: a full disk must be told now and not by the first worker.
  const std::string probe = tree->root_ + "/.probe";
  const UniqueFd fd(::open(probe.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  const bool written = fd && ::write(fd.get(), "x", 1) == 1;
  const int error = errno;
  ::unlink(probe.c_str());
  if (!written) {
    ::rmdir(tree->root_.c_str());
    return Error::from_errno(error, "cannot write to log directory " + parent);
  }
  return tree;
}

Result<void> LogTree::try_out(const std::string& log_dir) {
  std::error_code ec;
  std::vector<std::filesystem::path> made;  // by open(), innermost first
  for (auto folder = std::filesystem::absolute(log_dir, ec); !ec && folder.has_relative_path();
       folder = folder.parent_path()) {
    if (std::filesystem::exists(folder, ec) || ec) break;
    made.push_back(folder);
  }
  auto tree = open(log_dir, "doctor", nullptr);
  if (tree) ::rmdir((*tree)->root().c_str());
  for (const auto& folder : made) ::rmdir(folder.c_str());
  if (!tree) return std::move(tree).error();
  return {};
}

void LogTree::keep() {
  if (temporary_ && keeper_ && !root_.empty()) keeper_->remove_folder(root_);
  temporary_ = false;
}

LogTree::~LogTree() {
  if (!temporary_ || root_.empty()) return;
  remove_tree(root_);
  if (keeper_) keeper_->remove_folder(root_);
}

Result<AttemptFolder> LogTree::begin_attempt(std::int64_t restart_count, Round round, std::int64_t local_world_size) {
  AttemptFolder attempt;
  if (disabled_) return attempt;
  if (root_.empty()) {
    const char* const from_environment = ::getenv("TMPDIR");
    const std::string parent =
        from_environment != nullptr && *from_environment != '\0' ? from_environment : std::string("/tmp");
    // The guard is told first, so that a kill in between leaves nothing behind.
    int error = EEXIST;
    for (int again = 0; root_.empty() && error == EEXIST && again < 100; ++again) {
      const std::string path = parent + "/ddprun_" + random_hex(4);
      if (keeper_ && temporary_) keeper_->add_folder(path);
      if (::mkdir(path.c_str(), 0700) == 0) {
        root_ = path;
      } else {
        error = errno;
        if (keeper_ && temporary_) keeper_->remove_folder(path);
      }
    }
    if (root_.empty()) {
      if (!temporary_) {
        return Error(Errc::system, "cannot make the workers' log folder in " + parent + ": " +
                                       std::error_code(error, std::generic_category()).message() +
                                       " (set TMPDIR or give --log-dir)");
      }
      // Only error files would be there: the job can run without.
      log_warning("no error files of workers in the report: cannot make a folder in {}: {}", parent,
                  std::error_code(error, std::generic_category()).message());
      disabled_ = true;
      return attempt;
    }
  }
  const std::string base = root_ + "/attempt_" + std::to_string(restart_count);
  std::string path = base;
  for (int again = 0; ::mkdir(path.c_str(), 0777) != 0; ++again) {
    if (errno != EEXIST || again > 1000) return Error::from_errno(errno, "cannot make log folder " + path);
    // The same count in a later round (membership changed), or twice in one round (a start that did not succeed).
    path = base + ".round_" + std::to_string(round.value) + (again == 0 ? "" : "." + std::to_string(again));
  }
  attempt.path = path;
  for (std::int64_t rank = 0; rank < local_world_size; ++rank) {
    const std::string folder = attempt.of_rank(LocalRank(rank));
    if (::mkdir(folder.c_str(), 0777) != 0) return Error::from_errno(errno, "cannot make log folder " + folder);
  }
  return attempt;
}

}  // namespace ddprun::launcher
