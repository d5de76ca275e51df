// The names of a cold folder's files, ours and RocksDB's, and what must be true of them before one
// is opened: a FIFO under such a name would hold up whoever opens it for ever, a link or a device
// would take the store's bytes elsewhere.
#pragma once

#include <string>
#include <string_view>

#include "kvlink/status.h"

namespace kvlink::tier {

// Whether opening or using a cold store opens a file of this name in its folder.
bool IsColdFile(std::string_view name);

// kFailedPrecondition: an entry with such a name is no regular file; says which, and what it is.
// Other names are nobody's matter. One look at each entry (lstat), nothing is opened.
Status CheckColdFiles(const std::string& directory);

}  // namespace kvlink::tier
