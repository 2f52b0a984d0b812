#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>

#include "worker/data/dataset.h"
#include "worker/data/views.h"

namespace ddprun::data {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Formats : public ::testing::Test {
 protected:
  Formats() {
    std::string name = ::testing::TempDir() + "ddprun-formats-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~Formats() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& bytes) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  struct Sample {
    std::vector<float> input;
    std::vector<std::int32_t> input_ids;
    std::vector<std::int32_t> label;
    std::vector<float> value;
  };
  static Sample read(const Dataset& dataset, std::int64_t index, std::int64_t epoch = 0) {
    const SampleSpec& spec = dataset.spec();
    std::vector<std::byte> input(spec.input_bytes());
    std::vector<std::byte> target(spec.target_bytes());
    auto done = dataset.read(SampleKey{3, epoch, index}, input.data(), target.data());
    EXPECT_TRUE(done) << (done ? "" : done.error().message());
    Sample sample;
    const auto copy = [](const std::vector<std::byte>& from, auto& to) {
      to.resize(from.size() / 4);
      std::memcpy(to.data(), from.data(), from.size());
    };
    if (spec.input_type == ElementType::f32) copy(input, sample.input);
    if (spec.input_type == ElementType::i32) copy(input, sample.input_ids);
    if (spec.target_type == ElementType::i32) copy(target, sample.label);
    if (spec.target_type == ElementType::f32) copy(target, sample.value);
    return sample;
  }

  static std::string error_of(const DatasetOptions& options) {
    auto opened = open_dataset(options);
    return opened ? "no error" : opened.error().message();
  }

