// For test_hooks.py: two ranks average given gradients through a Reducer with a comm hook.
//   hook_ranks shm|tcp HOOK SHAPES STEPS FOLDER      SHAPES: 96x80,96
// Reads FOLDER/gradients.0 and .1 (f32, STEPS times all parameters); rank 0 writes what comes out to FOLDER/ours.KIND.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/comm_ranks.h"
#include "worker/ddp/reducer.h"

namespace {

using namespace ddprun;
using testing::RankContext;

std::vector<ddp::ParameterInfo> parse_shapes(const std::string& text) {
  std::vector<ddp::ParameterInfo> parameters;
  std::stringstream all(text);
  for (std::string shape; std::getline(all, shape, ',');) {
    ddp::ParameterInfo p;
    p.name = "p" + std::to_string(parameters.size());
    p.count = 1;
    std::stringstream extents(shape);
    for (std::string n; std::getline(extents, n, 'x');) {
      p.shape.push_back(std::atoll(n.c_str()));
      p.count *= static_cast<std::size_t>(p.shape.back());
    }
    parameters.push_back(p);
  }
  return parameters;
}

std::string average(RankContext& context, const std::string& kind, const std::string& hook, const std::string& shapes,
                    int steps, const std::string& folder) {
  auto communicator = testing::make_test_communicator(kind == "tcp" ? testing::Kind::tcp : testing::Kind::shm, context,
                                                      std::chrono::seconds(50));
  RANK_OK(communicator);
  const auto parameters = parse_shapes(shapes);
  std::vector<ddp::ParamId> order;  // as backward does: the last one first
  for (std::size_t i = parameters.size(); i > 0; --i) order.push_back(static_cast<ddp::ParamId>(i - 1));
  ddp::ReducerOptions options;
  options.compression = hook;
  options.force_compression = true;
  auto reducer = ddp::Reducer::create(**communicator, parameters, order, options);
  RANK_OK(reducer);
  std::ifstream in(folder + "/gradients." + std::to_string(context.rank), std::ios::binary);
  std::ofstream out;
  if (context.rank == 0) out.open(folder + "/ours." + kind, std::ios::binary);
  for (int step = 0; step < steps; ++step) {
    (*reducer)->begin(ddp::Sync::now);
    for (ddp::ParamId p = 0; p < parameters.size(); ++p) {
      in.read(reinterpret_cast<char*>((*reducer)->gradient(p)),
              static_cast<std::streamsize>(parameters[p].count * sizeof(float)));
    }
    RANK_CHECK(in.good());
    for (ddp::ParamId p : order) (*reducer)->mark_ready(p);
    RANK_OK((*reducer)->finish());
    for (ddp::ParamId p = 0; p < parameters.size() && context.rank == 0; ++p) {
      out.write(reinterpret_cast<const char*>((*reducer)->gradient(p)),
                static_cast<std::streamsize>(parameters[p].count * sizeof(float)));
    }
  }
  if (context.rank == 0) {
    out.close();
    RANK_CHECK(!out.fail());
  }
  return "";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: hook_ranks shm|tcp HOOK SHAPES STEPS FOLDER\n");
    return 2;
  }
  const auto outcomes = testing::run_ranks(2, [argv](RankContext& context) {
    return average(context, argv[1], argv[2], argv[3], std::atoi(argv[4]), argv[5]);
  });
  const std::string wrong = testing::problems(outcomes);
  if (!wrong.empty()) std::fprintf(stderr, "%s", wrong.c_str());
  return wrong.empty() ? 0 : 1;
}
