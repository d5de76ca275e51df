// LoadCost: what loading takes, learnt from what loading took: time = latency + bytes / rate, by
// least squares over the past calls, older ones weighing less (each call takes kKeep of the weight
// of those before it).
//
// Before the first call it assumes `latency_us` and `bytes_per_s`; the first call replaces that.
// Not thread-safe. Cost: a few multiplications.
#pragma once

#include <algorithm>

namespace kvlink::tier {

class LoadCost {
 public:
  static constexpr double kKeep = 0.95;
  static constexpr double kMinLatencyUs = 1, kMinUsPerByte = 1e-5;  // 100 GB/s

  LoadCost(double latency_us, double bytes_per_s)
      : latency_us_(latency_us), us_per_byte_(1e6 / bytes_per_s) {}

  void Record(double bytes, double us) {
    weight_ = weight_ * kKeep + 1;
    x_ = x_ * kKeep + bytes;
    y_ = y_ * kKeep + us;
    xx_ = xx_ * kKeep + bytes * bytes;
    xy_ = xy_ * kKeep + bytes * us;
    // Calls of one size say nothing about the slope: then all of the time is the bytes'.
    const double spread = weight_ * xx_ - x_ * x_;
    const double slope =
        spread > 1e-3 * weight_ * xx_ ? (weight_ * xy_ - x_ * y_) / spread : xy_ / xx_;
    us_per_byte_ =
        std::clamp(slope, kMinUsPerByte, std::max(y_ / std::max(x_, 1.0), kMinUsPerByte));
    latency_us_ = std::max((y_ - us_per_byte_ * x_) / weight_, kMinLatencyUs);
  }

  double latency_us() const { return latency_us_; }
  double bytes_per_s() const { return 1e6 / us_per_byte_; }
  double EstimateUs(double bytes, double calls = 1) const {
    return calls * latency_us_ + bytes * us_per_byte_;
  }

 private:
  double weight_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
  double latency_us_, us_per_byte_;
};

}  // namespace kvlink::tier