  std::string folder_;
};

DatasetOptions options(const std::string& format, const std::string& inputs, const std::string& targets = "") {
  DatasetOptions o;
  o.format = format;
  o.paths = {inputs, targets};
  return o;
}

TEST_F(Formats, CsvHasTheTargetLast) {
  DatasetOptions o = options("csv", write("a.csv", "x,y,target\n1, 2.5,-3e-1\r\n\n+4,5,6\n"));
  o.target = TargetKind::values;
  auto data = open_dataset(o);
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_EQ((*data)->size(), 2);
  EXPECT_THAT((*data)->spec().input_shape, ElementsAre(2));
  EXPECT_THAT(read(**data, 0).input, ElementsAre(1.0F, 2.5F));
  EXPECT_THAT(read(**data, 0).value, ElementsAre(-0.3F));
  EXPECT_THAT(read(**data, 1).value, ElementsAre(6.0F));
  EXPECT_THAT((*data)->name_of(1), HasSubstr("a.csv:4"));
}

TEST_F(Formats, CsvFirstRowIsAHeadingOnlyIfItIsWords) {
  const auto rows = [this](const std::string& text) {
    DatasetOptions o = options("csv", write("h.csv", text));
    o.target = TargetKind::values;
    auto data = open_dataset(o);
    return data ? (*data)->size() : -1;
  };
  EXPECT_EQ(rows("\xef\xbb\xbf"
                 "1,2\n3,4\n"),
            2);  // a spreadsheet's mark of UTF-8
  EXPECT_EQ(rows("\xef\xbb\xbf"
                 "x,y\n3,4\n"),
            1);
  EXPECT_EQ(rows(",y\n3,4\n"), 1);
  EXPECT_EQ(rows("nanometers,y\n3,4\n"), 1);
  EXPECT_THAT(error_of(options("csv", write("i.csv", "nan,2\n3,4\n"))), HasSubstr("i.csv:1: column 1: 'nan'"));
  EXPECT_THAT(error_of(options("csv", write("j.csv", "1x,2\n3,4\n"))), HasSubstr("j.csv:1: column 1: '1x'"));
  EXPECT_THAT(error_of(options("csv", write("k.csv", std::string("\xff\xfe"
                                                                 "1\0,\0",
                                                                 6)))),
              HasSubstr("UTF-16"));
}

TEST_F(Formats, IgnoredLabelsAreLegalAndNoClass) {
  DatasetOptions o = options("csv", write("l.csv", "1,0\n2,-100\n3,2\n"));
  auto data = open_dataset(o);
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_EQ((*data)->spec().classes, 3);
  EXPECT_THAT(read(**data, 1).label, ElementsAre(-100));
  o.ignore_index = 9;
  EXPECT_THAT(error_of(o), HasSubstr("l.csv:2: label -100 is not a class number"));
  EXPECT_THAT(error_of(options("csv", write("m.csv", "1,-100\n"))), HasSubstr("every label is loss.ignore_index"));
}

TEST_F(Formats, CsvErrorsNameTheLine) {
  EXPECT_THAT(error_of(options("csv", folder_ + "/none.csv")), HasSubstr("none.csv"));
  EXPECT_THAT(error_of(options("csv", write("b.csv", "1,2\n3,x\n"))), HasSubstr("b.csv:2: column 2: 'x'"));
  EXPECT_THAT(error_of(options("csv", write("c.csv", "1,2\n1,2,3\n"))), HasSubstr("c.csv:2: 3 numbers"));
  EXPECT_THAT(error_of(options("csv", write("d.csv", "1,nan\n"))), HasSubstr("d.csv:1"));
  EXPECT_THAT(error_of(options("csv", write("e.csv", ""))), HasSubstr("no samples"));
  DatasetOptions labels = options("csv", write("f.csv", "1,0\n2,1\n\n3,7\n"));
  labels.classes = 3;
  EXPECT_THAT(error_of(labels), HasSubstr("f.csv:4: label 7 is not a class number from 0 to 2"));
  labels = options("csv", write("g.csv", "1,0.5\n"));
  EXPECT_THAT(error_of(labels), AllOf(HasSubstr("g.csv:1: label 0.5"), HasSubstr("use loss: mse")));
}

TEST_F(Formats, CsvColumnsMayBeChosenByName) {
  DatasetOptions o = options("csv", write("n.csv", "id,\"size, cm\",weight,kind\nx1,1,\"2.5\",cat\nx2,3,4,dog\n"));
  o.target_column = "kind";
  o.columns = {"weight", "size, cm"};
  auto data = open_dataset(o);
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_THAT((*data)->spec().class_names, ElementsAre("cat", "dog"));
  EXPECT_EQ((*data)->spec().classes, 2);
  EXPECT_THAT(read(**data, 0).input, ElementsAre(2.5F, 1.0F));
  EXPECT_THAT(read(**data, 1).label, ElementsAre(1));
  o.columns = {"wait"};
  EXPECT_THAT(error_of(o), HasSubstr("data.columns: there is no column 'wait'; there are: id, size, cm, weight, kind"));
  o.columns = {"wight"};
  EXPECT_THAT(error_of(o), HasSubstr("did you mean 'weight'?"));
  o.columns = {"kind"};
  EXPECT_THAT(error_of(o), HasSubstr("'kind' is the target"));
  o.columns = {};
  EXPECT_THAT(error_of(o), AllOf(HasSubstr("n.csv:2: column 1 (id): 'x1' is not a number"), HasSubstr("data.columns")));
  o = options("csv", write("m.csv", "1,2,3\n4,5,6\n"));
  o.target = TargetKind::values;
  o.target_column = "1";
  auto numbers = open_dataset(o);
  ASSERT_TRUE(numbers) << numbers.error().message();
  EXPECT_THAT(read(**numbers, 1).input, ElementsAre(5.0F, 6.0F));
  EXPECT_THAT(read(**numbers, 1).value, ElementsAre(4.0F));
  o.target_column = "4";
  EXPECT_THAT(error_of(o), HasSubstr("its 3 columns are called 1 to 3"));
  EXPECT_THAT(error_of(options("csv", write("q.csv", "1,\"2\n"))), HasSubstr("q.csv:1: a quote is not closed"));
}

TEST_F(Formats, CsvWordsOfValidationAreNumberedAsInTraining) {
  DatasetOptions o = options("csv", write("v.csv", "1,dog\n2,bird\n"));
  o.class_names = {"bird", "cat", "dog"};
  auto data = open_dataset(o);
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_THAT(read(**data, 0).label, ElementsAre(2));
  o.class_names = {"cat", "dog"};
  EXPECT_THAT(error_of(o), HasSubstr("v.csv:2: class 'bird' is not among those of data.train: cat, dog"));
}

TEST_F(Formats, SeveralCsvFilesAreOneTable) {
  DatasetOptions o = options("csv", write("p1.csv", "x,y\n1,2\n"));
  o.paths.more = {write("p2.csv", "x,y\n3,4\n5,6\n")};
  o.target = TargetKind::values;
  auto data = open_dataset(o);
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_EQ((*data)->size(), 3);
  EXPECT_THAT((*data)->name_of(0), HasSubstr("p1.csv:2"));
  EXPECT_THAT((*data)->name_of(2), HasSubstr("p2.csv:3"));
  EXPECT_THAT(read(**data, 2).value, ElementsAre(6.0F));
  o.paths.more = {write("p3.csv", "1,2,3\n")};
  EXPECT_THAT(error_of(o), HasSubstr("p3.csv:1: 3 numbers where the first row has 2"));
}

TEST_F(Formats, NormalisingGoesByColumnWhereSoManyNumbersAreGiven) {
  DatasetOptions o = options("csv", write("c.csv", "1,10,0\n3,30,0\n"));
  o.mean = {1, 10};
  o.std = {2, 10};
  auto data = open_dataset(o);
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_THAT(read(**data, 1).input, ElementsAre(1.0F, 2.0F));
  o.mean = {1, 2, 3};
  o.std = {1, 1, 1};
  EXPECT_THAT(error_of(o), HasSubstr("data.normalize has 3 numbers for 2 columns of inputs"));
}

TEST_F(Formats, CifarPlanesBecomePixels) {
  std::string record(1, '\7');
  for (int c = 0; c < 3; ++c) record += std::string(1024, static_cast<char>(c == 0 ? 255 : 51 * c));
  DatasetOptions o = options("cifar", write("a.bin", record));
  o.paths.more = {write("b.bin", record + record)};
  auto data = open_dataset(o);
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_EQ((*data)->size(), 3);
  EXPECT_THAT((*data)->spec().input_shape, ElementsAre(32, 32, 3));
  const Sample sample = read(**data, 2);
  EXPECT_THAT(sample.label, ElementsAre(7));
  EXPECT_FLOAT_EQ(sample.input[0], 1.0F);
  EXPECT_FLOAT_EQ(sample.input[1], 0.2F);
  EXPECT_FLOAT_EQ(sample.input[3071], 0.4F);
  auto fine = open_dataset(options("cifar", write("c.bin", std::string(1, '\1') + record)));
  ASSERT_TRUE(fine) << fine.error().message();
  EXPECT_THAT(read(**fine, 0).label, ElementsAre(7));
  EXPECT_THAT(error_of(options("cifar", write("d.bin", "abc"))),
              HasSubstr("d.bin: 3 bytes are no whole number of CIFAR"));
}

TEST_F(Formats, AHeldBackShareIsTheSameForTheSameSeed) {
  const std::string path = write("s.csv", "0,0\n1,0\n2,0\n3,0\n4,0\n5,0\n6,0\n7,0\n8,0\n9,0\n");
  const auto part = [&](std::uint64_t seed, bool back) {
    auto whole = open_dataset(options("csv", path));
    auto some = split_off(std::move(*whole), 0.3, seed, back);
    std::vector<float> values;
    for (std::int64_t i = 0; i < (*some)->size(); ++i) values.push_back(read(**some, i).input[0]);
    return values;
  };
  const auto rest = part(1, false), back = part(1, true);
  EXPECT_EQ(rest.size(), 7U);
  EXPECT_EQ(back.size(), 3U);
  std::vector<float> all = rest;
  all.insert(all.end(), back.begin(), back.end());
  std::sort(all.begin(), all.end());
  EXPECT_THAT(all, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_EQ(back, part(1, true));
  EXPECT_NE(back, part(2, true));
  auto whole = open_dataset(options("csv", path));
  auto none = split_off(std::move(*whole), 0.01, 1, true);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message(), HasSubstr("leaves nothing for one of the two"));
}

std::string idx(const std::vector<std::uint32_t>& sizes, const std::string& values) {
  std::string bytes = {'\0', '\0', '\x08', static_cast<char>(sizes.size())};
  for (const std::uint32_t size : sizes) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>((size >> shift) & 0xff));
  }
  return bytes + values;
}

