// Dashboard: the page at /, which shows what the server does and chats with it.
//
// The text is dashboard.html beside this file, compiled in. It needs nothing from anywhere else,
// and its Content-Security-Policy holds it to that: the one script and the one style sheet are
// named by their SHA-256, and nothing but this server can be asked for anything.
#pragma once

#include "server/http.h"

namespace kvlink::server {

HttpResponse DashboardPage();

}  // namespace kvlink::server
