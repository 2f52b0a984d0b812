#include "launcher/process/worker_stdio.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace ddprun::launcher {
namespace {

Result<UniqueFd> create_log(const std::string& path) {
  // Never over an older file: every attempt has its own folder.
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666));
  if (!fd) return Error::from_errno(errno, "cannot make log file " + path);
  return fd;
}

Result<std::shared_ptr<LineFilter>> make_filter(const std::vector<std::string>& needles, const std::string& path) {
  std::shared_ptr<LineFilter> filter;
  if (needles.empty()) return filter;
  auto file = create_log(path);
  if (!file) return std::move(file).error();
  filter = std::make_shared<LineFilter>();
  filter->file = *std::move(file);
  filter->needles = needles;
  return filter;
}

StdinPolicy::Source stdin_source() {
  if (::isatty(0) != 1) return StdinPolicy::Source::other;
  const pid_t foreground = ::tcgetpgrp(0);  // -1: not our controlling terminal
  return foreground < 0 || foreground == ::getpgrp() ? StdinPolicy::Source::terminal
                                                     : StdinPolicy::Source::background_terminal;
}

}  // namespace

std::vector<std::string> WorkerStdio::Side::last_lines(std::size_t count) const {
  if (direct_path.empty()) {
    return launcher::last_lines(recent, count, recent.size() >= OutputHub::kRecentBytes);
  }
  const UniqueFd fd(::open(direct_path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return {};
  const off_t size = ::lseek(fd.get(), 0, SEEK_END);
  const off_t from = std::max<off_t>(0, size - static_cast<off_t>(OutputHub::kRecentBytes));
  std::string bytes(static_cast<std::size_t>(size - from), '\0');
  const ssize_t n = ::pread(fd.get(), bytes.data(), bytes.size(), from);
  bytes.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  return launcher::last_lines(bytes, count, from > 0);
}

void WorkerStdio::start_pumps(OutputHub& hub) {
  for (Side* side : {&out, &err}) {
    side->theirs.reset();
    if (side->pumped) side->hub_id = hub.add(std::move(side->stream));
  }
}

std::vector<int> WorkerStdio::hub_ids() const {
  std::vector<int> ids;
  for (const Side* side : {&out, &err}) {
    if (side->hub_id >= 0) ids.push_back(side->hub_id);
  }
  return ids;
}

void WorkerStdio::take_recent(int hub_id, std::string recent) {
  (out.hub_id == hub_id ? out : err).recent = std::move(recent);
}

Result<AttemptStdio> AttemptStdio::make(const WorkerGroupOptions& options, const OutputHub& hub, AttemptFolder folder) {
  AttemptStdio attempt(options, hub, std::move(folder));
  const bool keeps_files = options.logs && !options.logs->temporary() && !attempt.folder_.path.empty();
  if (!keeps_files) return attempt;
  const std::string& path = attempt.folder_.path;
  auto out = make_filter(options.output.duplicate_stdout_filters, path + "/filtered_stdout.log");
  if (!out) return std::move(out).error();
  auto err = make_filter(options.output.duplicate_stderr_filters, path + "/filtered_stderr.log");
  if (!err) return std::move(err).error();
  attempt.stdout_filter_ = *std::move(out);
  attempt.stderr_filter_ = *std::move(err);
  return attempt;
}

Result<WorkerStdio> AttemptStdio::open(const WorkerEnv& env) const {
  WorkerStdio stdio;
  const bool has_stdin = options_->stdin_policy.gives(env.local_rank, stdin_source());
  if (has_stdin && ::fcntl(0, F_GETFD) >= 0) stdio.stdin_fd = 0;
  for (const bool is_stderr : {false, true}) {
    if (auto opened = open_side(env, is_stderr, stdio); !opened) return std::move(opened).error();
  }
  return stdio;
}

Result<void> AttemptStdio::open_side(const WorkerEnv& env, bool is_stderr, WorkerStdio& stdio) const {
  const OutputPolicy& policy = options_->output;
  const LocalRank rank = env.local_rank;
  WorkerStdio::Side& side = is_stderr ? stdio.err : stdio.out;
  const bool tee = is_stderr ? policy.tee.has_stderr(rank) : policy.tee.has_stdout(rank);
  const bool redirect = is_stderr ? policy.redirects.has_stderr(rank) : policy.redirects.has_stdout(rank);
  const bool shown = !policy.console_ranks || policy.console_ranks->count(rank.value) != 0;
  const bool has_files = !folder_.path.empty();
  const bool keeps_files = has_files && options_->logs && !options_->logs->temporary();
  const std::string path = !has_files ? "" : is_stderr ? folder_.stderr_log(rank) : folder_.stdout_log(rank);
  using Target = OutputHub::Target;
  const Target console = is_stderr ? Target::console_stderr : Target::console_stdout;

  side.stream.name = "rank " + std::to_string(env.rank.value) + (is_stderr ? " standard error" : " standard output");
  if (tee ? keeps_files : redirect && has_files) {
    auto file = create_log(path);
    if (!file) return std::move(file).error();
    stdio.log_paths.push_back(path);
    if (!tee && policy.log_max_size_bytes == 0) {  // nothing to do for us: the worker writes it itself
      side.direct_path = path;
      side.theirs = *std::move(file);
      return {};
    }
    side.stream.file = *std::move(file);
    side.stream.path = path;
  }
  side.pumped = true;
  side.stream.target = !shown || (redirect && !tee) ? Target::none : console;
  if (tee) {
    side.stream.prefix = fill_prefix(policy.prefix_template, env.role_name, rank, env.rank, options_->host_name);
    if (shown) side.stream.filter = is_stderr ? stderr_filter_ : stdout_filter_;
  }
  // A tee'd stream goes to a file first, so it is no terminal for the worker (as in torchrun).
  const bool pty = !tee && side.stream.target != Target::none && hub_->is_terminal(console);
  auto pair = pty ? make_pty(is_stderr ? policy.console_stderr : policy.console_stdout) : make_pipe();
  if (!pair && pty) pair = make_pipe();  // no pty left on this host
  if (!pair) return std::move(pair).error();
  side.stream.source = std::move(pair->ours);
  side.theirs = std::move(pair->theirs);
  return {};
}

}  // namespace ddprun::launcher
