#include "ckpt/store.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "base/random.h"
#include "ckpt/file_io.h"
#include "ckpt/store_lock.h"
#include "ckpt/testing/checkpoint_files.h"

namespace kvlink::ckpt {
namespace {

namespace fs = std::filesystem;

std::string RandomBytes(base::Random& random, size_t size) {
  std::string bytes;
  while (bytes.size() < size) base::PutLe(bytes, random.Next());
  bytes.resize(size);
  return bytes;
}

class StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "kvlink_ckpt_XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    options_.chunk_bytes = 4096;
  }
  void TearDown() override { fs::remove_all(folder_); }

  CheckpointStore Store() {
    auto store = CheckpointStore::Open(Path("store"), true, false);
    EXPECT_TRUE(store.ok()) << store.status().message();
    return std::move(store).value();
  }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  std::string WriteFile(const std::string& name, const std::string& bytes) {
    fs::create_directories(fs::path(Path(name)).parent_path());
    std::ofstream(Path(name), std::ios::binary) << bytes;
    return Path(name);
  }
  std::string ReadFile(const std::string& path) const { return ReadWhole(path).value(); }
  AddReport Add(CheckpointStore& store, const std::string& name, const std::string& bytes,
                const std::string& base = "") {
    options_.base = base;
    const auto report = store.Add(name, WriteFile("in/" + name, bytes), options_);
    EXPECT_TRUE(report.ok()) << report.status().message();
    return report.ok() ? *report : AddReport{};
  }
  // What the checkpoint is now, or the error.
  std::string Get(const CheckpointStore& store, const std::string& name) {
    fs::remove_all(Path("out"));
    const auto bytes = store.Get(name, Path("out"));
    if (!bytes.ok()) return bytes.status().message();
    const std::string content = ReadFile(Path("out"));
    EXPECT_EQ(*bytes, content.size());
    return content;
  }
  std::vector<std::string> ChunkPaths() const {
    std::vector<std::string> paths;
    for (const auto& entry : fs::recursive_directory_iterator(Path("store/chunks"))) {
      if (entry.is_regular_file()) paths.push_back(entry.path());
    }
    return paths;
  }
  // A checkpoint of ten tensors of 40 KiB.
  std::vector<NamedTensor> Tensors() {
    std::vector<NamedTensor> tensors;
    for (int i = 0; i < 10; ++i) {
      tensors.push_back({"layer." + std::to_string(i), "BF16", RandomBytes(random_, 40960)});
    }
    return tensors;
  }

  base::Random random_{17};
  std::string folder_;
  AddOptions options_;
};

TEST_F(StoreTest, GivesBackEveryBitOfAnyFile) {
  auto store = Store();
  const std::map<std::string, std::string> files = {
      {"empty", ""},
      {"byte", "x"},
      {"noise", RandomBytes(random_, 50001)},
      {"zeros", std::string(20000, '\0')},
      {"safetensors", Safetensors(Tensors())},
      {"gguf", Gguf({{"a", 1, RandomBytes(random_, 9999)}, {"b", 12, RandomBytes(random_, 5)}})},
      {"cut", Safetensors(Tensors()).substr(0, 100000)}};
  for (const auto& [name, bytes] : files) Add(store, name, bytes);
  for (const auto& [name, bytes] : files) {
    EXPECT_EQ(Get(store, name), bytes) << name;
    EXPECT_EQ(store.Verify(name).value(), bytes.size());
  }
}

TEST_F(StoreTest, GivesBackAFolderOfShards) {
  auto store = Store();
  WriteFile("model/a-00001.safetensors", Safetensors(Tensors()));
  WriteFile("model/sub/a-00002.safetensors", Safetensors(Tensors()));
  WriteFile("model/config.json", "{}");
  ASSERT_TRUE(store.Add("m", Path("model") + "/", options_).ok());
  ASSERT_TRUE(store.Get("m", Path("out")).ok());
  for (const char* file : {"a-00001.safetensors", "sub/a-00002.safetensors", "config.json"}) {
    EXPECT_EQ(ReadFile(Path("out/") + file), ReadFile(Path("model/") + file));
  }
  EXPECT_EQ(store.List()->checkpoints[0].files, 3u);
  EXPECT_EQ(store.List()->checkpoints[0].tensors, 20u);
}