TEST_F(Formats, IdxPlainAndGzip) {
  const std::string images = idx({2, 2, 2}, std::string("\x00\xff\x33\x66\x01\x02\x03\x04", 8));
  const std::string labels = write("labels", idx({2}, std::string("\x01\x00", 2)));
  const std::string packed = folder_ + "/images.gz";
  gzFile file = ::gzopen(packed.c_str(), "wb");
  ::gzwrite(file, images.data(), static_cast<unsigned>(images.size()));
  ::gzclose(file);
  for (const std::string& path : {write("images", images), packed}) {
    auto data = open_dataset(options("idx", path, labels));
    ASSERT_TRUE(data) << data.error().message();
    EXPECT_THAT((*data)->spec().input_shape, ElementsAre(2, 2, 1));
    EXPECT_EQ((*data)->spec().classes, 2);
    EXPECT_THAT(read(**data, 0).input, ElementsAre(0.0F, 1.0F, 0x33 / 255.0F, 0x66 / 255.0F));
    EXPECT_THAT(read(**data, 0).label, ElementsAre(1));
  }
  DatasetOptions normalized = options("idx", packed, labels);
  normalized.mean = {0.5};
  normalized.std = {0.25};
  auto data = open_dataset(normalized);
  ASSERT_TRUE(data);
  EXPECT_FLOAT_EQ(read(**data, 0).input[1], 2.0F);
}

