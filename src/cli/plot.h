// Plot: charts as PNG files, for reports: points and lines over two axes, or bars in groups.
//
// Colours can be told apart by the colour-blind (Okabe and Ito), and every series has a marker of
// its own. Axes choose round ticks; a logarithmic axis leaves out what is not above 0. Drawn with
// Cairo, which only plot.cc sees (docs/adr). Pure functions but for the file they write.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kvlink/status.h"

namespace kvlink::cli {

struct PlotSeries {
  std::string name;
  std::vector<std::pair<double, double>> points;  // x, y
  bool joined = false;                            // by lines, in order
  int color = -1;  // which of the palette, and which marker; -1: the next one
};

struct LinePlot {
  std::string title, x_label, y_label;
  bool log_x = false, log_y = false;
  std::vector<PlotSeries> series;
  std::vector<std::pair<std::string, double>> levels;  // dashed horizontal lines
};

struct BarPlot {
  std::string title, y_label;
  std::vector<std::string> groups;  // along x
  // Of each name one bar in every group; negative values are drawn as 0.
  std::vector<std::pair<std::string, std::vector<double>>> bars;
  bool show_values = true;
};

// kInvalidArgument: the file cannot be written (path and reason).
Status WritePlot(const LinePlot& plot, const std::string& path);
Status WritePlot(const BarPlot& plot, const std::string& path);

// Round numbers that divide [low, high] into about `count` parts; of a logarithmic axis powers of
// ten, and 2 and 5 times these where few decades are shown. Within [low, high].
std::vector<double> TicksOf(double low, double high, bool logarithmic, int count = 6);

}  // namespace kvlink::cli