TEST_F(StoreTest, EqualTensorsAreStoredOnceWhereverTheyLie) {
  auto store = Store();
  auto tensors = Tensors();
  Add(store, "a", Safetensors(tensors));
  std::reverse(tensors.begin(), tensors.end());
  tensors.push_back({"new", "F32", RandomBytes(random_, 8192)});
  const AddReport report = Add(store, "b", Safetensors(tensors));
  EXPECT_EQ(report.new_chunks, 3u);  // the header, and two of the new tensor
  EXPECT_EQ(Get(store, "b"), Safetensors(tensors));
}

TEST_F(StoreTest, EqualRangesOfATensorAreStoredOnce) {
  auto store = Store();
  auto tensors = Tensors();
  Add(store, "a", Safetensors(tensors));
  tensors[3].bytes[20000] = static_cast<char>(tensors[3].bytes[20000] ^ 1);
  tensors[4].bytes += RandomBytes(random_, 4096);  // a vocabulary that grew
  const AddReport report = Add(store, "b", Safetensors(tensors));
  EXPECT_EQ(report.new_chunks, 3u);  // the header and one of each
}

TEST_F(StoreTest, ADifferenceFromTheBaseIsSmallAndNeverOfADifference) {
  auto store = Store();
  auto tensors = Tensors();
  std::vector<std::string> versions = {Safetensors(tensors)};
  Add(store, "v0", versions[0]);
  for (int version = 1; version < 5; ++version) {
    for (size_t i = 0; i < tensors[0].bytes.size(); i += 64) ++tensors[0].bytes[i];
    versions.push_back(Safetensors(tensors));
    const AddReport report = Add(store, "v" + std::to_string(version), versions.back(),
                                 "v" + std::to_string(version - 1));
    EXPECT_EQ(report.new_chunks, 10u);
    EXPECT_EQ(report.differences, 10u);
    EXPECT_LT(report.new_bytes, 40960 / 4u);
  }
  for (int version = 0; version < 5; ++version) {
    EXPECT_EQ(Get(store, "v" + std::to_string(version)), versions[static_cast<size_t>(version)]);
  }
}

TEST_F(StoreTest, CollectingKeepsTheBaseOfADifferenceWhenItsCheckpointGoes) {
  auto store = Store();
  auto tensors = Tensors();
  Add(store, "v0", Safetensors(tensors));
  tensors[0].bytes[5] = static_cast<char>(tensors[0].bytes[5] ^ 1);
  tensors.erase(tensors.begin() + 5, tensors.end());
  Add(store, "v1", Safetensors(tensors), "v0");
  const auto report = store.Collect({"v0"});
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->removed_chunks, 51u);  // five tensors of ten chunks, and the header
  EXPECT_EQ(Get(store, "v1"), Safetensors(tensors));
  // The base's chunk is there, though only as a base; it is not made a difference of its own one.
  tensors[0].bytes[5] = static_cast<char>(tensors[0].bytes[5] ^ 1);
  EXPECT_EQ(Add(store, "v2", Safetensors(tensors), "v1").new_chunks, 0u);
  EXPECT_EQ(Get(store, "v2"), Safetensors(tensors));
  EXPECT_EQ(store.Collect({"v1", "v2"})->freed_bytes > 0, true);
  EXPECT_TRUE(ChunkPaths().empty());
}

TEST_F(StoreTest, ListSaysWhatIsSharedAndWhatOnlyOneNeeds) {
  auto store = Store();
  auto tensors = Tensors();
  Add(store, "a", Safetensors(tensors));
  tensors[9].bytes = RandomBytes(random_, 40960);
  Add(store, "b", Safetensors(tensors));
  const auto listing = store.List();
  ASSERT_TRUE(listing.ok());
  ASSERT_EQ(listing->checkpoints.size(), 2u);
  const CheckpointInfo& b = listing->checkpoints[1];
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.format, "safetensors");
  EXPECT_EQ(b.tensors, 10u);
  EXPECT_EQ(b.own_bytes, 40960 + 10 * kChunkHeaderBytes);  // noise does not compress; one header
  uint64_t on_disk = 0;
  for (const std::string& path : ChunkPaths()) on_disk += fs::file_size(path);
  EXPECT_EQ(listing->stored_bytes, on_disk);
  EXPECT_EQ(store.Collect({"b"})->freed_bytes, b.own_bytes);
}

