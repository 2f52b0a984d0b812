#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/result.h"
#include "common/types.h"

// Where one run's files are, laid out as torchrun's:
//   <log dir>/<run id>_<8 random>/attempt_<restart count>/<local rank>/{stdout.log,stderr.log,error.json}
//   and attempt_<n>/filtered_{stdout,stderr}.log. A later round with the same restart count is attempt_<n>.round_<R>.
// With several nodes, which may share a disk, the run's folder is <run id>_<host>_<8 random>.
namespace ddprun::launcher {

// Removes what is named here when we are gone, in whatever way: the guard.
class FolderKeeper {
 public:
  virtual ~FolderKeeper() = default;
  virtual void add_folder(const std::string& path) = 0;  // removed with all that is in it
  virtual void remove_folder(const std::string& path) = 0;
};

struct AttemptFolder {
  std::string path;  // "" = no files are wanted

  std::string of_rank(LocalRank rank) const { return path.empty() ? "" : path + "/" + std::to_string(rank.value); }
  std::string error_file(LocalRank rank) const { return path.empty() ? "" : of_rank(rank) + "/error.json"; }
  std::string stdout_log(LocalRank rank) const { return of_rank(rank) + "/stdout.log"; }
  std::string stderr_log(LocalRank rank) const { return of_rank(rank) + "/stderr.log"; }
};

class LogTree {
 public:
  // log_dir: made if missing and tried at once (a missing right or a full disk is an error here, before any worker);
  // "" = a folder in the temporary directory, made when it is first needed and removed with this object or by the
  // guard; "/dev/null" = no files at all. Errors: system or not_found, with the path and what to do.
  // host: "" = one node.
  static Result<std::shared_ptr<LogTree>> open(const std::string& log_dir, const std::string& run_id,
                                               std::shared_ptr<FolderKeeper> keeper, const std::string& host = "");
  // Would open() take it? What it makes to find out it removes again. Errors: as open().
  static Result<void> try_out(const std::string& log_dir);
  ~LogTree();
  LogTree(const LogTree&) = delete;
  LogTree& operator=(const LogTree&) = delete;

  // Makes the folders of an attempt. Nothing that exists is ever deleted or overwritten.
  Result<AttemptFolder> begin_attempt(std::int64_t restart_count, Round round, std::int64_t local_world_size);

  // The temporary folder is to stay: it will hold the only copy of something.
  void keep();

  const std::string& root() const { return root_; }  // this run's own folder; "" until there is one
  bool temporary() const { return temporary_; }      // nothing of it outlives us

 private:
  LogTree() = default;
  Result<void> make_root(const std::string& parent, const std::string& run_id, const std::string& host);

  std::string root_;
  std::string run_id_;
  bool temporary_ = false;
  bool disabled_ = false;
  std::shared_ptr<FolderKeeper> keeper_;
};

// Removes a folder with all that is in it; follows no link. Best effort.
void remove_tree(const std::string& path);

}  // namespace ddprun::launcher
