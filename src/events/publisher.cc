#include "events/publisher.h"

#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace kvlink::events {
namespace {

constexpr int kHighWaterMark = 100000;  // messages that wait for one subscriber
constexpr uint64_t kEndOfReplay = ~uint64_t{0};

std::string BigEndian(uint64_t value) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) bytes.push_back(static_cast<char>(value >> shift));
  return bytes;
}

uint64_t FromBigEndian(std::string_view bytes) {
  uint64_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<unsigned char>(byte);
  return value;
}

Event StoredEvent(const StoredBlock& block, Event::Medium medium) {
  return {.kind = Event::Kind::kStored,
          .medium = medium,
          .hash = block.hash,
          .parent = block.parent,
          .tokens = {block.tokens.begin(), block.tokens.end()},
          .name_space = block.name_space};
}

Event::Medium MediumOf(std::string_view tier) {
  return tier == "cold" ? Event::Medium::kDisk : Event::Medium::kPeer;
}

}  // namespace

Publisher::Publisher(PublisherOptions options)
    : options_(std::move(options)), queue_(options_.queue_events), context_(MakeZmqContext()) {}

Result<std::unique_ptr<Publisher>> Publisher::Start(PublisherOptions options) {
  KVLINK_CHECK(options.unix_time_s != nullptr) << "no clock";
  std::unique_ptr<Publisher> publisher(new Publisher(std::move(options)));
  if (const Status status = publisher->Bind(); !status.ok()) return status;
  publisher->Cleared();
  publisher->thread_ = std::thread([raw = publisher.get()] { raw->Run(); });
  return publisher;
}

Status Publisher::Bind() {
  auto events =
      BindZmqSocket(context_.get(), ZMQ_PUB, kHighWaterMark, options_.endpoint, &endpoint_);
  if (!events.ok()) return events.status();
  events_ = std::move(events).value();
  if (!options_.replay_endpoint.empty()) {
    const int room = static_cast<int>(options_.replay_batches) + 16;  // for a whole answer
    auto replay = BindZmqSocket(context_.get(), ZMQ_ROUTER, room, options_.replay_endpoint,
                                &replay_endpoint_);
    if (!replay.ok()) return replay.status();
    replay_ = std::move(replay).value();
  }
  wake_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_fd_ >= 0) return Status::Ok();
  return {StatusCode::kUnavailable, std::string("no eventfd: ") + std::strerror(errno)};
}

Publisher::~Publisher() {
  is_stopping_ = true;
  if (thread_.joinable()) {
    Wake();
    thread_.join();
  }
  if (wake_fd_ >= 0) ::close(wake_fd_);
}

void Publisher::Stored(const StoredBlock& block) { Put(StoredEvent(block, Event::Medium::kRam)); }

void Publisher::Removed(const BlockHash& hash) {
  Put({.kind = Event::Kind::kRemoved, .hash = hash});
}

void Publisher::StoredInTier(const StoredBlock& block, std::string_view tier) {
  Put(StoredEvent(block, MediumOf(tier)));
}

void Publisher::RemovedFromTier(const BlockHash& hash, std::string_view tier) {
  Put({.kind = Event::Kind::kRemoved, .medium = MediumOf(tier), .hash = hash});
}

void Publisher::Cleared() { Put({.kind = Event::Kind::kCleared}); }

void Publisher::Put(Event event) {
  if (queue_.Put(std::move(event))) Wake();
}

void Publisher::Wake() {
  const uint64_t one = 1;
  ssize_t written = 0;
  do {
    written = ::write(wake_fd_, &one, sizeof(one));
  } while (written < 0 && errno == EINTR);
}

PublisherCounts Publisher::counts() const {
  return {.batches = batches_sent_,
          .events = events_sent_,
          .dropped = queue_.dropped(),
          .replays = replays_};
}

void Publisher::Run() {
  std::array<zmq_pollitem_t, 2> items = {
      zmq_pollitem_t{nullptr, wake_fd_, ZMQ_POLLIN, 0},
      zmq_pollitem_t{replay_.get(), 0, ZMQ_POLLIN, 0},
  };
  while (!is_stopping_) {
    zmq_poll(items.data(), replay_ ? 2 : 1, -1);
    uint64_t wakes = 0;
    if (::read(wake_fd_, &wakes, sizeof(wakes)) < 0 && errno != EAGAIN && errno != EINTR) return;
    PublishAll();
    if (replay_) ServeReplay();
  }
  PublishAll();
}

void Publisher::PublishAll() {
  while (true) {
    EventQueue::Batch batch = queue_.Take(options_.batch_events);
    if (batch.empty()) return;
    if (batch.dropped_before > 0) ++next_number_;
    if (batch.events.empty()) continue;
    const uint64_t number = next_number_++;
    std::string payload = EncodeBatch(options_.unix_time_s(), batch.events);
    const std::string number_bytes = BigEndian(number);
    SendFrames(events_.get(), {options_.topic, number_bytes, payload});
    batches_sent_ += 1;
    events_sent_ += batch.events.size();
    if (replay_) Keep(number, std::move(payload));
  }
}

void Publisher::Keep(uint64_t number, std::string payload) {
  kept_bytes_ += payload.size();
  kept_.push_back({number, std::move(payload)});
  while (kept_.size() > options_.replay_batches || kept_bytes_ > options_.replay_bytes) {
    kept_bytes_ -= kept_.front().payload.size();
    kept_.pop_front();
  }
}

void Publisher::ServeReplay() {
  for (auto request = ReceiveFrames(replay_.get()); !request.empty();
       request = ReceiveFrames(replay_.get())) {
    // (client, "", first number); anything else is nobody's request.
    if (request.size() != 3 || request[2].size() != sizeof(uint64_t)) continue;
    ++replays_;
    const uint64_t first = FromBigEndian(request[2]);
    for (const Kept& batch : kept_) {
      if (batch.number < first) continue;
      const std::string number = BigEndian(batch.number);
      SendFrames(replay_.get(), {request[0], "", options_.topic, number, batch.payload});
    }
    const std::string end = BigEndian(kEndOfReplay);
    SendFrames(replay_.get(), {request[0], "", "", end, ""});
  }
}

}  // namespace kvlink::events