TEST_F(StoreTest, AFlippedByteAnywhereInAChunkIsReportedWithTheTensorsName) {
  auto store = Store();
  Add(store, "a", Safetensors({{"the.tensor", "BF16", std::string(3000, 'w')}}));
  for (const std::string& path : ChunkPaths()) {
    const std::string good = ReadFile(path);
    for (size_t at = 0; at < good.size(); ++at) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 0x80);
      std::ofstream(path, std::ios::binary) << bad;
      const std::string got = Get(store, "a");
      if (got == Safetensors({{"the.tensor", "BF16", std::string(3000, 'w')}})) continue;
      EXPECT_TRUE(got.find("'the.tensor'") != std::string::npos ||
                  got.find("'(header)'") != std::string::npos)
          << got;
      EXPECT_NE(got.find("corrupt"), std::string::npos) << got;
      EXPECT_FALSE(fs::exists(Path("out")));
    }
    std::ofstream(path, std::ios::binary) << good;
  }
}

TEST_F(StoreTest, AMissingChunkIsReportedAndAddingAgainHealsIt) {
  auto store = Store();
  const std::string bytes = Safetensors(Tensors());
  Add(store, "a", bytes);
  fs::remove(ChunkPaths()[3]);
  EXPECT_NE(Get(store, "a").find("is missing"), std::string::npos);
  EXPECT_EQ(Add(store, "again", bytes).new_chunks, 1u);
  EXPECT_EQ(Get(store, "a"), bytes);
}

TEST_F(StoreTest, CollectingStopsWhereAManifestCannotBeRead) {
  auto store = Store();
  Add(store, "a", Safetensors(Tensors()));
  const auto chunks = ChunkPaths();
  std::ofstream(Path("store/checkpoints/a"), std::ios::binary) << "{}";
  EXPECT_EQ(store.Collect({}).status().code(), StatusCode::kDataLoss);
  EXPECT_EQ(ChunkPaths(), chunks);
}

