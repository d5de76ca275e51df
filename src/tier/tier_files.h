// Listing, checking and exporting what a tier holds: for `kvlink inspect`.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kvlink/status.h"
#include "tier/block_codec.h"
#include "tier/block_tier.h"

namespace kvlink::tier {

struct CheckedBlock {
  TierEntry entry;
  BlockHeader header;  // when sound
  bool sound = false;
  DecodeError error;      // when not
  bool reachable = true;  // its parent is here, or it has none
};

struct VerifyReport {
  uint64_t blocks = 0, bytes = 0;  // sound
  uint64_t damaged = 0, missing = 0, unreachable = 0;
  std::vector<std::string> findings;  // the first 100, one line each
};

// Reads and checks every block (fsck): magic, version, lengths, checksum, key, and whether its
// parent is there. `remove_damaged` removes what is not sound. `visit`, when given, sees each.
Result<VerifyReport> VerifyTier(BlockTier& tier, bool remove_damaged,
                                const std::function<void(const CheckedBlock&)>& visit = {});

// One file a block, DIRECTORY/<32 hex digits>.kvblock, in the format of docs/formats/block.md. The
// directory is made when it is not there. Gives the blocks written; damaged ones are left out.
Result<uint64_t> ExportTier(BlockTier& tier, const std::string& directory);

// 32 digits: hi, then lo, most significant first.
std::string HexOfKey(const BlockKey& key);
bool KeyOfHex(std::string_view digits, BlockKey* key);

}  // namespace kvlink::tier
