// The charts of a calibration report: how far answers are against the rows that ran, what was
// refused, and the time to the first token; written beside the report as PNG files.
#pragma once

#include <string>
#include <vector>

#include "cli/calibrate_report.h"
#include "cli/plot.h"

namespace kvlink::cli {

LinePlot PlotOfDivergence(const CalibrationFigures& figures);
BarPlot PlotOfRefusals(const CalibrationFigures& figures);
BarPlot PlotOfFirstToken(const CalibrationFigures& figures);

// Writes "<report without .md>-kl.png", "-refused.png" and "-ttft.png", and "-memory.png" of
// experiments; of experiments alone (no setting was tried) the last one only. Answers what the
// report shows. kInvalidArgument: a file cannot be written.
Result<std::vector<ReportImage>> WriteCalibrationPlots(const std::string& report,
                                                       const CalibrationFigures& figures);

}  // namespace kvlink::cli