TEST_F(StoreTest, BadRequestsNameWhatIsWrong) {
  auto store = Store();
  const std::string file = WriteFile("f", "x");
  EXPECT_EQ(store.Add("a/b", file, options_).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(store.Add("a", Path("nowhere"), options_).status().code(), StatusCode::kNotFound);
  options_.base = "nobody";
  EXPECT_NE(store.Add("a", file, options_).status().message().find("nobody"), std::string::npos);
  options_.base = "";
  options_.level = 40;
  EXPECT_NE(store.Add("a", file, options_).status().message().find("40"), std::string::npos);
  options_.level = 3;
  ASSERT_TRUE(store.Add("a", file, options_).ok());
  EXPECT_EQ(store.Add("a", file, options_).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store.Get("b", Path("out")).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(store.Get("a", file).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(store.Collect({"b"}).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(CheckpointStore::Open(Path("none"), false, false).status().code(),
            StatusCode::kNotFound);
  WriteFile("home/letter.txt", "dear");
  EXPECT_EQ(CheckpointStore::Open(Path("home"), true, false).status().code(),
            StatusCode::kFailedPrecondition);
}

TEST_F(StoreTest, WhileAnotherProcessHoldsTheLockItSaysSo) {
  auto store = Store();
  Add(store, "a", "x");
  const auto held = LockFile(Path("store/write.lock"), true, false);
  ASSERT_TRUE(held.ok());
  EXPECT_EQ(store.Add("b", Path("in/a"), options_).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(store.Collect({}).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(Get(store, "a"), "x");  // reading goes on
}

TEST_F(StoreTest, KilledWhileAddingItShowsNothingHalfDone) {
  auto store = Store();
  auto tensors = Tensors();
  const std::string first = Safetensors(tensors);
  Add(store, "first", first);
  for (NamedTensor& tensor : tensors) tensor.bytes = RandomBytes(random_, 400000);
  const std::string second = Safetensors(tensors);
  const std::string path = WriteFile("second", second);
  int unfinished = 0;
  for (int round = 0; round < 12; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::_exit(store.Add("second", path, options_).ok() ? 0 : 1);
    }
    ::usleep(static_cast<useconds_t>(random_.Below(30000)));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const auto listing = store.List();
    ASSERT_TRUE(listing.ok()) << listing.status().message();
    EXPECT_EQ(Get(store, "first"), first);
    if (listing->checkpoints.size() == 1) {
      ++unfinished;
    } else {
      EXPECT_EQ(Get(store, "second"), second);
      ASSERT_TRUE(store.Collect({"second"}).ok());
    }
    if (round % 3 == 0) {
      ASSERT_TRUE(store.Collect({}).ok());
      uint64_t on_disk = 0;
      for (const std::string& chunk : ChunkPaths()) on_disk += fs::file_size(chunk);
      EXPECT_EQ(on_disk, store.List()->stored_bytes);
    }
  }
  EXPECT_GT(unfinished, 0);
  ASSERT_TRUE(store.Add("second", path, options_).ok());
  EXPECT_EQ(Get(store, "second"), second);
}

TEST_F(StoreTest, AHalfWrittenChunkOfAnInterruptedAddIsNotBelieved) {
  auto store = Store();
  const std::string bytes = Safetensors(Tensors());
  Add(store, "a", bytes);
  fs::remove(Path("store/checkpoints/a"));  // as if it had never become visible
  const std::string torn = ChunkPaths()[2];
  fs::resize_file(torn, fs::file_size(torn) / 2);
  EXPECT_EQ(Add(store, "a", bytes).new_chunks, 1u);
  EXPECT_EQ(Get(store, "a"), bytes);
}

// Random checkpoints come and go; a map of what they are is the reference.
TEST_F(StoreTest, RandomOperationsAgreeWithPlainCopies) {
  auto store = Store();
  std::map<std::string, std::string> copies;
  std::vector<NamedTensor> tensors = Tensors();
  for (int step = 0; step < 120; ++step) {
    const uint64_t kind = random_.Below(10);
    if (kind < 5 || copies.empty()) {
      NamedTensor& tensor = tensors[random_.Below(tensors.size())];
      if (random_.OneIn(3)) {
        tensor.bytes = RandomBytes(random_, random_.Below(30000));
      } else if (!tensor.bytes.empty()) {
        for (int i = 0; i < 20; ++i) ++tensor.bytes[random_.Below(tensor.bytes.size())];
      }
      if (random_.OneIn(4)) std::swap(tensors[0], tensors[random_.Below(tensors.size())]);
      std::string base;
      if (!copies.empty() && random_.OneIn(2)) {
        base =
            std::next(copies.begin(), static_cast<ptrdiff_t>(random_.Below(copies.size())))->first;
      }
      const std::string name = "c" + std::to_string(step), bytes = Safetensors(tensors);
      Add(store, name, bytes, base);
      copies[name] = bytes;
    } else {
      const auto at =
          std::next(copies.begin(), static_cast<ptrdiff_t>(random_.Below(copies.size())));
      if (kind < 8) {
        EXPECT_EQ(Get(store, at->first), at->second);
      } else {
        ASSERT_TRUE(store.Collect({at->first}).ok());
        copies.erase(at);
        uint64_t on_disk = 0;
        for (const std::string& path : ChunkPaths()) on_disk += fs::file_size(path);
        EXPECT_EQ(on_disk, store.List()->stored_bytes);
      }
    }
  }
  for (const auto& [name, bytes] : copies) EXPECT_EQ(Get(store, name), bytes);
  for (const auto& [name, bytes] : copies) ASSERT_TRUE(store.Collect({name}).ok());
  EXPECT_TRUE(ChunkPaths().empty());
}

}  // namespace
}  // namespace kvlink::ckpt
