#include "cli/plot.h"

#include <cairo.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numbers>

namespace kvlink::cli {
namespace {

constexpr double kScale = 2;  // pixels a unit
constexpr double kWidth = 860, kHeight = 480;
constexpr double kLeft = 78, kRight = 200, kTop = 44, kBottom = 62;
constexpr double kText = 12, kTitle = 15;
constexpr int kColors = 7;
constexpr double kPalette[kColors][3] = {{0.00, 0.45, 0.70}, {0.90, 0.62, 0.00}, {0.00, 0.62, 0.45},
                                         {0.80, 0.40, 0.00}, {0.80, 0.47, 0.65}, {0.34, 0.71, 0.91},
                                         {0.25, 0.25, 0.25}};

std::string TickText(double value, bool logarithmic) {
  char text[32];
  const double size = std::abs(value);
  const bool is_far = size != 0 && (size < 1e-2 || size >= 1e5);
  std::snprintf(text, sizeof text, logarithmic && is_far ? "%.0e" : "%g", value);
  return text;
}

// One axis: values to units along the canvas.
struct Axis {
  double low = 0, high = 1, from = 0, to = 1;
  bool logarithmic = false;
  double At(double value) const {
    const auto map = [&](double v) { return logarithmic ? std::log10(v) : v; };
    return from + (to - from) * (map(value) - map(low)) / (map(high) - map(low));
  }
};

// Wide enough for all values, and a little more; never empty.
Axis AxisOf(std::vector<double> values, bool logarithmic, bool from_zero) {
  std::erase_if(values, [&](double v) { return !std::isfinite(v) || (logarithmic && v <= 0); });
  Axis axis;
  axis.logarithmic = logarithmic;
  if (values.empty()) values = {logarithmic ? 0.1 : 0.0, 1.0};
  const auto [low, high] = std::ranges::minmax(values);
  if (logarithmic) {
    axis.low = low / 1.3;
    axis.high = high * 1.3;
    return axis;
  }
  const double room = high > low ? 0.06 * (high - low) : std::max(std::abs(high), 1.0) * 0.1;
  axis.low = from_zero && low >= 0 ? 0 : low - room;
  axis.high = high + room;
  return axis;
}

class Canvas {
 public:
  Canvas()
      : surface_(cairo_image_surface_create(CAIRO_FORMAT_RGB24, static_cast<int>(kWidth * kScale),
                                            static_cast<int>(kHeight * kScale)),
                 cairo_surface_destroy),
        cairo_(cairo_create(surface_.get()), cairo_destroy) {
    cairo_scale(cr(), kScale, kScale);
    cairo_set_source_rgb(cr(), 1, 1, 1);
    cairo_paint(cr());
    cairo_set_line_width(cr(), 1);
  }

  void Ink(double grey) { cairo_set_source_rgb(cr(), grey, grey, grey); }
  void Color(int color) {
    const double* rgb = kPalette[color % kColors];
    cairo_set_source_rgb(cr(), rgb[0], rgb[1], rgb[2]);
  }