TEST_F(Formats, IdxErrorsNameTheFile) {
  const std::string labels = write("labels", idx({2}, std::string("\x01\x09", 2)));
  const std::string images = idx({2, 1, 1}, "ab");
  EXPECT_THAT(error_of(options("idx", write("cut", images.substr(0, images.size() - 1)), labels)),
              HasSubstr("cut: 1 bytes of data, 2 expected"));
  EXPECT_THAT(error_of(options("idx", write("text", "hello world"), labels)), HasSubstr("text: not an IDX file"));
  EXPECT_THAT(error_of(options("idx", write("one", idx({1, 1, 1}, "a")), labels)), HasSubstr("has 1 images"));
  DatasetOptions few = options("idx", write("good", images), labels);
  few.classes = 5;
  EXPECT_THAT(error_of(few), HasSubstr("labels sample 1: label 9 is not a class number from 0 to 4"));
  EXPECT_THAT(error_of(options("idx", folder_, labels)), HasSubstr("is a folder"));
}

std::string npy(const std::string& descr, const std::string& shape, const std::string& values) {
  std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
  while ((10 + header.size() + 1) % 64 != 0) header.push_back(' ');
  header.push_back('\n');
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes.push_back(static_cast<char>(header.size() & 0xff));
  bytes.push_back(static_cast<char>(header.size() >> 8));
  return bytes + header + values;
}

template <typename T>
std::string raw(std::initializer_list<T> values) {
  return std::string(reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(T));
}

TEST_F(Formats, NpyBytesOfImagesBecomeZeroToOneAndOfTablesStay) {
  const std::string y = write("y.npy", npy("<i8", "(1,)", raw<std::int64_t>({0})));
  const std::string bytes("\x00\x33\xff\x66", 4);
  const auto inputs = [&](const std::string& shape) {
    auto data = open_dataset(options("npy", write("u.npy", npy("|u1", shape, bytes)), y));
    return data ? read(**data, 0).input : std::vector<float>();
  };
  EXPECT_THAT(inputs("(1, 4)"), ElementsAre(0.0F, 51.0F, 255.0F, 102.0F));
  EXPECT_THAT(inputs("(1, 2, 2)"), ElementsAre(0.0F, 0.2F, 1.0F, 0.4F));
  EXPECT_THAT(inputs("(1, 2, 2, 1)"), ElementsAre(0.0F, 0.2F, 1.0F, 0.4F));
}

