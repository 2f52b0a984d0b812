#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "worker/base/crc32c.h"
#include "worker/checkpoint/directory.h"
#include "worker/checkpoint/safetensors.h"
#include "worker/checkpoint/state.h"
#include "worker/checkpoint/writer.h"

namespace ddprun::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::span<const std::byte> bytes(const std::string& text) { return std::as_bytes(std::span(text)); }
std::vector<std::byte> vector_of(const std::string& text) {
  const auto view = bytes(text);
  return {view.begin(), view.end()};
}

TEST(Crc32c, KnownValues) {
  EXPECT_EQ(crc32c(bytes("123456789")), 0xE3069283U);  // the check value of CRC-32C
  EXPECT_EQ(crc32c(bytes(std::string(32, '\0'))), 0x8A9136AAU);
  EXPECT_EQ(crc32c(bytes("56789"), crc32c(bytes("1234"))), 0xE3069283U);
  EXPECT_EQ(crc32c({}), 0U);
}

std::string safetensors(const std::string& header, const std::string& data) {
  std::string file(8, '\0');
  for (int i = 0; i < 8; ++i) file[static_cast<std::size_t>(i)] = static_cast<char>((header.size() >> (8 * i)) & 0xff);
  return file + header + data;
}
std::string error_of(const std::string& file) {
  auto parsed = SafetensorsFile::parse(vector_of(file), "f");
  return parsed ? "no error" : parsed.error().message();
}

TEST(Safetensors, RoundTrip) {
  const std::vector<float> w = {1, 2, 3, 4, 5, 6};
  const std::int64_t n = 7;
  const std::string half = "ab";
  const std::vector<TensorView> tensors = {
      {"b.half", TensorType::f16, {1}, bytes(half)},
      {"w", TensorType::f32, {2, 3}, std::as_bytes(std::span(w))},
      {"empty", TensorType::f32, {0, 4}, {}},
      {"n", TensorType::i64, {}, std::as_bytes(std::span(&n, 1))},
  };
  const SafetensorsLayout layout = layout_safetensors(tensors, {{"format", "pt"}});
  EXPECT_EQ(layout.header.size() % 8, 0U);
  std::string file = layout.header;
  for (const std::size_t i : layout.order) {
    file.append(reinterpret_cast<const char*>(tensors[i].bytes.data()), tensors[i].bytes.size());
  }
  EXPECT_EQ(file.size(), layout.total_bytes);
  auto read = SafetensorsFile::parse(vector_of(file), "f");
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->tensors().size(), 4U);
  EXPECT_EQ(read->metadata().at("format"), "pt");
  ASSERT_NE(read->find("w"), nullptr);
  EXPECT_THAT(read->find("w")->shape, ElementsAre(2, 3));
  EXPECT_EQ(std::memcmp(read->find("w")->bytes.data(), w.data(), 24), 0);
  EXPECT_TRUE(read->find("n")->shape.empty());
  EXPECT_EQ(read->find("x"), nullptr);
}

TEST(Safetensors, RejectsWhatDoesNotFit) {
  const auto entry = [](const std::string& shape, const std::string& offsets) {
    return R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  EXPECT_EQ(error_of(safetensors(entry("[1]", "[0,4]"), "abcd")), "no error");
  EXPECT_EQ(error_of(safetensors(entry("[1]", "[0,4]") + "   ", "abcd")), "no error");
  EXPECT_THAT(error_of(safetensors(entry("[2]", "[0,4]"), "abcd")), HasSubstr("shape and dtype need 8"));
  EXPECT_THAT(error_of(safetensors(entry("[1]", "[0,4]"), "abc")), HasSubstr("data_offsets 0..4 in 3 bytes"));
  EXPECT_THAT(error_of(safetensors(entry("[1]", "[0,4]"), "abcde")), HasSubstr("1 bytes at the end"));
  EXPECT_THAT(error_of(safetensors(entry("[1]", "[1,5]"), "abcde")), HasSubstr("begins at 1"));
  EXPECT_THAT(error_of(safetensors(entry("[-1]", "[0,4]"), "abcd")), HasSubstr("shape"));
  EXPECT_THAT(error_of(safetensors(entry("[4294967296,4294967296]", "[0,4]"), "abcd")), HasSubstr("too large"));
  EXPECT_THAT(error_of(safetensors(R"({"a":{"dtype":"F99","shape":[],"data_offsets":[0,0]}})", "")), HasSubstr("F99"));
  EXPECT_THAT(error_of(safetensors(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                   R"("b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                                   "x")),
              HasSubstr("begins at 0"));
  EXPECT_THAT(error_of(safetensors(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                   R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                                   "xy")),
              HasSubstr("twice"));
  EXPECT_THAT(error_of("abc"), HasSubstr("too short"));
  EXPECT_THAT(error_of(safetensors("[1]", "")), HasSubstr("not a JSON object"));
  EXPECT_THAT(error_of(safetensors("{", "")), HasSubstr("not a JSON object"));
  EXPECT_THAT(error_of(std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8) + "{}"), HasSubstr("does not fit"));
}

