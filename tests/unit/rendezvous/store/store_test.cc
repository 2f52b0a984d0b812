#include "rendezvous/store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

namespace ddprun::rendezvous {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class StoreTest : public testing::Test {
 protected:
  using Keys = std::initializer_list<std::string_view>;
  bool wait(ClientId client, Keys keys) { return store_.wait(client, std::vector<std::string_view>(keys)); }
  bool check(Keys keys) const { return store_.check(std::vector<std::string_view>(keys)); }
  Store::Wakes woken() { return std::exchange(wakes_, {}); }
  void set(std::string_view key, std::string_view value = "v") { store_.set(key, value, wakes_); }

  Store store_;
  Store::Wakes wakes_;
};

TEST_F(StoreTest, SetReplacesAndGetOfAMissingKeyIsEmpty) {
  EXPECT_EQ(store_.get("k"), "");
  set("k", "one");
  set("k", "two");
  EXPECT_EQ(store_.get("k"), "two");
  EXPECT_EQ(store_.num_keys(), 1u);
}

TEST_F(StoreTest, KeysAndValuesAreAnyBytes) {
  const std::string nul("a\0b", 3);
  set("", nul);
  set(nul, "");
  EXPECT_EQ(store_.get(""), nul);
  EXPECT_TRUE(check({"", nul}));
  EXPECT_EQ(store_.num_keys(), 2u);
}

TEST_F(StoreTest, NumbersAreReadAsStollReadsThem) {
  EXPECT_EQ(parse_stored_number(" 12"), 12);
  EXPECT_EQ(parse_stored_number("\t\n\v\f\r -7x"), -7);
  EXPECT_EQ(parse_stored_number("12abc"), 12);
  EXPECT_EQ(parse_stored_number("0x10"), 0);
  EXPECT_EQ(parse_stored_number("010"), 10);
  EXPECT_EQ(parse_stored_number("1.9"), 1);
  EXPECT_EQ(parse_stored_number("+5"), 5);
  EXPECT_EQ(parse_stored_number("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(parse_stored_number("-9223372036854775808"), INT64_MIN);
  for (const char* bad : {"", " ", "abc", "+", "-", "+-5", "- 5", "9223372036854775808", "--1"}) {
    EXPECT_FALSE(parse_stored_number(bad)) << bad;
  }
}

TEST_F(StoreTest, AddCountsFromZeroWrapsAndRefusesText) {
  EXPECT_EQ(store_.add("n", 5, wakes_), 5);
  EXPECT_EQ(store_.add("n", -7, wakes_), -2);
  EXPECT_EQ(store_.get("n"), "-2");
  set("n", "9223372036854775807");
  EXPECT_EQ(store_.add("n", 1, wakes_), INT64_MIN);
  set("t", "abc");
  EXPECT_EQ(store_.add("t", 1, wakes_), std::nullopt);
  EXPECT_EQ(store_.get("t"), "abc");
}

TEST_F(StoreTest, CompareSetFollowsTheTableOfC10d) {
  EXPECT_EQ(store_.compare_set("a", "", "x", wakes_), "x");
  EXPECT_EQ(store_.compare_set("b", "old", "x", wakes_), "old");
  EXPECT_FALSE(check({"b"}));
  set("k", "X");
  EXPECT_EQ(store_.compare_set("k", "no", "q", wakes_), "X");
  EXPECT_EQ(store_.compare_set("k", "", "q", wakes_), "X");
  EXPECT_EQ(store_.compare_set("k", "X", "", wakes_), "");
  EXPECT_TRUE(check({"k"}));
  EXPECT_EQ(store_.compare_set("k", "", "again", wakes_), "again");
}

TEST_F(StoreTest, WaitEndsWhenTheLastKeyIsThere) {
  set("a");
  EXPECT_TRUE(wait(0, {"a"}));
  EXPECT_TRUE(wait(0, {}));
  EXPECT_FALSE(wait(1, {"a", "b", "c"}));
  store_.append("c", "", wakes_);
  EXPECT_THAT(woken(), IsEmpty());
  store_.add("b", 0, wakes_);
  EXPECT_THAT(woken(), ElementsAre(1));
  EXPECT_EQ(store_.waiting(), 0u);
}

TEST_F(StoreTest, WaitLooksAgainBeforeItEnds) {
  EXPECT_FALSE(wait(0, {"a", "b"}));
  set("a");
  store_.delete_key("a");
  set("b");
  EXPECT_THAT(woken(), IsEmpty());
  set("a");
  EXPECT_THAT(woken(), ElementsAre(0));
}

TEST_F(StoreTest, AKeyNamedTwiceCountsOnce) {
  EXPECT_FALSE(wait(0, {"d", "d", "e", "d"}));
  set("e");
  set("d");
  EXPECT_THAT(woken(), ElementsAre(0));
  EXPECT_FALSE(wait(0, {"x", "x"}));
  store_.forget(0);
  EXPECT_EQ(store_.bytes(), 2 * (Store::kKeyOverhead + 1) + 2);
}

TEST_F(StoreTest, AllWaitersOfAKeyAreWokenInOrderOfWaiting) {
  for (const ClientId client : {7u, 3u, 9u}) EXPECT_FALSE(wait(client, {"go"}));
  EXPECT_EQ(store_.compare_set("go", "old", "new", wakes_), "old");
  EXPECT_THAT(woken(), IsEmpty());
  store_.compare_set("go", "", "now", wakes_);
  EXPECT_THAT(woken(), ElementsAre(7, 3, 9));
}

TEST_F(StoreTest, ForgottenWaitersAreNotWoken) {
  EXPECT_FALSE(wait(0, {"k"}));
  EXPECT_FALSE(wait(1, {"k"}));
  store_.forget(0);
  store_.forget(0);
  store_.forget(77);
  set("k");
  EXPECT_THAT(woken(), ElementsAre(1));
}

TEST_F(StoreTest, ASecondWaitReplacesTheFirst) {
  EXPECT_FALSE(wait(0, {"a"}));
  EXPECT_FALSE(wait(0, {"b"}));
  set("a");
  EXPECT_THAT(woken(), IsEmpty());
  set("b");
  EXPECT_THAT(woken(), ElementsAre(0));
}

TEST_F(StoreTest, QueuesAreFirstInFirstOutAndNoKeys) {
  store_.queue_push("q", "1", wakes_);
  store_.queue_push("q", "2", wakes_);
  EXPECT_EQ(store_.num_keys(), 0u);
  EXPECT_FALSE(store_.delete_key("q"));
  EXPECT_TRUE(check({"q"}));
  EXPECT_TRUE(wait(0, {"q"}));
  std::string item;
  EXPECT_EQ(store_.queue_pop("q", item), 2u);
  EXPECT_EQ(item, "1");
  EXPECT_EQ(store_.queue_pop("q", item), 1u);
  EXPECT_EQ(item, "2");
  EXPECT_EQ(store_.queue_pop("q", item), 0u);
  EXPECT_EQ(store_.queue_len("q"), 0u);
  EXPECT_FALSE(check({"q"}));
  EXPECT_EQ(store_.bytes(), 0u);
}

TEST_F(StoreTest, APushWakesOneWaiter) {
  EXPECT_FALSE(wait(0, {"q", "other"}));  // not done by the push: it goes on to the next
  EXPECT_FALSE(wait(1, {"q"}));
  EXPECT_FALSE(wait(2, {"q"}));
  store_.queue_push("q", "x", wakes_);
  EXPECT_THAT(woken(), ElementsAre(1));
  store_.queue_push("q", "y", wakes_);
  EXPECT_THAT(woken(), ElementsAre(2));
  set("other");
  EXPECT_THAT(woken(), ElementsAre(0));
}

TEST_F(StoreTest, QueueAndKeyOfOneNameAreApart) {
  set("x", "value");
  store_.queue_push("x", "item", wakes_);
  EXPECT_TRUE(store_.delete_key("x"));
  EXPECT_TRUE(check({"x"}));
  EXPECT_EQ(store_.get("x"), "");
  std::string item;
  EXPECT_EQ(store_.queue_pop("x", item), 1u);
  EXPECT_FALSE(check({"x"}));
}

TEST_F(StoreTest, BarrierReleasesAtTheLastArrivalAndItsKeyStays) {
  EXPECT_FALSE(wait(9, {"b"}));
  EXPECT_EQ(store_.barrier(0, "b", 3, wakes_), Store::Arrival::waiting);
  EXPECT_EQ(store_.barrier(1, "b", 3, wakes_), Store::Arrival::waiting);
  EXPECT_TRUE(check({"b"}));
  EXPECT_THAT(woken(), IsEmpty());
  EXPECT_EQ(store_.barrier(2, "b", 3, wakes_), Store::Arrival::released);
  EXPECT_THAT(woken(), ElementsAre(9, 0, 1));
  EXPECT_EQ(store_.barrier(0, "b", 3, wakes_), Store::Arrival::released);
  EXPECT_EQ(store_.get("b"), "4");
}

TEST_F(StoreTest, BarrierCountsTheLeaverAndTakesOddWorldSizes) {
  EXPECT_EQ(store_.barrier(0, "b", 3, wakes_), Store::Arrival::waiting);
  store_.forget(0);
  EXPECT_EQ(store_.barrier(1, "b", 3, wakes_), Store::Arrival::waiting);
  EXPECT_EQ(store_.barrier(0, "b", 3, wakes_), Store::Arrival::released);
  EXPECT_THAT(woken(), ElementsAre(1));
  EXPECT_EQ(store_.barrier(0, "z", 0, wakes_), Store::Arrival::released);
  EXPECT_EQ(store_.barrier(0, "m", -4, wakes_), Store::Arrival::released);
  set("t", "text");
  EXPECT_EQ(store_.barrier(0, "t", 2, wakes_), Store::Arrival::not_a_number);
  EXPECT_EQ(store_.barrier(0, "s", 2, wakes_), Store::Arrival::waiting);
  set("s", "anything");
  EXPECT_THAT(woken(), ElementsAre(0));
}

TEST_F(StoreTest, MemoryIsBackAfterManySetsAndDeletes) {
  for (int i = 0; i < 100000; ++i) {
    const std::string key = "/key/" + std::to_string(i);
    set(key, key);
    store_.add("/n/" + std::to_string(i), 1, wakes_);
  }
  EXPECT_EQ(store_.num_keys(), 200000u);
  EXPECT_GT(store_.bytes(), 200000 * Store::kKeyOverhead);
  for (int i = 0; i < 100000; ++i) {
    EXPECT_TRUE(store_.delete_key("/key/" + std::to_string(i)));
    EXPECT_TRUE(store_.delete_key("/n/" + std::to_string(i)));
  }
  EXPECT_EQ(store_.num_keys(), 0u);
  EXPECT_EQ(store_.bytes(), 0u);
}

TEST_F(StoreTest, ManyWaitersOnManyKeys) {
  std::vector<std::string> names;
  for (int i = 0; i < 200; ++i) names.push_back("k" + std::to_string(i));
  const std::vector<std::string_view> keys(names.begin(), names.end());
  for (ClientId client = 0; client < 200; ++client) EXPECT_FALSE(store_.wait(client, keys));
  // In an order that is neither theirs nor its reverse.
  for (std::size_t i = 0; i < names.size(); ++i) {
    EXPECT_THAT(woken(), IsEmpty());
    set(names[(i * 67) % names.size()]);
  }
  EXPECT_EQ(woken().size(), 200u);
}

TEST_F(StoreTest, ClearForgetsAll) {
  set("a");
  store_.queue_push("q", "1", wakes_);
  EXPECT_FALSE(wait(4, {"x", "y"}));
  store_.clear();
  EXPECT_EQ(store_.num_keys() + store_.bytes() + store_.waiting() + store_.queue_items(), 0u);
  set("x");
  set("y");
  EXPECT_THAT(woken(), IsEmpty());
  store_.forget(4);
}

}  // namespace
}  // namespace ddprun::rendezvous