TEST_F(Formats, WhatIsNoTokenFileIsNamed) {
  DatasetOptions o = options("tokens", write("t.bin", npy("<u2", "(2,)", "abcd")));
  o.sequence_length = 1;
  EXPECT_THAT(error_of(o), HasSubstr("t.bin: is no token file but a .npy file"));
  o.paths.inputs = write("t.txt", std::string(20, 'a') + " once upon a time there was a model that learned to read\n");
  EXPECT_THAT(error_of(o), HasSubstr("t.txt: is no token file but text"));
  std::string tokens;
  for (int i = 0; i < 64; ++i) tokens += {static_cast<char>('a' + i % 26), '\0'};
  o.paths.inputs = write("bytes.bin", tokens);
  EXPECT_TRUE(open_dataset(o)) << error_of(o);
}

template <typename T>
std::string numbers(std::size_t count, const std::function<std::int64_t(std::size_t)>& number) {
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) bytes += raw<T>({static_cast<T>(number(i))});
  return bytes;
}

TEST_F(Formats, TokensOfAnotherWidthAreRefused) {
  const auto error = [this](const std::string& bytes) {
    DatasetOptions o = options("tokens", write("w.bin", bytes));
    o.sequence_length = 8;
    return error_of(o);
  };
  const auto small = [](std::size_t i) { return static_cast<std::int64_t>(i * 37 % 199 + 1); };
  const auto large = [](std::size_t i) { return static_cast<std::int64_t>(i * 7919 % 128256); };        // Llama-3's
  const auto padded = [](std::size_t i) { return static_cast<std::int64_t>(i % 3 == 0 ? i + 1 : 0); };  // many 0
  for (const auto& number : {+small, +large, +padded}) {
    EXPECT_THAT(error(numbers<std::uint32_t>(3000, number)), HasSubstr("w.bin: looks like 4-byte tokens (uint32)"));
    EXPECT_THAT(error(numbers<std::int64_t>(3000, number)), HasSubstr("w.bin: looks like 8-byte tokens (int64)"));
  }
  EXPECT_THAT(error(numbers<std::uint32_t>(3000, small)), HasSubstr("put llm.c's header before them"));
  const auto head = [](std::int32_t magic, std::int32_t version, std::int32_t count) {
    return raw<std::int32_t>({magic, version, count}) + std::string(1024 - 12, '\0');
  };
  const std::string llama3 = error(head(20240801, 7, 100) + numbers<std::uint32_t>(100, small));
  EXPECT_THAT(llama3, HasSubstr("magic 20240801 (Llama-3) has 4-byte tokens (uint32)"));

  // What 2-byte tokens may look like.
  EXPECT_EQ(error(numbers<std::uint16_t>(3000, small)), "no error");
  EXPECT_EQ(error(numbers<std::uint16_t>(3000, padded)), "no error");
  EXPECT_EQ(error(numbers<std::uint16_t>(3000, [](std::size_t) { return 0; })), "no error");
  EXPECT_EQ(error(numbers<std::uint16_t>(3000, [](std::size_t i) { return i % 2; })), "no error");
  EXPECT_EQ(error(numbers<std::uint16_t>(3000, [](std::size_t i) { return i < 100 ? 7 : 0; })), "no error");
  EXPECT_EQ(error(numbers<std::uint16_t>(3000, [](std::size_t i) { return i % 64 == 0 ? 50256 : 0; })), "no error");
  const std::string every_second = numbers<std::uint16_t>(3000, [](std::size_t i) { return i % 2 == 0 ? 9 : 0; });
  EXPECT_THAT(error(every_second), HasSubstr("4-byte tokens"));
  EXPECT_EQ(error(head(20240520, 1, 3000) + every_second), "no error") << "the header says what they are";
}

