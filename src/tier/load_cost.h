// LoadCost: what loading takes, learnt from what loading took: time = latency + bytes / rate, by
// least squares over the past calls, older ones weighing less (each call takes kKeep of the weight
// of those before it).
//
// A call of no bytes that takes `latency_us` is assumed beside them, with the weight of one call,
// so that calls of about one size and some noise do not give a latency out of thin air. Before the
// first call it assumes `bytes_per_s` as well. Not thread-safe. Cost: a few multiplications.
#pragma once

#include <algorithm>

namespace kvlink::tier {

class LoadCost {
 public:
  static constexpr double kKeep = 0.95;
  static constexpr double kMinLatencyUs = 1, kMinUsPerByte = 1e-5;  // 100 GB/s

  LoadCost(double latency_us, double bytes_per_s)
      : assumed_latency_us_(latency_us), latency_us_(latency_us), us_per_byte_(1e6 / bytes_per_s) {}

  void Record(double bytes, double us) {
    weight_ = weight_ * kKeep + 1;
    x_ = x_ * kKeep + bytes;
    y_ = y_ * kKeep + us;
    xx_ = xx_ * kKeep + bytes * bytes;
    xy_ = xy_ * kKeep + bytes * us;
    const double weight = weight_ + 1, y = y_ + assumed_latency_us_;
    const double spread = weight * xx_ - x_ * x_;
    if (spread > 0) {
      const double most = std::max(y / std::max(x_, 1.0), kMinUsPerByte);
      us_per_byte_ = std::clamp((weight * xy_ - x_ * y) / spread, kMinUsPerByte, most);
    }
    latency_us_ = std::max((y - us_per_byte_ * x_) / weight, kMinLatencyUs);
  }

  double latency_us() const { return latency_us_; }
  double bytes_per_s() const { return 1e6 / us_per_byte_; }
  double EstimateUs(double bytes, double calls = 1) const {
    return calls * latency_us_ + bytes * us_per_byte_;
  }

 private:
  double weight_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
  const double assumed_latency_us_;
  double latency_us_, us_per_byte_;
};

}  // namespace kvlink::tier
