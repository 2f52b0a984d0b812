#include "launcher/agent/node_address.h"

#include <gtest/gtest.h>

namespace ddprun::launcher {
namespace {

TEST(NodeAddress, WhatAHostSaysByItself) {
  for (const char* host : {"localhost", "127.0.0.1", "127.1.2.3", "::1"}) EXPECT_TRUE(is_loopback(host)) << host;
  for (const char* host : {"", "10.0.0.1", "node127", "127.example.org", "::2", "localhost.localdomain"}) {
    EXPECT_FALSE(is_loopback(host)) << host;
  }
  for (const char* host : {"0.0.0.0", "::"}) EXPECT_TRUE(is_unspecified(host) && !is_loopback(host)) << host;
  for (const char* host : {"10.0.0.1", "::1", "fe80::1%eth0"}) EXPECT_TRUE(is_numeric(host)) << host;
  for (const char* host : {"", "node1", "10.0.0.1.example"}) EXPECT_FALSE(is_numeric(host)) << host;
  for (const char* host : {"fe80::1", "FE80::1%ib0", "febf::1"}) EXPECT_TRUE(is_link_local(host)) << host;
  for (const char* host : {"fec0::1", "fe8::1", "fe80", "fe80.example", "2001:db8::1"}) {
    EXPECT_FALSE(is_link_local(host)) << host;
  }
  EXPECT_EQ(without_zone("fe80::1%eth0"), "fe80::1");
  EXPECT_EQ(zone_of("fe80::1%eth0"), "eth0");
  EXPECT_EQ(zone_of("fe80::1"), "");
}

TEST(NodeAddress, MasterHost) {
  struct Case {
    const char* what;
    bool static_ranks, hosting;
    const char *announced, *endpoint, *server, *zone, *expected;
  };
  const Case cases[] = {
      {"c10d: what the rendezvous says", false, false, "10.0.0.7", "10.0.0.1", "10.0.0.1", "", "10.0.0.7"},
      {"static, the one that serves", true, true, "10.0.0.1", "localhost", "127.0.0.1", "", "10.0.0.1"},
      {"static, its own name", true, true, "train-0", "train-0", "127.0.0.1", "", "train-0"},
      {"static, the name by which we came", true, false, "train-0", "train-0", "10.0.0.1", "", "train-0"},
      {"static, a name that is none of ours", true, false, "train-0", "10.0.0.1", "10.0.0.1", "", "10.0.0.1"},
      {"static, our name but not theirs", true, false, "10.0.0.1", "train-0", "10.0.0.1", "", "10.0.0.1"},
      {"static, a forwarded port", true, false, "172.17.0.2", "10.0.0.1", "10.0.0.1", "", "10.0.0.1"},
      {"static, beside the one that serves", true, false, "10.0.0.1", "127.0.0.1", "127.0.0.1", "", "10.0.0.1"},
      {"static, all on one host", true, false, "127.0.0.1", "127.0.0.1", "127.0.0.1", "", "127.0.0.1"},
      {"a zone is each host's own", false, false, "fe80::1", "fe80::1%ib0", "fe80::1%ib0", "ib0", "fe80::1%ib0"},
      {"another host's zone", false, false, "fe80::1%eth0", "x", "fe80::1%ib0", "ib0", "fe80::1%ib0"},
      {"no zone for other addresses", false, false, "2001:db8::1", "x", "fe80::1%ib0", "ib0", "2001:db8::1"},
  };
  for (const Case& c : cases) {
    const MasterView view{c.static_ranks, c.hosting, c.announced, c.endpoint, c.server, c.zone};
    EXPECT_EQ(master_host(view), c.expected) << c.what;
  }
}

}  // namespace
}  // namespace ddprun::launcher
