#pragma once

#include <hwloc.h>

#include "common/result.h"

// hwloc, loaded when --numa-binding asks for it: nobody needs it to start ddprun. Names as in hwloc.h, without
// "hwloc_".
namespace ddprun::launcher {

struct HwlocBitmaps {
  decltype(&::hwloc_bitmap_alloc) alloc;
  decltype(&::hwloc_bitmap_dup) dup;
  decltype(&::hwloc_bitmap_free) free;
  decltype(&::hwloc_bitmap_iszero) iszero;
  decltype(&::hwloc_bitmap_or) or_;
  decltype(&::hwloc_bitmap_and) and_;
  decltype(&::hwloc_bitmap_set) set;
  decltype(&::hwloc_bitmap_first) first;
  decltype(&::hwloc_bitmap_next) next;
  decltype(&::hwloc_bitmap_intersects) intersects;
};

struct HwlocApi {
  HwlocBitmaps bitmap;
  decltype(&::hwloc_topology_init) topology_init;
  decltype(&::hwloc_topology_load) topology_load;
  decltype(&::hwloc_topology_destroy) topology_destroy;
  decltype(&::hwloc_topology_is_thissystem) topology_is_thissystem;
  decltype(&::hwloc_topology_get_allowed_cpuset) topology_get_allowed_cpuset;
  decltype(&::hwloc_get_cpubind) get_cpubind;
  decltype(&::hwloc_get_type_depth) get_type_depth;
  decltype(&::hwloc_get_nbobjs_by_depth) get_nbobjs_by_depth;
  decltype(&::hwloc_get_obj_by_depth) get_obj_by_depth;
};

// Stays loaded. Errors: not_found (no libhwloc.so.15 on this host; says what to install), system (it lacks a function).
Result<const HwlocApi*> load_hwloc();

}  // namespace ddprun::launcher