  // `anchor` of the text's width lies at x: 0 its left end, 1 its right end.
  void Text(double x, double y, const std::string& text, double anchor = 0, double size = kText,
            bool bold = false) {
    cairo_select_font_face(cr(), "DejaVu Sans", CAIRO_FONT_SLANT_NORMAL,
                           bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
    cairo_set_font_size(cr(), size);
    cairo_text_extents_t extents;
    cairo_text_extents(cr(), text.c_str(), &extents);
    cairo_move_to(cr(), x - anchor * extents.x_advance, y);
    cairo_show_text(cr(), text.c_str());
  }
  // Upwards, centred.
  void TextUp(double x, double y, const std::string& text) {
    cairo_save(cr());
    cairo_translate(cr(), x, y);
    cairo_rotate(cr(), -std::numbers::pi / 2);
    Text(0, 0, text, 0.5);
    cairo_restore(cr());
  }

  void Line(double x0, double y0, double x1, double y1, double width = 1, bool dashed = false) {
    const double dash[] = {6, 4};
    cairo_set_dash(cr(), dash, dashed ? 2 : 0, 0);
    cairo_set_line_width(cr(), width);
    cairo_move_to(cr(), x0, y0);
    cairo_line_to(cr(), x1, y1);
    cairo_stroke(cr());
    cairo_set_dash(cr(), dash, 0, 0);
  }
  void Box(double x, double y, double width, double height) {
    cairo_rectangle(cr(), x, y, width, height);
    cairo_fill(cr());
  }
  // A circle, square, triangle or diamond.
  void Marker(double x, double y, int shape, double r = 4) {
    cairo_new_path(cr());
    switch (shape % 4) {
      case 0:
        cairo_arc(cr(), x, y, r, 0, 2 * std::numbers::pi);
        break;
      case 1:
        cairo_rectangle(cr(), x - 0.9 * r, y - 0.9 * r, 1.8 * r, 1.8 * r);
        break;
      case 2:
        cairo_move_to(cr(), x, y - 1.15 * r);
        cairo_line_to(cr(), x + 1.1 * r, y + 0.9 * r);
        cairo_line_to(cr(), x - 1.1 * r, y + 0.9 * r);
        break;
      default:
        cairo_move_to(cr(), x, y - 1.3 * r);
        cairo_line_to(cr(), x + 1.3 * r, y);
        cairo_line_to(cr(), x, y + 1.3 * r);
        cairo_line_to(cr(), x - 1.3 * r, y);
    }
    cairo_close_path(cr());
    cairo_fill(cr());
  }

  Status Write(const std::string& path) {
    const cairo_status_t status = cairo_surface_write_to_png(surface_.get(), path.c_str());
    if (status == CAIRO_STATUS_SUCCESS) return Status::Ok();
    return {StatusCode::kInvalidArgument,
            "cannot write '" + path + "': " + cairo_status_to_string(status)};
  }

 private:
  cairo_t* cr() { return cairo_.get(); }
  std::unique_ptr<cairo_surface_t, decltype(&cairo_surface_destroy)> surface_;
  std::unique_ptr<cairo_t, decltype(&cairo_destroy)> cairo_;
};

void DrawFrame(Canvas& canvas, const std::string& title, const std::string& y_label,
               const Axis& y) {
  canvas.Ink(0.1);
  canvas.Text(kLeft, 24, title, 0, kTitle, /*bold=*/true);
  canvas.TextUp(18, (kTop + kHeight - kBottom) / 2, y_label);
  for (const double tick : TicksOf(y.low, y.high, y.logarithmic)) {
    canvas.Ink(0.88);
    canvas.Line(kLeft, y.At(tick), kWidth - kRight, y.At(tick));
    canvas.Ink(0.1);
    canvas.Text(kLeft - 8, y.At(tick) + 4, TickText(tick, y.logarithmic), 1);
  }
  canvas.Ink(0.1);
  canvas.Line(kLeft, kHeight - kBottom, kWidth - kRight, kHeight - kBottom);
  canvas.Line(kLeft, kTop, kLeft, kHeight - kBottom);
}

void DrawX(Canvas& canvas, const std::string& label, const Axis& x) {
  for (const double tick : TicksOf(x.low, x.high, x.logarithmic)) {
    canvas.Ink(0.1);
    canvas.Line(x.At(tick), kHeight - kBottom, x.At(tick), kHeight - kBottom + 5);
    canvas.Text(x.At(tick), kHeight - kBottom + 20, TickText(tick, x.logarithmic), 0.5);
  }
  canvas.Text((kLeft + kWidth - kRight) / 2, kHeight - 18, label, 0.5);
}

// Rows of the legend, to the right of the chart.
class Legend {
 public:
  explicit Legend(Canvas& canvas) : canvas_(canvas) {}
  void Add(const std::string& name, int color, bool dashed = false) {
    const double x = kWidth - kRight + 16;
    if (dashed) {
      canvas_.Ink(0.35);
      canvas_.Line(x - 6, y_ - 4, x + 8, y_ - 4, 1.5, true);
    } else {
      canvas_.Color(color);
      canvas_.Marker(x, y_ - 4, color);
    }
    canvas_.Ink(0.1);
    canvas_.Text(x + 14, y_, name);
    y_ += 20;
  }

 private:
  Canvas& canvas_;
  double y_ = kTop + 14;
};

}  // namespace

std::vector<double> TicksOf(double low, double high, bool logarithmic, int count) {
  std::vector<double> ticks;
  if (!(high > low) || (logarithmic && low <= 0)) return ticks;
  if (logarithmic) {
    const int first = static_cast<int>(std::floor(std::log10(low)));
    const int last = static_cast<int>(std::ceil(std::log10(high)));
    for (int power = first; power <= last; ++power) {
      for (const int factor : {1, 2, 5}) {
        const double tick = factor * std::pow(10.0, power);
        const bool is_shown = factor == 1 || std::log10(high / low) < 2.5;
        if (is_shown && tick >= low && tick <= high) ticks.push_back(tick);
      }
    }
    return ticks;
  }
  const double raw = (high - low) / count;
  const double unit = std::pow(10.0, std::floor(std::log10(raw)));
  double step = 10 * unit;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * unit >= raw) step = factor * unit;
  }
  for (double i = std::ceil(low / step); i * step <= high * (1 + 1e-12); ++i) {
    ticks.push_back(i == 0 ? 0 : i * step);
  }
  return ticks;
}

