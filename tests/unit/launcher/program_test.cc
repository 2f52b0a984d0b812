#include "launcher/options/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <map>

namespace ddprun::launcher {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class FakeFiles : public FileLookup {
 public:
  FileInfo look(const std::string& path) const override {
    const auto found = files.find(path);
    return found == files.end() ? FileInfo{} : found->second;
  }

  FakeFiles& file(const std::string& path, const std::string& head, bool executable, bool readable = true) {
    files[path] = FileInfo{FileInfo::Kind::file, readable, executable, readable ? head : "", "id:" + path};
    return *this;
  }
  FakeFiles& folder(const std::string& path) {
    files[path] = FileInfo{FileInfo::Kind::directory, true, true, "", "id:" + path};
    return *this;
  }

  std::map<std::string, FileInfo> files;
};

class ProgramTest : public testing::Test {
 protected:
  ProgramTest() {
    environment = {{"PATH", "/bin:/usr/bin"}};
    request.own_folder = "/opt/ddprun/bin";
    files.file("/usr/bin/python3", kElf, true).file("/bin/bash", kElf, true).file("/usr/bin/env", kElf, true);
    files.file("/opt/ddprun/bin/trainer", kElf, true);
  }

  Result<Program> resolve(const std::string& name) {
    request.program = name;
    return resolve_program(request, files, [this](const std::string& variable) -> std::optional<std::string> {
      const auto found = environment.find(variable);
      if (found == environment.end()) return std::nullopt;
      return found->second;
    });
  }
  Program good(const std::string& name) {
    auto program = resolve(name);
    EXPECT_TRUE(program.has_value()) << (program ? "" : program.error().message());
    return program ? *program : Program{};
  }
  Error bad(const std::string& name) {
    auto program = resolve(name);
    EXPECT_FALSE(program.has_value());
    return program ? Error(Errc::system, "(found)") : program.error();
  }

