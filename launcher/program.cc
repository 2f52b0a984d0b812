#include "launcher/program.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <optional>

#include "launcher/option_values.h"

namespace ddprun::launcher {
namespace {

using Kind = FileInfo::Kind;

class DiskLookup : public FileLookup {
 public:
  FileInfo look(const std::string& path) const override {
    FileInfo info;
    struct stat status {};
    if (path.empty() || ::stat(path.c_str(), &status) != 0) {
      info.error = path.empty() ? ENOENT : errno;
      return info;
    }
    info.kind = S_ISREG(status.st_mode) ? Kind::file : S_ISDIR(status.st_mode) ? Kind::directory : Kind::other;
    info.id = fmt::format("{}:{}", status.st_dev, status.st_ino);
    info.readable = ::access(path.c_str(), R_OK) == 0;
    info.executable = ::access(path.c_str(), X_OK) == 0;
    if (info.kind == Kind::file && info.readable) {
      std::ifstream in(path, std::ios::binary);
      info.head.resize(256);
      in.read(info.head.data(), 256);
      info.head.resize(static_cast<std::size_t>(std::max<std::streamsize>(in.gcount(), 0)));
    }
    return info;
  }
};

bool is_elf(const FileInfo& info) {
  return info.head.starts_with(
      "\x7f"
      "ELF");
}
bool has_slash(const std::string& word) { return word.find('/') != std::string::npos; }

// "/usr/bin/env" and "python3" of "#!/usr/bin/env python3"; empty without "#!".
std::vector<std::string> shebang(const FileInfo& info) {
  if (!info.head.starts_with("#!")) return {};
  std::vector<std::string> words;
  std::string word;
  for (const char c :
       info.head.substr(2, info.head.find('\n') == std::string::npos ? std::string::npos : info.head.find('\n') - 2)) {
    if (c == ' ' || c == '\t' || c == '\r') {
      if (!word.empty()) words.push_back(std::move(word));
      word.clear();
    } else {
      word += c;
    }
  }
  if (!word.empty()) words.push_back(std::move(word));
  return words;
}

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

class Resolver {
 public:
  Resolver(const ProgramRequest& request, const FileLookup& files, const EnvLookup& env)
      : request_(request), files_(files), env_(env) {}

  Result<Program> resolve() {
    const auto& name = request_.program;
    if (request_.module) return python_program({"-m", name}, "", name);
    if (request_.run_path) return run_path();
    if (request_.no_python) return without_python();
    if (name.ends_with(".py")) return python_script();

    const FileInfo here = files_.look(name);
    if (here.kind == Kind::file) {
      auto program = existing_file(name, here);
      if (program && !has_slash(name)) program->warning = hiding_warning(here);
      return program;
    }
    if (here.kind == Kind::directory && files_.look(name + "/__main__.py").kind == Kind::file) {
      return python_program({name}, name + "/__main__.py", name);
    }
    if (has_slash(name)) {
      if (here.kind == Kind::missing) return missing(name, here);
      return Error(Errc::system,
                   fmt::format("cannot run {}: it is {}", name,
                               here.kind == Kind::directory ? "a folder without __main__.py" : "no regular file"));
    }
    if (const auto path = beside_us()) return executable(*path, files_.look(*path));
    if (const auto path = in_path(name)) return executable(*path, files_.look(*path));
    if (here.kind == Kind::missing && is_broken(here)) return missing(name, here);
    return Error(Errc::not_found,
                 fmt::format("program '{}' not found: neither in this folder{}, nor beside ddprun{}, nor in PATH", name,
                             here.kind == Kind::directory ? " (a folder without __main__.py)"
                             : here.kind == Kind::other   ? " (no regular file)"
                                                          : "",
                             request_.own_folder.empty() ? "" : " (" + request_.own_folder + ")"));
  }