TEST_F(Formats, HiddenFoldersAreNoClassesAndPicturesNotReadAreCounted) {
  namespace fs = std::filesystem;
  for (const char* folder : {"cat/.ipynb_checkpoints", "dog", ".ipynb_checkpoints", "__MACOSX"}) {
    fs::create_directories(folder_ + "/images/" + folder);
  }
  for (const char* name : {"cat/1.png", "dog/1.jpg"}) write(std::string("images/") + name, "x");
  for (const char* name :
       {".ipynb_checkpoints/1.png", "cat/.ipynb_checkpoints/1.png", "dog/._1.jpg", "dog/readme.txt"}) {
    write(std::string("images/") + name, "x");
  }
  auto data = open_dataset(options("image_folder", folder_ + "/images"));
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_THAT((*data)->spec().class_names, ElementsAre("cat", "dog"));
  EXPECT_EQ((*data)->size(), 2);
  EXPECT_THAT(
      (*data)->left_out(),
      ElementsAre(folder_ + "/images: hidden names are no classes and no samples, left out: .ipynb_checkpoints, "
                            "__MACOSX, cat/.ipynb_checkpoints and 1 more"));

  for (const char* hidden : {".ipynb_checkpoints", "__MACOSX", "cat/.ipynb_checkpoints", "dog/._1.jpg"}) {
    fs::remove_all(folder_ + "/images/" + hidden);
  }
  for (const char* name : {"cat/2.webp", "dog/2.WEBP", "dog/3.gif"}) write(std::string("images/") + name, "x");
  data = open_dataset(options("image_folder", folder_ + "/images/"));
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_EQ((*data)->size(), 2);
  EXPECT_THAT((*data)->left_out(), ElementsAre(HasSubstr("neither JPEG nor PNG are left out: 1 .gif, 2 .webp")));
  fs::remove(folder_ + "/images/cat/1.png");
  EXPECT_THAT(error_of(options("image_folder", folder_ + "/images")),
              HasSubstr("images/cat: no .jpg, .jpeg or .png file in this class, but 1 .webp"));
}

TEST_F(Formats, ABrokenLinkInAnImageFolderIsNamed) {
  namespace fs = std::filesystem;
  fs::create_directories(folder_ + "/images/a");
  write("images/a/1.png", "x");
  EXPECT_EQ(error_of(options("image_folder", folder_ + "/images")), "no error");
  for (const char* link : {"/images/a/2.png", "/images/a/more", "/images/b"}) {
    fs::create_symlink(folder_ + "/nowhere", folder_ + link);
    EXPECT_THAT(error_of(options("image_folder", folder_ + "/images")),
                HasSubstr(std::string(link) + ": a link to something that is not there"));
    fs::remove(folder_ + link);
  }
}

TEST_F(Formats, Npy) {
  const std::string x = write("x.npy", npy("<f4", "(2, 3)", raw<float>({1, 2, 3, 4, 5, 6})));
  const std::string y = write("y.npy", npy("<i8", "(2,)", raw<std::int64_t>({1, 0})));
  auto data = open_dataset(options("npy", x, y));
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_THAT(read(**data, 1).input, ElementsAre(4.0F, 5.0F, 6.0F));
  EXPECT_THAT(read(**data, 0).label, ElementsAre(1));
  DatasetOptions values = options("npy", x, write("z.npy", npy("<f8", "(2, 2)", raw<double>({1, 2, 3, 4.5}))));
  values.target = TargetKind::values;
  data = open_dataset(values);
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_THAT(read(**data, 1).value, ElementsAre(3.0F, 4.5F));
}

TEST_F(Formats, NpyErrorsNameTheFile) {
  const std::string y = write("y.npy", npy("<i8", "(2,)", raw<std::int64_t>({1, 0})));
  EXPECT_THAT(error_of(options("npy", write("short.npy", npy("<f4", "(2, 3)", "abc")), y)),
              HasSubstr("short.npy: 3 bytes of data, 24 expected"));
  EXPECT_THAT(error_of(options("npy", write("be.npy", npy(">f4", "(2, 1)", "abcdefgh")), y)), HasSubstr("be.npy"));
  EXPECT_THAT(error_of(options("npy", write("no.npy", "no"), y)), HasSubstr("no.npy: not a .npy file"));
  EXPECT_THAT(error_of(options("npy", write("huge.npy", npy("<f4", "(99999999999, 99999999999)", "")), y)),
              HasSubstr("damaged shape"));
}