  static inline const std::string kElf =
      "\x7f"
      "ELF\x02";
  ProgramRequest request;
  FakeFiles files;
  std::map<std::string, std::string> environment;
};

TEST_F(ProgramTest, AnInstallationHasTheTrainerInLibexec) {
  files.files.erase("/opt/ddprun/bin/trainer");
  files.file("/opt/ddprun/bin/../libexec/ddprun/trainer", kElf, true).file("/usr/bin/trainer", kElf, true);
  EXPECT_EQ(good("trainer").executable, "/opt/ddprun/bin/../libexec/ddprun/trainer");
  files.file("/opt/ddprun/bin/trainer", kElf, true);
  EXPECT_EQ(good("trainer").executable, "/opt/ddprun/bin/trainer");
}

TEST_F(ProgramTest, AFileThatCannotBeReachedSaysWhy) {
  files.files["loop"].error = ELOOP;
  files.files["./closed/run"].error = EACCES;
  EXPECT_THAT(bad("loop").message(), HasSubstr("symbolic links"));
  EXPECT_THAT(bad("./closed/run").message(), HasSubstr("Permission denied"));
  EXPECT_EQ(bad("./closed/run").code(), Errc::system);
  files.folder("data");
  EXPECT_THAT(bad("data").message(), HasSubstr("a folder without __main__.py"));
}

TEST_F(ProgramTest, PythonScriptRunsUnbuffered) {
  files.file("train.py", "import torch\n", false);
  const auto program = good("train.py");
  EXPECT_EQ(program.executable, "/usr/bin/python3");
  EXPECT_THAT(program.leading, ElementsAre("/usr/bin/python3", "-u", "train.py"));
  EXPECT_EQ(program.script, "train.py");
  EXPECT_EQ(program.python, "/usr/bin/python3");
}

TEST_F(ProgramTest, ExecutablePythonScriptWithPyNameIsRunByOurPython) {
  files.file("dir/train.py", "#!/usr/bin/python2\n", true);
  EXPECT_THAT(good("dir/train.py").leading, ElementsAre("/usr/bin/python3", "-u", "dir/train.py"));
}

TEST_F(ProgramTest, Module) {
  request.module = true;
  EXPECT_THAT(good("pkg.train").leading, ElementsAre("/usr/bin/python3", "-u", "-m", "pkg.train"));
}

TEST_F(ProgramTest, PythonIsChosenInOrder) {
  files.file("t.py", "", false).file("/venv/bin/python", kElf, true).file("/my/python", kElf, true);
  files.file("/usr/bin/python", kElf, true);
  EXPECT_EQ(good("t.py").python, "/usr/bin/python3");
  environment["VIRTUAL_ENV"] = "/venv";
  EXPECT_EQ(good("t.py").python, "/venv/bin/python");
  EXPECT_THAT(good("t.py").warning, HasSubstr("python of PATH is /usr/bin/python3"));
  environment["PYTHON_EXEC"] = "/my/python";
  EXPECT_EQ(good("t.py").python, "/my/python");
  environment["PYTHON_EXEC"] = "python";
  EXPECT_EQ(good("t.py").python, "/usr/bin/python");
  environment["PYTHON_EXEC"] = "/no/python";
  EXPECT_THAT(bad("t.py").message(), HasSubstr("PYTHON_EXEC=/no/python: there is no such file"));
  environment = {{"PATH", "/bin"}};
  EXPECT_THAT(bad("t.py").message(), HasSubstr("no python found"));
  EXPECT_EQ(bad("t.py").code(), Errc::not_found);
}

TEST_F(ProgramTest, VirtualEnvAgainstPath) {
  files.file("t.py", "", false).file("/venv/bin/python", kElf, true).file("/venv/bin/python3", kElf, true);
  files.file("/conda/bin/python3", kElf, true)
      .folder("/venv")
      .folder("/venv/bin")
      .folder("/conda")
      .folder("/conda/bin");
  files.folder("/usr/bin").file("/venv/pyvenv.cfg", "", false);
  // Active as it should be.
  environment = {{"PATH", "/venv/bin:/usr/bin"}, {"VIRTUAL_ENV", "/venv"}};
  EXPECT_EQ(good("t.py").python, "/venv/bin/python");
  EXPECT_EQ(good("t.py").warning, "");
  // Another environment was activated on top of it: the shell's python is that one's.
  environment = {{"PATH", "/conda/bin:/venv/bin:/usr/bin"}, {"VIRTUAL_ENV", "/venv"}, {"CONDA_PREFIX", "/conda"}};
  EXPECT_EQ(good("t.py").python, "/conda/bin/python3");
  EXPECT_THAT(good("t.py").warning, testing::AllOf(HasSubstr("/conda/bin/python3"), HasSubstr("environment, /venv")));
  environment.erase("CONDA_PREFIX");
  files.folder("/conda/conda-meta");
  EXPECT_EQ(good("t.py").python, "/conda/bin/python3");
  // One that is gone.
  environment = {{"PATH", "/usr/bin"}, {"VIRTUAL_ENV", "/gone"}};
  EXPECT_EQ(good("t.py").python, "/usr/bin/python3");
  EXPECT_THAT(good("t.py").warning, HasSubstr("VIRTUAL_ENV=/gone has no bin/python"));
}

TEST_F(ProgramTest, ThePythonOfTheEnvironmentThatDdprunLiesIn) {
  files.file("t.py", "", false).file("/job/env/bin/python", kElf, true).folder("/job/env").folder("/venv");
  request.own_folder = "/job/env/bin";
  EXPECT_EQ(good("t.py").python, "/usr/bin/python3");  // a plain folder
  files.file("/job/env/pyvenv.cfg", "", false);
  EXPECT_EQ(good("t.py").python, "/job/env/bin/python");
  EXPECT_EQ(good("t.py").warning, "");
  files.file("/venv/bin/python", kElf, true);
  environment["VIRTUAL_ENV"] = "/venv";
  EXPECT_EQ(good("t.py").python, "/job/env/bin/python");
  EXPECT_THAT(good("t.py").warning, HasSubstr("not VIRTUAL_ENV's /venv/bin/python"));
  environment["PYTHON_EXEC"] = "/venv/bin/python";
  EXPECT_EQ(good("t.py").python, "/venv/bin/python");
  // A link in the environment to a ddprun elsewhere.
  environment.erase("PYTHON_EXEC");
  environment.erase("VIRTUAL_ENV");
  request.own_folder = "/opt/ddprun/bin";
  request.called_folder = "/job/env/bin";
  EXPECT_EQ(good("t.py").python, "/job/env/bin/python");
}

TEST_F(ProgramTest, WindowsLineEndsAreShownAndNamed) {
  EXPECT_THAT(bad("train.py\r").message(), testing::AllOf(HasSubstr("train.py\\r' not found"), HasSubstr("dos2unix")));
  files.file("./run.sh", "#!/bin/bash\r\necho hi\r\n", true);
  EXPECT_THAT(bad("./run.sh").message(), HasSubstr("its first line ends in a carriage return"));
  EXPECT_EQ(bad("./run.sh").message().find('\r'), std::string::npos);
}

TEST_F(ProgramTest, ExistingFileIsLookedInto) {
  files.file("bin/app", kElf, true).file("run.sh", "#!/bin/bash\n", true).file("text", "print(1)\n", false);
  files.file("noexec.sh", "#!/bin/bash\n", false);
  EXPECT_THAT(good("bin/app").leading, ElementsAre("bin/app"));
  EXPECT_EQ(good("run.sh").executable, "./run.sh");
  EXPECT_EQ(good("run.sh").script, "./run.sh");
  EXPECT_FALSE(good("run.sh").wants_unbuffered);
  EXPECT_THAT(good("text").leading, ElementsAre("/usr/bin/python3", "-u", "text"));
  EXPECT_THAT(good("noexec.sh").leading, ElementsAre("/usr/bin/python3", "-u", "noexec.sh"));
}

TEST_F(ProgramTest, ExecutablePythonScriptWithoutPyNameIsUnbuffered) {
  files.file("./train", "#!/usr/bin/env python3\n", true);
  EXPECT_EQ(good("./train").executable, "./train");
  EXPECT_TRUE(good("./train").wants_unbuffered);
}

TEST_F(ProgramTest, BareWordIsFoundBesideUsThenInPath) {
  files.file("/bin/trainer", kElf, true);
  EXPECT_EQ(good("trainer").executable, "/opt/ddprun/bin/trainer");
  EXPECT_EQ(good("bash").executable, "/bin/bash");
  EXPECT_THAT(bad("nonesuch").message(), HasSubstr("program 'nonesuch' not found"));
  EXPECT_EQ(bad("nonesuch").code(), Errc::not_found);
}

TEST_F(ProgramTest, FileHereThatHidesOursIsSaid) {
  files.file("trainer", kElf, true);
  const auto program = good("trainer");
  EXPECT_EQ(program.executable, "./trainer");
  EXPECT_THAT(program.warning, HasSubstr("running ./trainer of this folder, not /opt/ddprun/bin/trainer"));
  files.files["trainer"].id = "id:/opt/ddprun/bin/trainer";  // the same file by another name
  EXPECT_THAT(good("trainer").warning, IsEmpty());
  files.files.erase("trainer");
  files.folder("trainer");  // a folder of that name hides nothing
  EXPECT_EQ(good("trainer").executable, "/opt/ddprun/bin/trainer");
}

TEST_F(ProgramTest, NoPython) {
  request.no_python = true;
  files.file("./a.sh", "#!/bin/bash\n", true).file("./n.sh", "#!/bin/bash\n", false).folder("./d");
  files.file("./bad.sh", "#!/no/such/shell -e\n", true);
  EXPECT_THAT(good("./a.sh").leading, ElementsAre("./a.sh"));
  EXPECT_EQ(good("bash").executable, "/bin/bash");
  EXPECT_THAT(good("bash").leading, ElementsAre("bash"));
  EXPECT_EQ(good("trainer").executable, "/opt/ddprun/bin/trainer");
  EXPECT_THAT(bad("./none").message(), HasSubstr("./none does not exist"));
  EXPECT_EQ(bad("./none").code(), Errc::not_found);
  EXPECT_THAT(bad("./n.sh").message(), HasSubstr("cannot execute ./n.sh: permission denied"));
  EXPECT_EQ(bad("./n.sh").code(), Errc::system);
  EXPECT_THAT(bad("./d").message(), HasSubstr("it is a folder"));
  EXPECT_THAT(bad("./bad.sh").message(), HasSubstr("the interpreter /no/such/shell, which does not exist"));
  EXPECT_EQ(bad("./bad.sh").code(), Errc::not_found);
}

TEST_F(ProgramTest, MissingScriptIsFoundOutBeforeTheStart) {
  EXPECT_THAT(bad("absent.py").message(), HasSubstr("absent.py does not exist"));
  EXPECT_THAT(bad("./dir/none").message(), HasSubstr("./dir/none does not exist"));
  files.file("secret.py", "", false, false);
  EXPECT_THAT(bad("secret.py").message(), HasSubstr("cannot read secret.py: permission denied"));
}

TEST_F(ProgramTest, FolderWithMainIsAPythonProgram) {
  files.folder("app").file("app/__main__.py", "", false);
  EXPECT_THAT(good("app").leading, ElementsAre("/usr/bin/python3", "-u", "app"));
  files.folder("./empty");
  EXPECT_THAT(bad("./empty").message(), HasSubstr("a folder without __main__.py"));
}

TEST_F(ProgramTest, RunPathRunsTheScriptInsideAnInterpreter) {
  request.run_path = true;
  files.file("t.py", "", false);
  const auto program = good("t.py");
  ASSERT_EQ(program.leading.size(), 5u);
  EXPECT_EQ(program.leading[2], "-c");
  EXPECT_THAT(program.leading[3], HasSubstr("runpy.run_path"));
  EXPECT_EQ(program.leading[4], "t.py");
}

TEST(Program, WhichLocalRankSpellingAScriptWants) {
  EXPECT_TRUE(wants_underscore_local_rank("parser.add_argument('--local_rank', type=int)"));
  EXPECT_FALSE(wants_underscore_local_rank("parser.add_argument('--local-rank', '--local_rank')"));
  EXPECT_FALSE(wants_underscore_local_rank("print(1)"));
}

}  // namespace
}  // namespace ddprun::launcher
