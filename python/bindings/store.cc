// BlockStore: a stack of tiers (RAM, disk, Redis) for arbitrary blocks of bytes under 32-byte keys.
//
// A key is the block's full-strength name (a SHA-256 digest): its first 16 bytes address the block
// in a tier, all of it is compared on every load. Whatever may wait runs without the GIL.
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "base/endian.h"
#include "pages.h"
#include "store_handle.h"
#include "tier/chain_digest.h"
#include "tier/cold_tier.h"
#include "tier/memory_tier.h"
#include "tier/remote_tier.h"

namespace kvlink::python {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

std::vector<tier::Identity> IdentitiesFrom(const py::iterable& keys) {
  std::vector<tier::Identity> identities;
  for (const py::handle key : keys) identities.push_back(IdentityFrom(key, "key"));
  return identities;
}

py::bytes AddressBytes(const tier::BlockKey& key) {
  std::string bytes;
  base::PutLe(bytes, key.lo);
  base::PutLe(bytes, key.hi);
  return bytes;
}

tier::Compression CompressionFrom(const std::string& name) {
  for (const auto compression :
       {tier::Compression::kNone, tier::Compression::kLz4, tier::Compression::kZstd}) {
    if (name == tier::CompressionName(compression)) return compression;
  }
  Throw(StatusCode::kInvalidArgument,
        "compression is '" + name + "', but must be none, lz4 or zstd");
}

// Redis counts whole seconds, and 0 are none.
std::chrono::seconds TimeToLive(double seconds) {
  if (!(seconds >= 0 && seconds <= 1e9)) {
    Throw(StatusCode::kInvalidArgument,
          "remote_ttl_s is " + std::to_string(seconds) + ", but must be 0 (no end) to 1e9 seconds");
  }
  return std::chrono::seconds(static_cast<int64_t>(std::ceil(seconds)));
}

StorePointer MakeStore(const std::string& model, uint64_t ram_bytes,
                       const std::optional<std::string>& cold_dir, uint64_t cold_bytes,
                       const std::optional<std::string>& remote, const std::string& remote_ca_file,
                       double remote_ttl_s, const std::string& compression, uint64_t queue_bytes,
                       double load_timeout_s, double store_timeout_s, double write_share,
                       int writer_nice) {
  if (!(write_share >= 0)) {
    Throw(StatusCode::kInvalidArgument,
          "write_share is " + std::to_string(write_share) + ", but must be a number from 0 on");
  }
  if (writer_nice < 0 || writer_nice > 19) {
    Throw(StatusCode::kInvalidArgument,
          "writer_nice is " + std::to_string(writer_nice) + ", but must be 0 to 19");
  }
  tier::TierStoreOptions options;
  options.model_fingerprint = model;
  options.compression = CompressionFrom(compression);
  options.queue_bytes = queue_bytes;
  options.load_timeout = Duration(load_timeout_s, "load_timeout_s");
  options.store_timeout = Duration(store_timeout_s, "store_timeout_s");
  options.pace = std::make_shared<tier::WritePace>(write_share, options.clock);
  options.paced_from = ram_bytes > 0 ? 1 : 0;
  options.writer_nice = writer_nice;
  std::vector<std::unique_ptr<tier::BlockTier>> tiers;
  if (ram_bytes > 0) tiers.push_back(std::make_unique<tier::MemoryTier>(ram_bytes, "ram"));
  if (cold_dir) {
    tiers.push_back(Take(tier::OpenColdTier({.directory = *cold_dir, .budget_bytes = cold_bytes})));
  }
  if (remote) {
    tier::RemoteTierOptions at = Take(tier::ParseRemoteUrl(*remote));
    at.ca_file = remote_ca_file;
    at.time_to_live = TimeToLive(remote_ttl_s);
    tiers.push_back(Take(tier::OpenRemoteTier(at)));
  }
  if (tiers.empty()) {
    Throw(StatusCode::kInvalidArgument, "no tier: give ram_bytes, cold_dir or remote");
  }
  return std::make_shared<StoreHandle>(std::move(options), std::move(tiers));
}

bool Put(const StorePointer& self, const py::object& key, const py::object& data,
         const py::object& parent, double cost_us) {
  tier::PutBlock block;
  block.name = NameOf(IdentityFrom(key, "key"));
  if (!parent.is_none()) block.name.parent = tier::AddressOf(IdentityFrom(parent, "parent"));
  block.cost_us = cost_us;
  const Bytes bytes(data, "data", Bytes::Access::kRead);
  if (bytes.size() == 0 || bytes.size() > tier::kMaxPayloadBytes) {
    Throw(StatusCode::kInvalidArgument, "data has " + std::to_string(bytes.size()) +
                                            " bytes, but must have 1 to " +
                                            std::to_string(tier::kMaxPayloadBytes));
  }
  block.payload = {bytes.data(), bytes.size()};
  const std::shared_ptr<tier::TierStore> store = self->share();
  const Released released;
  return store->Put(block);
}

// Waits until the tiers were asked for what nobody here knows.
void ProbeUnknown(tier::TierStore& store, const std::vector<tier::BlockKey>& keys,
                  milliseconds patience) {
  struct Asked {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
  };
  const auto asked = std::make_shared<Asked>();  // the answer may come after we gave up
  store.Probe(keys, [asked] {
    const std::lock_guard lock(asked->mutex);
    asked->done = true;
    asked->changed.notify_all();
  });
  std::unique_lock lock(asked->mutex);
  asked->changed.wait_for(lock, patience, [&] { return asked->done; });
}

// The name of the fastest tier that has each key, or None.
py::list Locate(const StorePointer& self, const py::iterable& keys, double timeout_s) {
  const milliseconds patience = Duration(timeout_s, "timeout_s");
  std::vector<tier::BlockKey> addresses;
  for (const tier::Identity& identity : IdentitiesFrom(keys)) {
    addresses.push_back(tier::AddressOf(identity));
  }
  const std::shared_ptr<tier::TierStore> store = self->share();
  std::vector<uint32_t> present(addresses.size());
  {
    const Released released;
    std::vector<tier::BlockKey> unknown;
    for (const tier::BlockKey& key : addresses) {
      const tier::Where where = store->Find(key);
      if (where.present == 0 && where.unknown != 0) unknown.push_back(key);
    }
    if (!unknown.empty() && patience.count() > 0) ProbeUnknown(*store, unknown, patience);
    for (size_t i = 0; i < addresses.size(); ++i) present[i] = store->Find(addresses[i]).present;
  }
  py::list names;
  for (const uint32_t mask : present) {
    if (mask == 0) {
      names.append(py::none());
    } else {
      names.append(self->names()[static_cast<size_t>(__builtin_ctz(mask))]);
    }
  }
  return names;
}

// Runs a load to its end or its deadline. Needs no GIL.
std::shared_ptr<tier::LoadTicket> RunLoad(tier::TierStore& store,
                                          const std::vector<tier::Want>& wants,
                                          milliseconds patience) {
  const auto deadline = steady_clock::now() + patience;
  std::shared_ptr<tier::LoadTicket> ticket = store.Load(wants, deadline, [] {});
  ticket->WaitUntil(deadline);
  ticket->Cancel();
  return ticket;
}

py::list Load(const StorePointer& self, const py::iterable& keys, const py::iterable& buffers,
              double timeout_s) {
  const milliseconds patience = Duration(timeout_s, "timeout_s");
  std::vector<tier::Want> wants;
  std::vector<std::unique_ptr<Bytes>> targets;
  for (const tier::Identity& identity : IdentitiesFrom(keys))
    wants.push_back({NameOf(identity), {}});
  for (const py::handle buffer : buffers) {
    targets.push_back(std::make_unique<Bytes>(buffer, "buffer", Bytes::Access::kWrite));
  }
  if (targets.size() != wants.size()) {
    Throw(StatusCode::kInvalidArgument, std::to_string(wants.size()) + " keys, but " +
                                            std::to_string(targets.size()) + " buffers");
  }
  for (size_t i = 0; i < wants.size(); ++i) {
    if (targets[i]->size() == 0) Throw(StatusCode::kInvalidArgument, "a buffer has no bytes");
    wants[i].target = {targets[i]->data(), targets[i]->size()};
  }
  py::list names;
  if (wants.empty()) return names;
  const std::shared_ptr<tier::TierStore> store = self->share();
  std::shared_ptr<tier::LoadTicket> ticket;
  {
    const Released released;
    ticket = RunLoad(*store, wants, patience);
  }
  for (size_t i = 0; i < wants.size(); ++i) {
    const tier::LoadResult result = ticket->result(i);
    if (result.loaded()) {
      names.append(self->names()[result.tier]);
    } else {
      names.append(py::none());
    }
  }
  return names;
}

py::object Get(const StorePointer& self, const py::object& key, double timeout_s) {
  const milliseconds patience = Duration(timeout_s, "timeout_s");
  const std::vector<tier::Want> wants = {{NameOf(IdentityFrom(key, "key")), {}}};
  const std::shared_ptr<tier::TierStore> store = self->share();
  tier::LoadResult result;
  {
    const Released released;
    const std::shared_ptr<tier::LoadTicket> ticket = RunLoad(*store, wants, patience);
    if (ticket->result(0).loaded()) result = ticket->TakeResult(0);
  }
  if (!result.loaded()) return py::none();
  return py::bytes(result.payload);
}

void Remove(const StorePointer& self, const py::iterable& keys) {
  std::vector<tier::BlockKey> addresses;
  for (const tier::Identity& identity : IdentitiesFrom(keys)) {
    addresses.push_back(tier::AddressOf(identity));
  }
  const std::shared_ptr<tier::TierStore> store = self->share();
  const Released released;
  store->Remove(addresses);
}

bool Drain(const StorePointer& self, double timeout_s) {
  const milliseconds patience = Duration(timeout_s, "timeout_s");
  const std::shared_ptr<tier::TierStore> store = self->share();
  const Released released;
  return store->Drain(steady_clock::now() + patience);
}

py::list Addresses(const StorePointer& self, const std::string& name) {
  const std::shared_ptr<tier::TierStore> store = self->share();
  for (uint32_t i = 0; i < store->num_tiers(); ++i) {
    if (self->names()[i] != name) continue;
    std::vector<tier::BlockKey> found;
    Status listed;
    {
      const Released released;
      listed = store->tier(i).List([&](const tier::TierEntry& entry) {
        found.push_back(entry.key);
        return true;
      });
    }
    Check(listed);
    py::list addresses;
    for (const tier::BlockKey& key : found) addresses.append(AddressBytes(key));
    return addresses;
  }
  Throw(StatusCode::kNotFound, "there is no tier '" + name + "'");
}

py::dict StatsOf(const tier::TierStats& stats) {
  py::dict errors;
  for (size_t op = 0; op < stats.errors.size(); ++op) {
    for (size_t reason = 0; reason < stats.errors[op].size(); ++reason) {
      if (stats.errors[op][reason] == 0) continue;
      const std::string name = std::string(tier::TierOpName(static_cast<tier::TierOp>(op))) + "_" +
                               tier::ErrorReasonName(static_cast<tier::ErrorReason>(reason));
      errors[name.c_str()] = stats.errors[op][reason];
    }
  }
  return py::dict(
      py::arg("hits") = stats.hits, py::arg("misses") = stats.misses,
      py::arg("stored") = stats.stored, py::arg("promoted") = stats.promoted,
      py::arg("bytes_read") = stats.bytes_read, py::arg("bytes_written") = stats.bytes_written,
      py::arg("queue_drops") = stats.queue_drops,
      py::arg("write_cpu_s") = stats.write_cpu_us * 1e-6, py::arg("errors") = errors,
      py::arg("breaker") = tier::BreakerStateName(stats.breaker),
      py::arg("breaker_openings") = stats.breaker_openings,
      py::arg("queued_blocks") = stats.queued_blocks, py::arg("queued_bytes") = stats.queued_bytes,
      py::arg("blocks") = stats.usage.blocks, py::arg("bytes") = stats.usage.bytes,
      py::arg("device_bytes") = stats.usage.device_bytes,
      py::arg("budget_bytes") = stats.usage.budget_bytes,
      py::arg("evictions") = stats.usage.evictions, py::arg("last_error") = stats.last_error);
}

py::dict AllStats(const StorePointer& self) {
  const std::shared_ptr<tier::TierStore> store = self->share();
  py::dict result;
  for (uint32_t i = 0; i < store->num_tiers(); ++i) {
    result[self->names()[i].c_str()] = StatsOf(store->Stats(i));
  }
  return result;
}

}  // namespace

