// The files of the cold tier's bytes, against a map of what must be in them.
#include "tier/blob_files.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "tier/testing/file_limit.h"
#include "tier/testing/tier_world.h"

namespace kvlink::tier {
namespace {

constexpr uint64_t kFileBytes = 20'000;

std::unique_ptr<BlobFiles> Open(const std::string& directory) {
  Result<std::unique_ptr<BlobFiles>> files = BlobFiles::Open(directory, kFileBytes);
  EXPECT_TRUE(files.ok()) << files.status().ToString();
  return std::move(*files);
}

std::vector<Place> Append(BlobFiles& files, const std::vector<std::string>& blobs) {
  const std::vector<std::string_view> views(blobs.begin(), blobs.end());
  std::vector<Place> places;
  EXPECT_EQ(files.Append(views, &places), 0);
  EXPECT_EQ(places.size(), blobs.size());
  return places;
}

std::string Read(const BlobFiles& files, const Place& place) {
  std::string bytes;
  EXPECT_EQ(files.Read(place, &bytes), 0);
  return bytes;
}

uint64_t BytesIn(const std::string& directory) {
  uint64_t bytes = 0;
  for (const auto& file : std::filesystem::directory_iterator(directory)) {
    EXPECT_TRUE(BlobFiles::IsBlobFile(file.path().filename().string())) << file.path();
    bytes += file.file_size();
  }
  return bytes;
}

// Appends, drops and restarts: what lives reads as it was written, what the files take is what
// total_bytes() says, and a file without anything alive is gone.
TEST(BlobFiles, KeepWhatLivesOverRandomOperationsAndRestarts) {
  const TempDirectory directory;
  std::unique_ptr<BlobFiles> files = Open(directory.path());
  base::Random random(1);
  std::vector<std::pair<Place, std::string>> naive;
  for (int step = 0; step < 600; ++step) {
    const uint64_t what = random.Below(20);
    if (what < 9) {
      std::vector<std::string> blobs;
      for (uint64_t i = 0; i <= random.Below(4); ++i) {
        blobs.push_back(RandomBytes(random.Next(), random.Below(9000)));
      }
      const std::vector<Place> places = Append(*files, blobs);
      for (size_t i = 0; i < blobs.size(); ++i) naive.emplace_back(places[i], blobs[i]);
    } else if (what < 19 && !naive.empty()) {
      const size_t at = random.Below(naive.size());
      ASSERT_EQ(Read(*files, naive[at].first), naive[at].second);
      files->Drop(naive[at].first);
      naive.erase(naive.begin() + static_cast<std::ptrdiff_t>(at));
    } else if (what == 19) {
      files.reset();
      files = Open(directory.path());
      for (const auto& [place, bytes] : naive) ASSERT_TRUE(files->Restore(place));
      files->RemoveDead();
    }
    ASSERT_EQ(files->total_bytes(), BytesIn(directory.path()));
  }
  for (const auto& [place, bytes] : naive) {
    ASSERT_EQ(Read(*files, place), bytes);
    files->Drop(place);
  }
  EXPECT_EQ(files->Sync(), 0);
  files->Seal();
  EXPECT_EQ(files->total_bytes(), 0u);
  EXPECT_EQ(BytesIn(directory.path()), 0u);
}

TEST(BlobFiles, APlaceThatNoFileHasIsNotRestoredAndItsNumberNotUsedAgain) {
  const TempDirectory directory;
  const std::vector<Place> places = Append(*Open(directory.path()), {"abc", "defg"});
  const auto files = Open(directory.path());
  EXPECT_TRUE(files->Restore(places[0]));
  EXPECT_FALSE(files->Restore({places[1].file, places[1].offset, 5})) << "one byte too many";
  EXPECT_FALSE(files->Restore({places[1].file, ~uint64_t{0} - 1, 4}));
  EXPECT_FALSE(files->Restore({places[0].file, 0, ~uint64_t{0}}));
  EXPECT_FALSE(files->Restore({40, 0, 3}));
  EXPECT_EQ(Append(*files, {"x"})[0].file, 41u);
  std::string bytes;
  EXPECT_EQ(files->Read({40, 0, 3}, &bytes), ENOENT);
  EXPECT_EQ(files->Read({places[0].file, 5, 3}, &bytes), ENODATA);
  EXPECT_EQ(Read(*files, places[0]), "abc");
}

TEST(BlobFiles, AnAppendThatStopsHalfWayLeavesNothingAndTheNextGoesToAnotherFile) {
  const TempDirectory directory;
  const auto files = Open(directory.path());
  const Place kept = Append(*files, {"kept"})[0];
  const std::vector<std::string_view> blobs = {"abc", "defg"};
  std::vector<Place> places(7);
  int error = 0;
  {
    const FileLimit limit(6);  // two bytes fit
    error = files->Append(blobs, &places);
  }
  EXPECT_EQ(error, EFBIG);
  EXPECT_TRUE(places.empty());
  EXPECT_EQ(files->total_bytes(), 4u);
  EXPECT_EQ(BytesIn(directory.path()), 4u);
  const Place next = Append(*files, {"next"})[0];
  EXPECT_NE(next.file, kept.file);
  EXPECT_EQ(Read(*files, kept), "kept");
  EXPECT_EQ(Read(*files, next), "next");
  files->Drop(kept);
  EXPECT_EQ(BytesIn(directory.path()), 4u) << "its file is gone";
}

TEST(BlobFiles, ANewFileThatTakesNothingIsGoneAgain) {
  const TempDirectory directory;
  const auto files = Open(directory.path());
  const std::vector<std::string_view> blobs = {"abc"};
  std::vector<Place> places;
  int error = 0;
  {
    const FileLimit limit(0);
    error = files->Append(blobs, &places);
  }
  EXPECT_EQ(error, EFBIG);
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  EXPECT_EQ(Read(*files, Append(*files, {"abc"})[0]), "abc");
}

TEST(BlobFiles, ManyAndEmptyBlobsAreWrittenInOrder) {
  const TempDirectory directory;
  const auto files = Open(directory.path());
  std::vector<std::string> blobs;
  for (int i = 0; i < 1500; ++i) blobs.push_back(i % 7 == 0 ? "" : std::to_string(i));
  const std::vector<Place> places = Append(*files, blobs);
  uint64_t offset = 0;
  for (size_t i = 0; i < blobs.size(); ++i) {
    ASSERT_EQ(places[i], (Place{places[0].file, offset, blobs[i].size()})) << i;
    ASSERT_EQ(Read(*files, places[i]), blobs[i]) << i;
    offset += blobs[i].size();
  }
  EXPECT_EQ(files->total_bytes(), offset);
  EXPECT_EQ(files->Sync(), 0);
  EXPECT_EQ(files->Sync(), 0) << "nothing is left to do";
}

TEST(BlobFiles, AFolderThatIsNotThereIsSaidByName) {
  const TempDirectory directory;
  const auto files = BlobFiles::Open(directory / "none", kFileBytes);
  ASSERT_FALSE(files.ok());
  EXPECT_EQ(files.status().code(), StatusCode::kUnavailable);
  EXPECT_NE(files.status().message().find(directory / "none"), std::string::npos)
      << files.status().message();
}

TEST(BlobFiles, AFileOfAnEarlierRunIsNotAppendedTo) {
  const TempDirectory directory;
  const Place first = Append(*Open(directory.path()), {"first"})[0];
  const auto files = Open(directory.path());
  ASSERT_TRUE(files->Restore(first));
  const Place second = Append(*files, {"second"})[0];
  EXPECT_NE(second.file, first.file);
  EXPECT_EQ(second.offset, 0u);
}

TEST(BlobFiles, TheSparsestFileHasTheLeastThatLives) {
  const TempDirectory directory;
  const auto files = Open(directory.path());
  EXPECT_FALSE(files->Sparsest().has_value());
  const std::string half(kFileBytes / 2, 'x');
  const std::vector<Place> a = Append(*files, {half, half}), b = Append(*files, {half, half});
  const std::vector<Place> c = Append(*files, {half});
  files->Drop(b[0]);
  files->Drop(c[0]);  // of the file that is appended to
  const auto sparsest = files->Sparsest();
  ASSERT_TRUE(sparsest.has_value());
  EXPECT_EQ(sparsest->file, b[0].file);
  EXPECT_EQ(sparsest->live_bytes, kFileBytes / 2);
  EXPECT_EQ(sparsest->bytes, kFileBytes);
  files->Drop(b[1]);
  EXPECT_EQ(files->Sparsest()->file, a[0].file);
}

TEST(BlobFiles, OtherFilesAreNotTheirs) {
  for (const char* name : {"kv-000001.blob", "kv-4294967295.blob", "kv-7.blob"}) {
    EXPECT_TRUE(BlobFiles::IsBlobFile(name)) << name;
  }
  for (const char* name : {"000001.blob", "kv-.blob", "kv-0.blob", "kv-1x.blob", "kv-1.sst", "kv-",
                           ".blob", "kv-4294967296.blob", "kv--1.blob", ""}) {
    EXPECT_FALSE(BlobFiles::IsBlobFile(name)) << name;
  }
}

}  // namespace
}  // namespace kvlink::tier