TEST(Safetensors, APickleOfTorchIsCalledThat) {
  const std::string zip("PK\x03\x04\x14\0\0\0\0\0archive/data.pkl", 26), pickle("\x80\x02}q\0X\x01\x05more", 12);
  EXPECT_THAT(error_of(zip), AllOf(HasSubstr("torch.save"), HasSubstr("save_file")));
  EXPECT_THAT(error_of(pickle), HasSubstr("torch.save"));
}

TEST(TrainState, RoundTrip) {
  TrainState state;
  state.step = 123;
  state.seed = 1ULL << 63;
  state.epoch_loss_sum = 0.1;
  state.scale = 3.0e-5F;
  state.index_bytes = {1, 2};
  auto again = state_from_json(to_json(state));
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(to_json(*again), to_json(state));
  EXPECT_EQ(again->epoch_loss_sum, 0.1);
  // What version 1 did not have at first may be missing.
  std::string older = to_json(TrainState());
  for (const char* name : {"schedule_batch", "schedule_epoch", "launchers"}) {
    const std::size_t at = older.find(fmt::format("  \"{}\"", name));
    ASSERT_NE(at, std::string::npos);
    older.erase(at, older.find('\n', at) + 1 - at);
  }
  EXPECT_TRUE(state_from_json(older));
  EXPECT_FALSE(state_from_json("{}"));
  EXPECT_FALSE(state_from_json("{\"version\": 1}"));
  EXPECT_FALSE(state_from_json("nonsense"));
}

class Directory : public ::testing::Test {
 protected:
  Directory() {
    std::string name = ::testing::TempDir() + "ddprun-checkpoint-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~Directory() override { std::filesystem::remove_all(folder_); }

  // Steps 1..n through the writer, each with its number in the model's tensor.
  void save(std::int64_t from, std::int64_t to, std::int64_t keep) {
    auto directory = CheckpointDirectory::open(folder_ + "/ck");
    ASSERT_TRUE(directory) << directory.error().message();
    auto shared = std::make_shared<const CheckpointDirectory>(std::move(*directory));
    auto writer = make_writer(write_into(shared, keep), std::chrono::seconds(60));
    for (std::int64_t step = from; step <= to; ++step) {
      auto places = writer->begin();
      ASSERT_TRUE(places);
      const float values[2] = {static_cast<float>(step), -1};
      std::memcpy((**places)[0], values, 8);
      std::memcpy((**places)[1], values, 8);
      TrainState state;
      state.step = step;
      writer->submit(state);
    }
    auto done = writer->wait();
    EXPECT_TRUE(done) << done.error().message();
    EXPECT_EQ(writer->last_saved_step(), to);
  }

  static std::unique_ptr<CheckpointWriter> make_writer(WriteCheckpoint write, std::chrono::milliseconds timeout) {
    return CheckpointWriter::create(std::move(write), timeout, {{"w", TensorType::f32, {2}, 8}},
                                    {{"m.w", TensorType::f32, {2}, 8}})
        .value();
  }

  Result<Resume> newest() {
    auto directory = CheckpointDirectory::open(folder_ + "/ck");
    if (!directory) return std::move(directory).error();
    return load_newest(*directory);
  }
  std::vector<std::string> names() {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/ck")) {
      found.push_back(entry.path().filename().string());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  std::string file(std::int64_t step, const char* name) { return folder_ + "/ck/" + folder_name(step) + "/" + name; }

  std::string folder_;
};

TEST_F(Directory, TheBestIsKeptBesideTheNewest) {
  save(1, 2, 9);
  {
    auto directory = CheckpointDirectory::open(folder_ + "/ck");
    ASSERT_TRUE(directory);
    ASSERT_TRUE(directory->mark_best(2));
  }
  save(3, 6, 2);
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/ck/best/model.safetensors"));
  EXPECT_EQ(std::filesystem::read_symlink(folder_ + "/ck/best").string(), folder_name(2));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/ck/" + folder_name(1)));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/ck/" + folder_name(4)));
  auto directory = CheckpointDirectory::open(folder_ + "/ck");
  ASSERT_TRUE(directory);
  EXPECT_THAT(*directory->steps(), ElementsAre(2, 5, 6));
}

