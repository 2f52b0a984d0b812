#include "launcher/options/hwloc_api.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <string>

namespace ddprun::launcher {
namespace {

// libtool's number of hwloc 2.x, whose functions above are the same in all of it.
constexpr const char* kLibrary = "libhwloc.so.15";

class Loader {
 public:
  explicit Loader(void* library) : library_(library) {}

  template <typename Function>
  void find(const char* name, Function*& function) {
    void* const symbol = ::dlsym(library_, name);
    if (symbol == nullptr) missing_ += std::string(missing_.empty() ? "" : ", ") + name;
    function = reinterpret_cast<Function*>(symbol);
  }
  const std::string& missing() const { return missing_; }

 private:
  void* library_;
  std::string missing_;
};

Result<HwlocApi> load() {
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = ::dlerror();
    return Error(Errc::not_found,
                 fmt::format("--numa-binding needs hwloc, which cannot be loaded ({}): install it (Debian and Ubuntu: "
                             "libhwloc15, Fedora: hwloc-libs), or leave the flag out",
                             reason != nullptr ? reason : kLibrary));
  }
  HwlocApi api{};
  Loader loader(library);
  loader.find("hwloc_bitmap_alloc", api.bitmap.alloc);
  loader.find("hwloc_bitmap_dup", api.bitmap.dup);
  loader.find("hwloc_bitmap_free", api.bitmap.free);
  loader.find("hwloc_bitmap_iszero", api.bitmap.iszero);
  loader.find("hwloc_bitmap_or", api.bitmap.or_);
  loader.find("hwloc_bitmap_and", api.bitmap.and_);
  loader.find("hwloc_bitmap_set", api.bitmap.set);
  loader.find("hwloc_bitmap_first", api.bitmap.first);
  loader.find("hwloc_bitmap_next", api.bitmap.next);
  loader.find("hwloc_bitmap_intersects", api.bitmap.intersects);
  loader.find("hwloc_topology_init", api.topology_init);
  loader.find("hwloc_topology_load", api.topology_load);
  loader.find("hwloc_topology_destroy", api.topology_destroy);
  loader.find("hwloc_topology_is_thissystem", api.topology_is_thissystem);
  loader.find("hwloc_topology_get_allowed_cpuset", api.topology_get_allowed_cpuset);
  loader.find("hwloc_get_cpubind", api.get_cpubind);
  loader.find("hwloc_get_type_depth", api.get_type_depth);
  loader.find("hwloc_get_nbobjs_by_depth", api.get_nbobjs_by_depth);
  loader.find("hwloc_get_obj_by_depth", api.get_obj_by_depth);
  if (!loader.missing().empty()) {
    return Error(Errc::system, fmt::format("--numa-binding: {} lacks {}", kLibrary, loader.missing()));
  }
  return api;
}

}  // namespace

Result<const HwlocApi*> load_hwloc() {
  static const Result<HwlocApi> api = load();
  if (!api) return api.error();
  return &*api;
}

}  // namespace ddprun::launcher
