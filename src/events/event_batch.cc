#include "events/event_batch.h"

#include <string_view>

#include "events/msgpack.h"

namespace kvlink::events {
namespace {

std::string HexOf(uint64_t value) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex(16, '0');
  for (size_t i = 0; i < hex.size(); ++i) hex[i] = kDigits[value >> (60 - 4 * i) & 15];
  return hex;
}

// `next` goes on where `last` ends.
bool Continues(const Event& last, const Event& next) {
  if (last.kind != next.kind || next.kind == Event::Kind::kCleared) return false;
  if (last.medium != next.medium) return false;
  if (next.kind == Event::Kind::kRemoved) return true;
  return next.parent == last.hash && next.name_space == last.name_space &&
         next.tokens.size() == last.tokens.size();
}

void WriteHashes(std::span<const Event> run, MsgpackWriter& out) {
  out.Text("block_hashes");
  out.Array(run.size());
  for (const Event& event : run) out.Unsigned(event.hash.lo);
}

size_t NumMediumFields(Event::Medium medium) { return medium == Event::Medium::kRam ? 1 : 2; }

void WriteMedium(Event::Medium medium, MsgpackWriter& out) {
  out.Text("medium");
  out.Text(medium == Event::Medium::kRam ? "CPU" : "STORAGE");
  if (medium == Event::Medium::kRam) return;
  out.Text("locality");
  out.Text(medium == Event::Medium::kDisk ? "LOCAL" : "REMOTE");
}

void WriteStored(std::span<const Event> run, MsgpackWriter& out) {
  const Event& first = run.front();
  out.Map(7 + NumMediumFields(first.medium) + (first.name_space ? 1 : 0));
  out.Text("type");
  out.Text("BlockStored");
  WriteHashes(run, out);
  out.Text("parent_block_hash");
  if (first.parent) {
    out.Unsigned(first.parent->lo);
  } else {
    out.Nil();
  }
  out.Text("token_ids");
  out.Array(run.size() * first.tokens.size());
  for (const Event& event : run) {
    for (const TokenId token : event.tokens) out.Unsigned(static_cast<uint32_t>(token));
  }
  out.Text("block_size");
  out.Unsigned(first.tokens.size());
  out.Text("lora_id");
  out.Nil();
  WriteMedium(first.medium, out);
  out.Text("lora_name");
  out.Nil();
  if (!first.name_space) return;
  out.Text("extra_keys");
  out.Array(run.size());
  for (size_t i = 0; i < run.size(); ++i) {
    out.Array(1);
    out.Text(HexOf(first.name_space->lo));
  }
}

void WriteRun(std::span<const Event> run, MsgpackWriter& out) {
  switch (run.front().kind) {
    case Event::Kind::kStored:
      WriteStored(run, out);
      return;
    case Event::Kind::kRemoved:
      out.Map(2 + NumMediumFields(run.front().medium));
      out.Text("type");
      out.Text("BlockRemoved");
      WriteHashes(run, out);
      WriteMedium(run.front().medium, out);
      return;
    case Event::Kind::kCleared:
      out.Map(1);
      out.Text("type");
      out.Text("AllBlocksCleared");
      return;
  }
}

}  // namespace

std::string EncodeBatch(double unix_s, std::span<const Event> events) {
  std::vector<std::span<const Event>> runs;
  for (size_t begin = 0; begin < events.size();) {
    size_t end = begin + 1;
    while (end < events.size() && Continues(events[end - 1], events[end])) ++end;
    runs.push_back(events.subspan(begin, end - begin));
    begin = end;
  }
  MsgpackWriter out;
  out.Array(3);
  out.Double(unix_s);
  out.Array(runs.size());
  for (const auto& run : runs) WriteRun(run, out);
  out.Unsigned(0);
  return std::move(out).bytes();
}

}  // namespace kvlink::events
