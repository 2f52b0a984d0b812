#include "launcher/hosts/remote_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <memory>

namespace ddprun::launcher {
namespace {

using testing::ElementsAre;

TEST(RemoteCommand, SplitsAsAShellDoes) {
  EXPECT_THAT(*split_words("ssh -p 22  -i '/a b/key'"), ElementsAre("ssh", "-p", "22", "-i", "/a b/key"));
  EXPECT_THAT(*split_words(R"(x "a \"b\" c" d\ e '' $HOME)"), ElementsAre("x", "a \"b\" c", "d e", "", "$HOME"));
  for (const char* text : {"", "  ", "ssh 'x", "ssh \"", "ssh \\"}) EXPECT_FALSE(split_words(text)) << text;
}

TEST(RemoteCommand, NamesTheProgramAndOneWord) {
  EXPECT_THAT(*remote_command({"ssh", "-T"}, "u@b", "/opt/ddp run/ddprun"),
              ElementsAre("ssh", "-T", "u@b", "'/opt/ddp run/ddprun' __node-of-a-host-list"));
  EXPECT_FALSE(remote_command({"ssh"}, "b", "/opt/x\ny/ddprun"));
}

// What a shell makes of the quoted word, by the shells that are here.
TEST(RemoteCommand, AnyShellReadsTheQuotedWordAsItWas) {
  const std::string word = "/a b/it's $HOME `id` !x \\ \"q\" *;&|<>()#~{}[]?%";
  int tried = 0;
  for (const char* shell : {"sh", "bash", "dash", "zsh", "csh", "tcsh", "fish", "busybox sh"}) {
    const std::string name = std::string(shell).substr(0, std::string(shell).find(' '));
    if (std::system(("command -v " + name + " >/dev/null 2>&1").c_str()) != 0) continue;
    const std::string command = "printf %s " + shell_quoted(word);
    ::setenv("DDPRUN_TEST_COMMAND", command.c_str(), 1);
    std::unique_ptr<FILE, int (*)(FILE*)> out(
        ::popen((std::string(shell) + " -c \"$DDPRUN_TEST_COMMAND\"").c_str(), "r"), ::pclose);
    ASSERT_NE(out, nullptr);
    std::array<char, 512> text{};
    const auto size = std::fread(text.data(), 1, text.size(), out.get());
    EXPECT_EQ(std::string(text.data(), size), word) << shell;
    ++tried;
  }
  EXPECT_GT(tried, 0);
}

}  // namespace
}  // namespace ddprun::launcher
