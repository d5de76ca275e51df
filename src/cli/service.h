// Service: how `kvlink serve` gets on with what started it: systemd, a shell, or a terminal.
//
// A unit of Type=notify waits for READY=1, so that starting it ends when requests are answered, and
// fails where the start fails. The protocol is a datagram to the socket that NOTIFY_SOCKET names
// (sd_notify(3)): too little for a library.
#pragma once

#include <string>

namespace kvlink::cli {

// Sends `state` ("READY=1", ...; several lines are several assignments) to `socket`, a path or,
// with @ in front, an abstract name. False: nobody listens there, which is no error of ours.
bool NotifyService(const std::string& state, const std::string& socket);

// The same to NOTIFY_SOCKET; without it nothing is sent.
void NotifyService(const std::string& state);

// Whether SIGHUP means that the terminal has gone: the process has a terminal, and was not started
// by nohup. A service has none; there SIGHUP asks to read files again. Ask before the signal is
// handled by anybody, and before the terminal can be gone.
bool HangUpEnds();

}  // namespace kvlink::cli