TEST_F(Directory, AnotherRunsFolderIsReadAndNotChanged) {
  save(1, 3, 9);
  namespace fs = std::filesystem;
  const std::string ck = folder_ + "/ck";
  const auto step_of = [](const std::string& folder) {
    auto loaded = load_from(folder);
    return loaded ? loaded->checkpoint->state.step : -1;
  };
  EXPECT_EQ(step_of(ck), 3);
  EXPECT_EQ(step_of(ck + "/" + folder_name(1)), 1);
  fs::remove(ck + "/latest");
  fs::create_symlink("step-000000099", ck + "/latest");  // its target was removed by hand
  EXPECT_EQ(step_of(ck), 3);
  fs::remove(ck + "/latest");
  fs::copy(ck + "/" + folder_name(1), ck + "/latest");  // a copy that followed the link, of an earlier save
  EXPECT_EQ(step_of(ck), 3);
  fs::resize_file(ck + "/" + folder_name(3) + "/model.safetensors", 10);
  auto loaded = load_from(ck);
  ASSERT_TRUE(loaded) << loaded.error().message();
  EXPECT_EQ(loaded->checkpoint->state.step, 2);
  EXPECT_THAT(loaded->damage, ElementsAre(HasSubstr("step-000000003 is damaged")));
  EXPECT_TRUE(fs::exists(ck + "/" + folder_name(3)));
  auto none = load_from(folder_);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message(), HasSubstr("is no checkpoint, nor a folder of them"));
}

TEST_F(Directory, KeepsTheNewest) {
  save(1, 7, 3);
  EXPECT_THAT(names(), ElementsAre(".lock", "latest", "step-000000005", "step-000000006", "step-000000007"));
  EXPECT_EQ(std::filesystem::read_symlink(folder_ + "/ck/latest"), "step-000000007");
  auto resume = newest();
  ASSERT_TRUE(resume && resume->checkpoint);
  EXPECT_EQ(resume->checkpoint->state.step, 7);
  float w = 0;
  std::memcpy(&w, resume->checkpoint->model.find("w")->bytes.data(), 4);
  EXPECT_EQ(w, 7);
}

// Looked up by whoever writes: the disk that just failed may hang at the next question, and a save has a deadline.
TEST_F(Directory, AFailedSaveTellsWhatIsThere) {
  const auto fail = [this] {
    auto directory = CheckpointDirectory::open(folder_ + "/ck");
    const auto write = write_into(std::make_shared<const CheckpointDirectory>(std::move(*directory)), 9);
    return write(5, {FileContent{"no-such-folder/file", {}}}).error().message();
  };
  EXPECT_THAT(fail(), ::testing::EndsWith("; there is none to go on from"));
  save(1, 2, 9);
  EXPECT_THAT(fail(), ::testing::EndsWith("; the one of step 2 is there"));
  EXPECT_THAT(names(), ElementsAre(".lock", "latest", "step-000000001", "step-000000002"));
}

TEST_F(Directory, AStepMayBeSavedAgain) {
  save(1, 3, 3);
  save(3, 3, 3);
  EXPECT_THAT(names(), ElementsAre(".lock", "latest", "step-000000001", "step-000000002", "step-000000003"));
  auto resume = newest();
  ASSERT_TRUE(resume && resume->checkpoint);
  EXPECT_EQ(resume->checkpoint->state.step, 3);
}

// cp -rL, or a tool for object stores: the link has become a folder. What is in it is nobody's but the user's.
TEST_F(Directory, ALatestThatWasCopiedIsALinkAgainAndTheCopyStays) {
  save(1, 2, 9);
  const std::string latest = folder_ + "/ck/latest";
  std::filesystem::remove(latest);
  std::filesystem::copy(folder_ + "/ck/step-000000002", latest);
  {
    auto directory = CheckpointDirectory::open(folder_ + "/ck");
    ASSERT_TRUE(directory && directory->latest_is_a_folder());
  }
  save(3, 4, 9);
  EXPECT_EQ(std::filesystem::read_symlink(latest), "step-000000004");
  EXPECT_THAT(names(), ElementsAre(".lock", "latest", "latest-before-step-000000003", "step-000000001",
                                   "step-000000002", "step-000000003", "step-000000004"));
  auto resume = newest();
  ASSERT_TRUE(resume && resume->checkpoint);
  EXPECT_EQ(resume->checkpoint->state.step, 4);
}