 private:
  // There may be a file, but this user cannot get to it: a loop of links, a folder that may not be entered.
  static bool is_broken(const FileInfo& info) {
    return info.error != 0 && info.error != ENOENT && info.error != ENOTDIR;
  }

  static Result<Program> missing(const std::string& path, const FileInfo& info) {
    if (is_broken(info)) return Error::from_errno(info.error, "cannot run " + path);
    return Error(Errc::not_found, fmt::format("{} does not exist (no such file or directory)", path));
  }

  std::optional<std::string> in_path(const std::string& word) const {
    for (const auto& folder : split(env_("PATH").value_or("/usr/local/bin:/usr/bin:/bin"), ':')) {
      const std::string path = (folder.empty() ? "." : folder) + "/" + word;
      const FileInfo info = files_.look(path);
      if (info.kind == Kind::file && info.executable) return path;
    }
    return std::nullopt;
  }

  std::optional<std::string> beside_us() const {
    if (request_.own_folder.empty()) return std::nullopt;
    const std::string path = request_.own_folder + "/" + request_.program;
    const FileInfo info = files_.look(path);
    if (info.kind == Kind::file && info.executable) return path;
    return std::nullopt;
  }

  std::string hiding_warning(const FileInfo& here) const {
    const auto ours = beside_us();
    if (!ours) return "";
    const FileInfo info = files_.look(*ours);
    if (!info.id.empty() && info.id == here.id) return "";
    return fmt::format("running ./{} of this folder, not {}; give that path to run ddprun's own", request_.program,
                       *ours);
  }

  Result<std::string> python() const {
    if (const auto named = env_("PYTHON_EXEC"); named && !named->empty()) {
      if (has_slash(*named)) {
        const FileInfo info = files_.look(*named);
        if (info.kind == Kind::file && info.executable) return *named;
        return Error(info.kind == Kind::missing ? Errc::not_found : Errc::system,
                     fmt::format("PYTHON_EXEC={}: {}", *named,
                                 info.kind == Kind::missing ? "there is no such file" : "it cannot be executed"));
      }
      if (auto path = in_path(*named)) return std::move(*path);
      return Error(Errc::not_found, fmt::format("PYTHON_EXEC={}: there is no such program in PATH", *named));
    }
    if (const auto venv = env_("VIRTUAL_ENV"); venv && !venv->empty()) {
      const std::string path = *venv + "/bin/python";
      const FileInfo info = files_.look(path);
      if (info.kind == Kind::file && info.executable) return path;
    }
    for (const char* word : {"python3", "python"}) {
      if (auto path = in_path(word)) return std::move(*path);
    }
    return Error(Errc::not_found,
                 "no python found: neither PYTHON_EXEC nor VIRTUAL_ENV is set, and PATH has no python3 and no python");
  }

  Result<Program> python_program(std::vector<std::string> after, std::string script, std::string entrypoint) const {
    auto interpreter = python();
    if (!interpreter) return std::move(interpreter).error().with_context("cannot run " + entrypoint);
    Program out;
    out.executable = *interpreter;
    out.leading = {*interpreter, "-u"};
    out.leading.insert(out.leading.end(), after.begin(), after.end());
    out.script = std::move(script);
    out.entrypoint = std::move(entrypoint);
    out.python = *interpreter;
    return out;
  }

  Result<Program> python_script() const {
    const auto& name = request_.program;
    const FileInfo info = files_.look(name);
    if (info.kind == Kind::missing) return missing(name, info);
    if (info.kind == Kind::directory && files_.look(name + "/__main__.py").kind == Kind::missing) {
      return Error(Errc::system, fmt::format("cannot run {}: it is a folder without __main__.py", name));
    }
    if (!info.readable) return Error(Errc::system, fmt::format("cannot read {}: permission denied", name));
    return python_program({name}, name, name);
  }

