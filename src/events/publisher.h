// Publisher: a cache's blocks on a ZMQ socket, as vLLM's publisher does it.
//
//   PUB     (topic, sequence number, EventBatch)        sequence numbers: u64, big-endian, from 0
//   ROUTER  replay: a client sends ("", first number), gets ("", topic, number, batch) for every
//           one kept from there on, then ("", "", -1, "")
//
// Batch 0 is AllBlocksCleared: a process that starts holds nothing, whatever was known of its
// address. When events come faster than they can leave, some are dropped, and a sequence number is
// left out, which no replay can fill: who sees that knows no more what this cache holds.
//
// Threads: the observer's members may be called from any thread and take a lock for a moment; a
// thread of its own encodes and sends. Nothing waits for a subscriber.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "events/event_queue.h"
#include "events/zmq_socket.h"
#include "kvlink/block_observer.h"
#include "kvlink/status.h"

namespace kvlink::events {

struct PublisherOptions {
  std::string endpoint = "tcp://127.0.0.1:5557";  // bound; tcp:// or ipc://
  std::string replay_endpoint;                    // empty: no replay
  std::string topic;
  size_t queue_events = 100000;
  size_t batch_events = 1024;  // at most, in one message
  size_t replay_batches = 10000;
  size_t replay_bytes = size_t{64} << 20;
  std::function<double()> unix_time_s;  // seconds since 1970; the events' time stamps
};

struct PublisherCounts {
  uint64_t batches = 0, events = 0;  // sent
  uint64_t dropped = 0;              // events
  uint64_t replays = 0;              // requests
};

class Publisher final : public BlockObserver {
 public:
  // kInvalidArgument, kUnavailable: an endpoint cannot be bound.
  static Result<std::unique_ptr<Publisher>> Start(PublisherOptions options);
  ~Publisher() override;  // sends what is queued first
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  void Stored(const StoredBlock& block) override;
  void Removed(const BlockHash& hash) override;
  void Cleared() override;
  void StoredInTier(const StoredBlock& block, std::string_view tier) override;
  void RemovedFromTier(const BlockHash& hash, std::string_view tier) override;

  // Where it listens, with the ports that the system chose for port 0.
  const std::string& endpoint() const { return endpoint_; }
  const std::string& replay_endpoint() const { return replay_endpoint_; }
  PublisherCounts counts() const;

 private:
  explicit Publisher(PublisherOptions options);
  Status Bind();
  void Put(Event event);
  void Wake();
  void Run();  // the thread
  void PublishAll();
  void Keep(uint64_t number, std::string payload);
  void ServeReplay();

  const PublisherOptions options_;
  EventQueue queue_;
  ZmqContext context_;  // outlives the sockets
  ZmqSocket events_, replay_;
  std::string endpoint_, replay_endpoint_;
  int wake_fd_ = -1;
  std::atomic<bool> is_stopping_{false};
  std::atomic<uint64_t> batches_sent_{0}, events_sent_{0}, replays_{0};

  struct Kept {
    uint64_t number;
    std::string payload;
  };
  uint64_t next_number_ = 0;  // this and below: the thread's
  std::deque<Kept> kept_;
  size_t kept_bytes_ = 0;

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace kvlink::events
