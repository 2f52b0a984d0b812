#include "launcher/options/program.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <optional>

#include "launcher/options/option_values.h"

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
      if (!program || has_slash(name)) return program;
      if (auto hiding = hiding_warning(here); !hiding.empty()) program->warning = std::move(hiding);
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
    // libexec: where an installation has what nobody should find in PATH (trainer).
    for (const char* const folder : {"/", "/../libexec/ddprun/"}) {
      const std::string path = request_.own_folder + folder + request_.program;
      const FileInfo info = files_.look(path);
      if (info.kind == Kind::file && info.executable) return path;
    }
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

  struct Python {
    std::string path;
    std::string warning;
  };

  // bin/python of an environment; "" = there is none.
  std::string python_of(const std::string& environment) const {
    const std::string path = environment + "/bin/python";
    const FileInfo info = files_.look(path);
    return info.kind == Kind::file && info.executable ? path : "";
  }

  // The environment that a program in its bin/ belongs to: a venv, or one of conda. "" = none (/usr/bin).
  std::string environment_of(const std::string& bin_folder) const {
    if (!bin_folder.ends_with("/bin")) return "";
    const std::string root = bin_folder.substr(0, bin_folder.size() - 4);
    const bool is_one = files_.look(root + "/pyvenv.cfg").kind == Kind::file ||
                        files_.look(root + "/conda-meta").kind == Kind::directory ||
                        (!root.empty() && env_("CONDA_PREFIX").value_or("") == root);
    return is_one ? root : "";
  }

  static std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

  bool same(const std::string& one, const std::string& other) const {
    const std::string id = files_.look(one).id;
    return one == other || (!id.empty() && id == files_.look(other).id);
  }

  std::string in_path_or_empty(const char* word) const { return in_path(word).value_or(""); }

  // torchrun runs with the python of its own environment, whether that is active or not; we do where we lie in one.
  std::string own_environment() const {
    for (const auto& folder : {request_.called_folder, request_.own_folder}) {
      const std::string root = environment_of(folder);
      if (!root.empty() && !python_of(root).empty()) return root;
    }
    return "";
  }

  // Without PYTHON_EXEC. The warning names both where the user may have meant another one.
  Result<Python> default_python() const {
    std::string shell = in_path_or_empty("python3");  // what the user's shell would run
    if (shell.empty()) shell = in_path_or_empty("python");
    const std::string active = env_("VIRTUAL_ENV").value_or("");
    if (const std::string own = own_environment(); !own.empty()) {
      Python out{python_of(own), ""};
      if (!active.empty() && !same(active, own) && !python_of(active).empty()) {
        out.warning = fmt::format(
            "running {}, beside which this ddprun lies, not VIRTUAL_ENV's {} (PYTHON_EXEC={} "
            "would)",
            out.path, python_of(active), python_of(active));
      }
      return out;
    }
    if (!active.empty()) {
      const std::string path = python_of(active);
      if (path.empty()) {
        if (!shell.empty()) {
          return Python{shell,
                        fmt::format("VIRTUAL_ENV={} has no bin/python (is it gone?): running {}", active, shell)};
        }
      } else if (shell.empty() || same(folder_of(shell), folder_of(path))) {
        return Python{path, ""};
      } else if (!environment_of(folder_of(shell)).empty()) {
        return Python{shell, fmt::format("running {} of PATH, as your shell does; VIRTUAL_ENV names another "
                                         "environment, {} (unset it, or set PYTHON_EXEC)",
                                         shell, active)};
      } else {
        return Python{path, fmt::format("running {} of VIRTUAL_ENV; python of PATH is {} (activate the environment, "
                                        "unset VIRTUAL_ENV or set PYTHON_EXEC)",
                                        path, shell)};
      }
    }
    if (!shell.empty()) return Python{shell, ""};
    return Error(Errc::not_found,
                 "no python found: neither PYTHON_EXEC nor VIRTUAL_ENV is set, and PATH has no python3 and no python");
  }

  Result<Python> python() const {
    if (const auto named = env_("PYTHON_EXEC"); named && !named->empty()) {
      if (has_slash(*named)) {
        const FileInfo info = files_.look(*named);
        if (info.kind == Kind::file && info.executable) return Python{*named, ""};
        return Error(info.kind == Kind::missing ? Errc::not_found : Errc::system,
                     fmt::format("PYTHON_EXEC={}: {}", *named,
                                 info.kind == Kind::missing ? "there is no such file" : "it cannot be executed"));
      }
      if (auto path = in_path(*named)) return Python{std::move(*path), ""};
      return Error(Errc::not_found, fmt::format("PYTHON_EXEC={}: there is no such program in PATH", *named));
    }
    return default_python();
  }

  Result<Program> python_program(std::vector<std::string> after, std::string script, std::string entrypoint) const {
    auto interpreter = python();
    if (!interpreter) return std::move(interpreter).error().with_context("cannot run " + entrypoint);
    Program out;
    out.executable = interpreter->path;
    out.leading = {interpreter->path, "-u"};
    out.leading.insert(out.leading.end(), after.begin(), after.end());
    out.script = std::move(script);
    out.entrypoint = std::move(entrypoint);
    out.python = interpreter->path;
    out.warning = std::move(interpreter->warning);
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
  // does; our own words, torch's schema. It ends without taking the interpreter down (os._exit), as torchrun's children
  // do: threads of Gloo and NCCL that still run then abort now and then. What the interpreter does for a script before
  // that is done: its threads, its atexit functions, its buffers.
  Result<Program> run_path() const {
    const auto& name = request_.program;
    const FileInfo info = files_.look(name);
    if (info.kind == Kind::missing) return missing(name, info);
    if (!info.readable) return Error(Errc::system, fmt::format("cannot read {}: permission denied", name));
    static const std::string kRunner =
        "import atexit, json, os, runpy, sys, threading, time, traceback\n"
        "sys.argv = sys.argv[1:]\n"
        "code = 0\n"
        "try:\n"
        "    runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1\n"
        "    if code == 1 and end.code != 1:\n"
        "        print(end.code, file=sys.stderr)\n"
        "except Exception as error:\n"
        "    path = os.environ.get('TORCHELASTIC_ERROR_FILE')\n"
        "    if path:\n"
        "        record = {'message': {'message': f'{type(error).__name__}: {error}', 'extraInfo': {\n"
        "            'py_callstack': traceback.format_exc(), 'timestamp': str(int(time.time()))}}}\n"
        "        with open(path, 'w') as out:\n"
        "            json.dump(record, out)\n"
        "    sys.excepthook(*sys.exc_info())\n"
        "    code = 1\n"
        "getattr(threading, '_shutdown', lambda: None)()\n"
        "getattr(atexit, '_run_exitfuncs', lambda: None)()\n"
        "for stream in (sys.stdout, sys.stderr):\n"
        "    try:\n"
        "        if not getattr(stream, 'closed', stream is None):\n"
        "            stream.flush()\n"
        "    except Exception:\n"
        "        code = code or 120\n"  // as the interpreter itself
        "os._exit(code & 255)\n";
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
    const std::string first_line = info.head.substr(0, info.head.find('\n'));
    if (!interpreter.empty() && first_line.ends_with('\r')) {
      return Error(Errc::system, fmt::format("cannot execute {}: its first line ends in a carriage return, which the "
                                             "kernel takes for part of the interpreter's name; the file has Windows "
                                             "line ends (dos2unix {})",
                                             path, path));
    }
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
  auto program = Resolver(request, files, env).resolve();
  if (!program) return Error(program.error().code(), usage_sentence(program.error().message()));
  return program;
}

bool wants_underscore_local_rank(const std::string& script_text) {
  return script_text.find("--local_rank") != std::string::npos && script_text.find("--local-rank") == std::string::npos;
}

}  // namespace ddprun::launcher
