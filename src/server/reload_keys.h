// ReloadKeys and ReloadTls: files that are read again while the server runs.
#pragma once

#include "kvlink/status.h"
#include "server/server.h"

namespace kvlink::server {

// Of a server that Server::Create made. When the file is broken the old keys stay and the log says
// why; requests that run are not touched. kFailedPrecondition: it was started without keys. Any
// thread.
Status ReloadKeys(Server& server);
// Likewise the certificate and its key; connections keep those that they began with.
Status ReloadTls(Server& server);

}  // namespace kvlink::server
