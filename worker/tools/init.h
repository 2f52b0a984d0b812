#pragma once

#include <span>
#include <string>
#include <vector>

namespace ddprun::trainer {

// `trainer init KIND`: a commented configuration to begin with, on stdout.
struct StarterConfig {
  const char* kind;
  const char* what;
  const char* text;
};
std::span<const StarterConfig> starter_configs();

int init_main(std::span<const std::string> arguments);

}  // namespace ddprun::trainer
