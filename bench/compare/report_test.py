"""Ratios, spreads and aims of the comparison's report, on figures made by hand."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import cases  # noqa: E402
from report import Report, ratio, spread  # noqa: E402


def rounds(*walls, **more):
    return {str(number): {"wall_s": wall, **more} for number, wall in enumerate(walls) if wall is not None}


def results(kvlink, **others):
    peers = {"kvlink": {"rounds": kvlink}, **{name: {"rounds": theirs} for name, theirs in others.items()}}
    return {"http": {"cold": peers}}


def test_a_ratio_is_the_median_of_the_rounds_ratios_not_the_ratio_of_medians():
    # A busy neighbour in round 1 slows both, so that its ratio is like the others'.
    assert ratio(rounds(2, 40, 2), rounds(1, 20, 1), "wall_s") == 2
    assert ratio(rounds(4, 40, 9), rounds(1, 20, 3), "wall_s") == 3


def test_rounds_that_only_one_side_has_do_not_count_unless_none_is_shared():
    assert ratio(rounds(2, None, None), rounds(1, 100, 100), "wall_s") == 2
    assert ratio(rounds(None, 6), rounds(2, None), "wall_s") == 3
    assert ratio({}, rounds(1), "wall_s") is None


def test_the_spread_is_relative_to_the_median():
    assert spread(rounds(9, 10, 12), "wall_s") == 0.3
    assert spread({}, "wall_s") == 0


def test_the_best_peer_is_the_fastest_and_a_missed_aim_is_named():
    aim = cases.WORKLOAD_AIMS["cold"]
    report = Report(results(rounds(10), **{"llama-server": rounds(100), "vllm": rounds(11)}), {})
    text = report.text()
    assert "1.10x (vllm)" in text
    assert any(line.startswith("cold: 1.10x") and f"{aim:g}x" in line for line in report.missed)
    assert not any("llama-server" in line and "geometric" in line for line in report.missed)  # exactly 10x


def test_a_worse_p95_of_the_first_token_is_named():
    report = Report(results(rounds(1, ttft_p95=2.0), vllm=rounds(9, ttft_p95=1.0)), {})
    report.text()
    assert report.missed == ["cold: p95 TTFT is 2.00 times that of vllm"]


def test_openvino_is_compared_with_kvlink_in_process():
    data = results(rounds(10))
    data["process"] = {"cold": {"kvlink": {"rounds": rounds(5)}, "openvino": {"rounds": rounds(20)}}}
    assert "4.00x (openvino)" in Report(data, {}).text()


def test_a_failure_is_shown_with_its_reason_and_everything_else_stays():
    data = results(rounds(10), vllm={})
    data["http"]["cold"]["vllm"]["failure"] = "round 1: no room"
    text = Report(data, {}).text()
    assert "| http | cold | vllm | round 1: no room |" in text
    assert "| cold | kvlink | 1 |" in text