TEST_F(Directory, EmptyMeansBeginning) {
  auto resume = newest();
  ASSERT_TRUE(resume);
  EXPECT_FALSE(resume->checkpoint);
}

// Every file, each kind of damage: found, said with its name, and the one before is taken.
TEST_F(Directory, PassesOverDamage) {
  for (const char* name : {kModelFile, kOptimizerFile, kStateFile, kChecksumFile}) {
    for (const char* how : {"flip", "cut", "empty", "gone"}) {
      std::filesystem::remove_all(folder_ + "/ck");
      save(1, 3, 3);
      const std::string path = file(3, name);
      const auto size = std::filesystem::file_size(path);
      if (how == std::string("flip")) {
        std::fstream f(path, std::ios::in | std::ios::out | std::ios::binary);
        f.seekg(static_cast<std::streamoff>(size / 2));
        const char c = static_cast<char>(f.get() ^ 1);
        f.seekp(static_cast<std::streamoff>(size / 2));
        f.put(c);
      } else if (how == std::string("gone")) {
        std::filesystem::remove(path);
      } else {
        std::filesystem::resize_file(path, how == std::string("cut") ? size / 2 : 0);
      }
      auto resume = newest();
      ASSERT_TRUE(resume) << name << " " << how << ": " << resume.error().message();
      ASSERT_TRUE(resume->checkpoint) << name << " " << how;
      EXPECT_EQ(resume->checkpoint->state.step, 2) << name << " " << how;
      ASSERT_EQ(resume->damage.size(), 1U);
      EXPECT_THAT(resume->damage[0], HasSubstr(name)) << how;
      EXPECT_TRUE(std::filesystem::exists(folder_ + "/ck/damaged-step-000000003"));
      save(3, 3, 3);  // its name is free again
    }
  }
}

TEST_F(Directory, RefusesWhenNothingIsGood) {
  save(1, 2, 3);
  std::filesystem::resize_file(file(1, kModelFile), 7);
  std::filesystem::resize_file(file(2, kStateFile), 7);
  const auto before = names();
  auto resume = newest();
  ASSERT_FALSE(resume);
  EXPECT_THAT(resume.error().message(), HasSubstr("none of its 2 checkpoints is good"));
  EXPECT_EQ(names(), before);
}

// A file that cannot be read just now (here: a folder where it should be, for root reads all else) may be sound.
TEST_F(Directory, WhatCannotBeReadIsNotSetAside) {
  save(1, 3, 3);
  std::filesystem::rename(file(3, kModelFile), file(3, "kept"));
  std::filesystem::create_directory(file(3, kModelFile));
  const auto before = names();
  auto resume = newest();
  ASSERT_FALSE(resume);
  EXPECT_THAT(resume.error().message(), HasSubstr("nothing was changed"));
  EXPECT_THAT(resume.error().message(), HasSubstr("step-000000003/model.safetensors: is a folder"));
  EXPECT_EQ(names(), before);
  // Nor is one that a later version of the program has written.
  std::filesystem::remove(file(3, kModelFile));
  std::filesystem::rename(file(3, "kept"), file(3, kModelFile));
  auto directory = CheckpointDirectory::open(folder_ + "/ck");
  ASSERT_TRUE(directory);
  const std::string state = "{\"version\": 2}\n";
  ASSERT_TRUE(directory->write(4, {FileContent{kStateFile, {bytes(state)}}}));
  resume = load_newest(*directory);
  ASSERT_FALSE(resume);
  EXPECT_THAT(resume.error().message(), HasSubstr("not of version 1"));
  EXPECT_TRUE(std::filesystem::exists(file(4, kStateFile)));
}

TEST_F(Directory, AFolderThatCannotBeWrittenIsNoMatterOfTrying) {
  std::ofstream(folder_ + "/file") << "x";
  auto directory = CheckpointDirectory::open(folder_ + "/file/ck");
  ASSERT_FALSE(directory);
  EXPECT_EQ(directory.error().code(), Errc::invalid_argument);
  EXPECT_THAT(directory.error().message(), HasSubstr("cannot make the folder"));
}