TEST_F(Formats, NumbersThatAreNotFiniteAreNamedBySample) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::string y = write("y.npy", npy("<i8", "(2,)", raw<std::int64_t>({1, 0})));
  EXPECT_THAT(error_of(options("npy", write("nan.npy", npy("<f4", "(2, 2)", raw<float>({1, 2, 3, nan}))), y)),
              AllOf(HasSubstr("nan.npy sample 1: value 1 is nan"), HasSubstr("leave the sample out")));
  DatasetOptions values = options("npy", write("x.npy", npy("<f4", "(2, 1)", raw<float>({1, 2}))),
                                  write("t.npy", npy("<f4", "(2,)", raw<float>({-INFINITY, 2}))));
  values.target = TargetKind::values;
  EXPECT_THAT(error_of(values), HasSubstr("t.npy sample 0: the target is -inf"));
}

TEST_F(Formats, TokensOfBothKinds) {
  std::string tokens;
  for (int i = 0; i < 9; ++i) tokens += raw<std::uint16_t>({static_cast<std::uint16_t>(i)});
  std::string header(1024, '\0');
  const std::int32_t head[3] = {20240520, 1, 9};
  std::memcpy(header.data(), head, sizeof(head));
  for (const std::string& path : {write("nano.bin", tokens), write("llmc.bin", header + tokens)}) {
    DatasetOptions o = options("tokens", path);
    o.sequence_length = 4;
    o.classes = 9;
    auto data = open_dataset(o);
    ASSERT_TRUE(data) << data.error().message();
    EXPECT_EQ((*data)->size(), 2);
    EXPECT_THAT(read(**data, 1).input_ids, ElementsAre(4, 5, 6, 7));
    EXPECT_THAT(read(**data, 1).label, ElementsAre(5, 6, 7, 8));
    o.classes = 8;
    data = open_dataset(o);
    ASSERT_TRUE(data);
    std::int32_t in[4];
    std::int32_t out[4];
    auto done = (*data)->read(SampleKey{0, 0, 1}, reinterpret_cast<std::byte*>(in), reinterpret_cast<std::byte*>(out));
    ASSERT_FALSE(done);
    EXPECT_THAT(done.error().message(), HasSubstr("token 8 at position 8 is outside the vocabulary of 8"));
  }
  DatasetOptions o = options("tokens", write("cut.bin", header + tokens.substr(2)));
  EXPECT_THAT(error_of(o), HasSubstr("its header promises 9 tokens"));
  o = options("tokens", write("few.bin", tokens));
  EXPECT_THAT(error_of(o), HasSubstr("9 tokens; a sample of data.sequence_length 1024 needs 1025"));
}

TEST_F(Formats, AugmentationDependsOnSampleAndEpochOnly) {
  std::string pixels;
  for (int i = 0; i < 2 * 8 * 8; ++i) pixels.push_back(static_cast<char>(i));
  DatasetOptions o =
      options("idx", write("images", idx({2, 8, 8}, pixels)), write("labels", idx({2}, std::string(2, '\0'))));
  o.crop = o.flip = true;
  auto data = open_dataset(o);
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_EQ(read(**data, 0, 5).input, read(**data, 0, 5).input);
  int different = 0;
  for (int epoch = 1; epoch < 10; ++epoch) different += read(**data, 0, epoch).input != read(**data, 0, 0).input;
  EXPECT_GE(different, 7);
  o.training = false;
  data = open_dataset(o);
  EXPECT_EQ(read(**data, 0, 1).input, read(**data, 0, 2).input);
}

TEST_F(Formats, SyntheticIsTheSameEveryTime) {
  DatasetOptions o;
  o.format = "synthetic";
  o.synthetic_shape = {5};
  o.classes = 4;
  auto a = open_dataset(o);
  auto b = open_dataset(o);
  ASSERT_TRUE(a);
  EXPECT_EQ(read(**a, 7).input, read(**b, 7).input);
  EXPECT_NE(read(**a, 7).input, read(**a, 8).input);
  for (int i = 0; i < 100; ++i) EXPECT_LT(read(**a, i).label[0], 4);
}

}  // namespace
}  // namespace ddprun::data