Status WritePlot(const LinePlot& plot, const std::string& path) {
  std::vector<double> xs, ys;
  for (const PlotSeries& series : plot.series) {
    for (const auto& [x, y] : series.points) {
      xs.push_back(x);
      ys.push_back(y);
    }
  }
  for (const auto& [name, level] : plot.levels) ys.push_back(level);
  Axis x = AxisOf(xs, plot.log_x, /*from_zero=*/true), y = AxisOf(ys, plot.log_y, true);
  x.from = kLeft;
  x.to = kWidth - kRight;
  y.from = kHeight - kBottom;
  y.to = kTop;
  Canvas canvas;
  DrawFrame(canvas, plot.title, plot.y_label, y);
  DrawX(canvas, plot.x_label, x);
  Legend legend(canvas);
  for (size_t i = 0; i < plot.series.size(); ++i) {
    const PlotSeries& series = plot.series[i];
    const int color = series.color >= 0 ? series.color : static_cast<int>(i);
    std::vector<std::pair<double, double>> places;
    for (const auto& [px, py] : series.points) {
      const bool is_there = std::isfinite(px) && std::isfinite(py) && !(plot.log_x && px <= 0) &&
                            !(plot.log_y && py <= 0);
      if (is_there) places.emplace_back(x.At(px), y.At(py));
    }
    canvas.Color(color);
    for (size_t k = 1; series.joined && k < places.size(); ++k) {
      canvas.Line(places[k - 1].first, places[k - 1].second, places[k].first, places[k].second, 2);
    }
    for (const auto& [px, py] : places) canvas.Marker(px, py, color, series.joined ? 5 : 2.6);
    legend.Add(series.name, color);
  }
  for (const auto& [name, level] : plot.levels) {
    if (plot.log_y && level <= 0) continue;
    canvas.Ink(0.35);
    canvas.Line(kLeft, y.At(level), kWidth - kRight, y.At(level), 1.5, /*dashed=*/true);
    legend.Add(name, 0, /*dashed=*/true);
  }
  return canvas.Write(path);
}

Status WritePlot(const BarPlot& plot, const std::string& path) {
  std::vector<double> values = {0};
  for (const auto& [name, heights] : plot.bars) {
    values.insert(values.end(), heights.begin(), heights.end());
  }
  Axis y = AxisOf(values, false, true);
  y.from = kHeight - kBottom;
  y.to = kTop;
  Canvas canvas;
  DrawFrame(canvas, plot.title, plot.y_label, y);
  Legend legend(canvas);
  const double group = (kWidth - kRight - kLeft) / std::max<double>(1, plot.groups.size());
  const double bar = 0.76 * group / std::max<double>(1, plot.bars.size());
  for (size_t b = 0; b < plot.bars.size(); ++b) {
    const auto& [name, heights] = plot.bars[b];
    legend.Add(name, static_cast<int>(b));
    for (size_t g = 0; g < plot.groups.size() && g < heights.size(); ++g) {
      const double left = kLeft + group * (g + 0.12) + bar * b;
      const double top = y.At(std::isfinite(heights[g]) ? std::max(heights[g], 0.0) : 0);
      canvas.Color(static_cast<int>(b));
      canvas.Box(left, top, 0.92 * bar, y.from - top);
      if (!plot.show_values) continue;
      char text[32];
      std::snprintf(text, sizeof text, "%.3g", heights[g]);
      canvas.Ink(0.1);
      canvas.Text(left + 0.46 * bar, top - 4, text, 0.5, std::min(kText - 2, 0.34 * bar + 4));
    }
  }
  canvas.Ink(0.1);
  for (size_t g = 0; g < plot.groups.size(); ++g) {
    canvas.Text(kLeft + group * (g + 0.5), kHeight - kBottom + 20, plot.groups[g], 0.5);
  }
  return canvas.Write(path);
}

}  // namespace kvlink::cli