// A file system that does not answer: the training hears of it, and the end does not wait for it.
TEST_F(Directory, ASaveThatHangsIsAnErrorAfterItsTime) {
  struct Gate {
    std::atomic<bool> open{false}, gone{false};
  };
  const auto gate = std::make_shared<Gate>();
  auto writer = make_writer(
      [gate](std::int64_t, const std::vector<FileContent>&) {
        for (int i = 0; !gate->open && i < 60'000; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        gate->gone = true;
        return Result<void>();
      },
      std::chrono::milliseconds(700));
  ASSERT_TRUE(writer->begin());
  TrainState state;
  state.step = 7;
  writer->submit(state);
  auto next = writer->begin();
  ASSERT_FALSE(next);
  EXPECT_EQ(next.error().code(), Errc::timed_out);
  EXPECT_THAT(next.error().message(), HasSubstr("step-000000007 has not been written"));
  EXPECT_FALSE(writer->wait());
  EXPECT_TRUE(writer->hangs());
  writer.reset();
  EXPECT_FALSE(gate->gone) << "the writer waited for a save that hangs";
  gate->open = true;
  for (int i = 0; i < 60'000 && gate.use_count() > 1; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(gate.use_count(), 1) << "the thread that was left behind has not ended";
}

// A file server's "timed out" has the code of a save that hangs, but the save is over.
TEST_F(Directory, ASaveThatFailsWithATimeOutDoesNotHang) {
  auto writer =
      make_writer([](std::int64_t,
                     const std::vector<FileContent>&) -> Result<void> { return Error::from_errno(ETIMEDOUT, "write"); },
                  std::chrono::seconds(60));
  ASSERT_TRUE(writer->begin());
  writer->submit(TrainState{});
  auto saved = writer->wait();
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code(), Errc::timed_out);
  EXPECT_FALSE(writer->hangs());
  EXPECT_TRUE(writer->begin());
}

TEST_F(Directory, RemainsOfAKilledWriterDoNoHarm) {
  save(1, 2, 3);
  std::filesystem::create_directory(folder_ + "/ck/.writing-step-000000003");
  std::ofstream(folder_ + "/ck/.writing-step-000000003/model.safetensors") << "half";
  std::filesystem::create_directory(folder_ + "/ck/.removing-step-000000001");
  auto resume = newest();
  ASSERT_TRUE(resume && resume->checkpoint);
  EXPECT_EQ(resume->checkpoint->state.step, 2);
  save(3, 3, 3);
  EXPECT_THAT(names(), ElementsAre(".lock", "latest", "step-000000001", "step-000000002", "step-000000003"));
}

// "step-40" is not a name that this program gives: it is left alone and no reason for anything.
TEST_F(Directory, OtherNamesAreNotOurs) {
  auto opened = CheckpointDirectory::open(folder_ + "/ck");
  ASSERT_TRUE(opened);
  const CheckpointDirectory& folder = *opened;
  for (const char* name : {"step-40", "step-0000000040", "step-00000040x", "step-", "Step-000000040"}) {
    EXPECT_EQ(step_of_folder(name), std::nullopt) << name;
    std::filesystem::create_directory(folder_ + "/ck" + "/" + name);
  }
  EXPECT_EQ(step_of_folder("step-000000040"), 40);
  EXPECT_EQ(step_of_folder("step-1234567890"), 1234567890);
  EXPECT_THAT(folder.steps().value(), ElementsAre());
  auto newest = load_newest(folder);
  ASSERT_TRUE(newest) << newest.error().message();
  EXPECT_FALSE(newest->checkpoint);
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/ck" + "/step-40"));
}

// Somebody tidies up while the run is under way.
TEST_F(Directory, ARemovedFolderIsMadeAgain) {
  auto opened = CheckpointDirectory::open(folder_ + "/ck");
  ASSERT_TRUE(opened);
  const CheckpointDirectory& folder = *opened;
  std::filesystem::remove_all(folder_ + "/ck");
  auto written = folder.write(7, {});
  ASSERT_TRUE(written) << written.error().message();
  EXPECT_THAT(folder.steps().value(), ElementsAre(7));
}

TEST_F(Directory, AFailedSaveLeavesTheOthers) {
  save(1, 2, 3);
  auto directory = CheckpointDirectory::open(folder_ + "/ck");
  ASSERT_TRUE(directory);
  // A name that cannot be created stands for a disk that is full: the same way out.
  auto failed = directory->write(3, {FileContent{"no/such/folder", {}}});
  ASSERT_FALSE(failed);
  EXPECT_THAT(failed.error().message(), HasSubstr("step-000000003"));
  EXPECT_THAT(names(), ElementsAre(".lock", "latest", "step-000000001", "step-000000002"));
}

}  // namespace
}  // namespace ddprun::checkpoint