  // The script runs inside an interpreter that records an exception in torch's error file, as torchrun's --run-path
  // does; our own words, torch's schema.
  Result<Program> run_path() const {
    const auto& name = request_.program;
    const FileInfo info = files_.look(name);
    if (info.kind == Kind::missing) return missing(name, info);
    if (!info.readable) return Error(Errc::system, fmt::format("cannot read {}: permission denied", name));
    static const std::string kRunner =
        "import json, os, runpy, sys, time, traceback\n"
        "sys.argv = sys.argv[1:]\n"
        "try:\n"
        "    runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "except Exception as error:\n"
        "    path = os.environ.get('TORCHELASTIC_ERROR_FILE')\n"
        "    if path:\n"
        "        record = {'message': {'message': f'{type(error).__name__}: {error}', 'extraInfo': {\n"
        "            'py_callstack': traceback.format_exc(), 'timestamp': str(int(time.time()))}}}\n"
        "        with open(path, 'w') as out:\n"
        "            json.dump(record, out)\n"
        "    raise\n";
    return python_program({"-c", kRunner, name}, name, name);
  }

  Result<Program> existing_file(const std::string& name, const FileInfo& info) const {
    if (is_elf(info) || (info.executable && info.head.starts_with("#!"))) {
      return executable(has_slash(name) ? name : "./" + name, info);
    }
    if (!info.readable && !info.executable) {
      return Error(Errc::system, fmt::format("cannot read {}: permission denied", name));
    }
    if (!info.readable) return executable(has_slash(name) ? name : "./" + name, info);  // execute-only binary
    return python_program({name}, name, name);
  }

  Result<Program> without_python() const {
    const auto& name = request_.program;
    const FileInfo here = files_.look(name);
    if (has_slash(name)) {
      if (here.kind == Kind::missing) return missing(name, here);
      return executable(name, here);
    }
    if (here.kind == Kind::file && here.executable) return executable("./" + name, here);
    if (const auto path = in_path(name)) return executable(*path, files_.look(*path));
    if (const auto path = beside_us()) return executable(*path, files_.look(*path));
    if (here.kind == Kind::file) return executable("./" + name, here);
    return Error(Errc::not_found,
                 fmt::format("program '{}' not found: neither in this folder nor in PATH (no such file)", name));
  }

  Result<Program> executable(const std::string& path, const FileInfo& info) const {
    if (info.kind == Kind::directory) return Error(Errc::system, fmt::format("cannot run {}: it is a folder", path));
    if (info.kind != Kind::file) return Error(Errc::system, fmt::format("cannot run {}: it is no regular file", path));
    if (!info.executable) {
      return Error(Errc::system, fmt::format("cannot execute {}: permission denied (chmod +x it{})", path,
                                             request_.no_python ? ", or leave out --no-python if it is python" : ""));
    }
    const auto interpreter = shebang(info);
    if (!interpreter.empty() && interpreter.front().starts_with("/") &&
        files_.look(interpreter.front()).kind == Kind::missing) {
      return Error(Errc::not_found, fmt::format("cannot execute {}: its first line names the interpreter {}, which "
                                                "does not exist (no such file)",
                                                path, interpreter.front()));
    }
    Program out;
    out.executable = path;
    out.leading = {request_.no_python || has_slash(request_.program) ? request_.program : path};
    out.entrypoint = request_.program;
    if (!interpreter.empty()) {
      out.script = path;
      for (const auto& word : interpreter) out.wants_unbuffered |= base_name(word).starts_with("python");
    }
    return out;
  }

  const ProgramRequest& request_;
  const FileLookup& files_;
  const EnvLookup& env_;
};

}  // namespace

const FileLookup& disk_lookup() {
  static const DiskLookup lookup;
  return lookup;
}

Result<Program> resolve_program(const ProgramRequest& request, const FileLookup& files, const EnvLookup& env) {
  return Resolver(request, files, env).resolve();
}

bool wants_underscore_local_rank(const std::string& script_text) {
  return script_text.find("--local_rank") != std::string::npos && script_text.find("--local-rank") == std::string::npos;
}

}  // namespace ddprun::launcher