milliseconds Duration(double seconds, const char* what) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e6) {
    Throw(StatusCode::kInvalidArgument,
          std::string(what) + " is " + std::to_string(seconds) + ", no number of seconds");
  }
  return milliseconds(static_cast<int64_t>(std::ceil(seconds * 1e3)));
}

tier::Identity IdentityFrom(const py::handle& key, const char* what) {
  const Bytes bytes(key, what, Bytes::Access::kRead);
  tier::Identity identity;
  bytes.RequireSize(identity.size());
  std::copy_n(bytes.data(), identity.size(), identity.begin());
  return identity;
}

tier::BlockName NameOf(const tier::Identity& identity) {
  tier::BlockName name;
  name.kind = tier::PayloadKind::kOpaque;
  name.key = tier::AddressOf(identity);
  name.identity = identity;
  return name;
}

void StoreHandle::Close(double drain_s) {
  const milliseconds patience = Duration(drain_s, "drain_s");
  if (is_copy()) Abandon();
  if (store_ == nullptr) return;
  std::shared_ptr<tier::TierStore> store = std::move(store_);
  store_.reset();
  const Released released;
  if (patience.count() > 0) store->Drain(steady_clock::now() + patience);
  store.reset();
}

void BindStore(py::module_& module) {
  constexpr double kTimeout = 5.0;
  py::class_<Pages>(module, "Pages")
      .def(py::init<const py::iterable&>(), py::arg("layers"))
      .def_property_readonly("num_blocks", &Pages::num_blocks)
      .def_property_readonly("block_bytes", &Pages::block_bytes);
  py::class_<StoreHandle, StorePointer>(module, "BlockStore")
      .def(py::init(&MakeStore), py::kw_only(), py::arg("model"), py::arg("ram_bytes") = 0,
           py::arg("cold_dir") = py::none(), py::arg("cold_bytes") = uint64_t{10} << 30,
           py::arg("remote") = py::none(), py::arg("remote_ca_file") = "",
           py::arg("remote_ttl_s") = 24.0 * 3600, py::arg("compression") = "none",
           py::arg("queue_bytes") = uint64_t{256} << 20, py::arg("load_timeout_s") = 0.5,
           py::arg("store_timeout_s") = 2.0, py::arg("write_share") = 1.0,
           py::arg("writer_nice") = 0)
      .def_property_readonly("tiers", [](const StorePointer& self) { return self->names(); })
      .def("put", &Put, py::arg("key"), py::arg("data"), py::kw_only(),
           py::arg("parent") = py::none(), py::arg("cost_us") = 0.0)
      .def("put_pages", &PutPages, py::arg("pages"), py::arg("block_ids"), py::arg("keys"),
           py::arg("parents"), py::kw_only(), py::arg("cost_us") = 0.0)
      .def("begin_step", [](const StorePointer& self) { self->pace().BeginStep(); })
      .def(
          "end_step",
          [](const StorePointer& self, double cpu_s) { self->pace().EndStep(cpu_s * 1e6); },
          py::arg("cpu_s"))
      .def("locate", &Locate, py::arg("keys"), py::arg("timeout_s") = 0.25)
      .def("load", &Load, py::arg("keys"), py::arg("buffers"), py::arg("timeout_s") = kTimeout)
      .def("get", &Get, py::arg("key"), py::arg("timeout_s") = kTimeout)
      .def("remove", &Remove, py::arg("keys"))
      .def("drain", &Drain, py::arg("timeout_s") = kTimeout)
      .def("addresses", &Addresses, py::arg("tier"))
      .def("stats", &AllStats)
      .def("close", &StoreHandle::Close, py::arg("drain_s") = kTimeout)
      .def_property_readonly("closed", [](const StorePointer& self) { return self->is_closed(); })
      .def("__enter__", [](const StorePointer& self) { return self; })
      .def("__exit__", [](StoreHandle& self, const py::args&) { self.Close(5.0); });
  module.def(
      "chain_digests",
      [](const py::object& tokens, size_t block_size, const py::bytes& extras) {
        const std::vector<TokenId> ids = TokensFrom(tokens, "tokens");
        if (block_size == 0) Throw(StatusCode::kInvalidArgument, "block_size is 0");
        tier::Identity digest = tier::RootDigest(std::string(extras));
        py::list digests;
        for (size_t at = 0; at + block_size <= ids.size(); at += block_size) {
          digest = tier::NextDigest(digest, std::span(ids).subspan(at, block_size));
          digests.append(py::bytes(reinterpret_cast<const char*>(digest.data()), digest.size()));
        }
        return digests;
      },
      py::arg("tokens"), py::arg("block_size"), py::arg("extras"));
}

}  // namespace kvlink::python
