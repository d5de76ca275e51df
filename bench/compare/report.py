"""Figures of all rounds -> medians, ratios, spreads as Markdown."""
import math

import cases
from kvlink_bench import markdown, median

TITLES = {
    "ops": "Raw operations, tokens/s",
    "http": "Whole workloads over HTTP",
    "process": "Whole workloads in process",
    "off": "Sharing off: the same work as a server that caches nothing",
    "concurrency": "Latency against concurrency (one text of 1,000 tokens, short questions)",
    "shared": "Throughput against the length of what is shared",
}


def values(rounds, figure):
    """Round -> value, where the round has it."""
    return {number: figures[figure] for number, figures in rounds.items() if figures.get(figure) is not None}


def middle(rounds, figure):
    found = values(rounds, figure)
    return median(found.values()) if found else None


def spread(rounds, figure):
    found = list(values(rounds, figure).values())
    return (max(found) - min(found)) / median(found) if found and median(found) else 0.0


def ratio(above, below, figure):
    """Median over the rounds that both have; of the medians where they share no round."""
    top, bottom = values(above, figure), values(below, figure)
    both = [top[number] / bottom[number] for number in top if bottom.get(number)]
    if both:
        return median(both)
    return median(top.values()) / median(bottom.values()) if top and bottom and median(bottom.values()) else None


def number(value, digits=2, unit=""):
    return "-" if value is None else f"{value:.{digits}f}{unit}"


class Report:
    """`results`: part -> case -> peer -> {"rounds": {round: figures}, "failure": text}; `operation_aims`: peer -> case -> least ratio."""

    def __init__(self, results, operation_aims):
        self.results, self.operation_aims = results, operation_aims
        self.missed = []

    def rounds(self, part, case, peer):
        return self.results.get(part, {}).get(case, {}).get(peer, {}).get("rounds", {})

    def text(self):
        parts = [self._ops(), self._summary(), self._off()]
        parts += [self._detail(part) for part in ("http", "process", "off", "concurrency", "shared")]
        parts.append(self._failures())
        return "\n\n".join(part for part in parts if part)

    def _aim(self, what, value, aim):
        if aim is None:
            return "-"
        if value is not None and value < aim:
            self.missed.append(f"{what}: {value:.2f}x, aim {aim:g}x")
        return f"{aim:g}x"

    def _ops(self):
        part = self.results.get("ops")
        if not part:
            return ""
        rows = []
        for case, by_peer in part.items():
            own = by_peer.get("kvlink", {}).get("rounds", {})
            row = [case, self._rate(own)]
            for peer in ("llama.cpp", "openvino"):
                other = by_peer.get(peer, {}).get("rounds", {})
                times = ratio(own, other, "tok_per_s")
                aim = self.operation_aims.get(peer, {}).get(case)
                row += [self._rate(other), number(times, 2, "x"),
                        self._aim(f"{case} against {peer}", times, aim)]
            rows.append(row)
        header = ["operation", "kvlink (spread)", "llama.cpp", "ratio", "aim", "OpenVINO", "ratio", "aim"]
        return f"## {TITLES['ops']}\n\n" + markdown(header, rows)

    @staticmethod
    def _rate(rounds):
        return f"{middle(rounds, 'tok_per_s'):.1f} ({spread(rounds, 'tok_per_s'):.0%})" if rounds else "-"

    def compared(self, case):
        """Peer -> (its rounds, kvlink's rounds under the same conditions)."""
        found = {}
        for part, peers in (("http", ("llama-server", "vllm")), ("process", ("openvino",))):
            for peer in peers:
                theirs, own = self.rounds(part, case, peer), self.rounds(part, case, "kvlink")
                if theirs and own:
                    found[peer] = (theirs, own)
        return found

    def _summary(self):
        names = list(dict.fromkeys([*self.results.get("http", {}), *self.results.get("process", {})]))
        if not names:
            return ""
        rows, llama = [], []
        for case in names:
            compared = self.compared(case)
            times = {peer: ratio(theirs, own, "wall_s") for peer, (theirs, own) in compared.items()}
            if "llama-server" in times:
                llama.append(times["llama-server"])
            best = min(times, key=times.get) if times else None
            tails = {peer: ratio(theirs, own, "ttft_p95") for peer, (theirs, own) in compared.items()}
            tails = {peer: tail for peer, tail in tails.items() if tail is not None}
            tail = min(tails.values()) if tails else None
            if tail is not None and tail < 1:
                self.missed.append(f"{case}: p95 TTFT is {1 / tail:.2f} times that of {min(tails, key=tails.get)}")
            own = self.rounds("http", case, "kvlink") or self.rounds("process", case, "kvlink")
            rows.append([case, number(middle(own, "wall_s"), 2, " s"),
                         *[number(times.get(peer), 2, "x") for peer in ("llama-server", "vllm", "openvino")],
                         f"{number(times.get(best), 2, 'x')} ({best or '-'})",
                         self._aim(case, times.get(best), cases.WORKLOAD_AIMS.get(case)), number(tail, 2, "x")])
        text = ("## Whole workloads: time of each peer over kvlink's\n\nServers over HTTP against `kvlink serve`, OpenVINO in "
                "process against `kvlink bench`; medians of the rounds' ratios.\n\n")
        text += markdown(["workload", "kvlink", "llama-server", "vLLM", "OpenVINO", "best peer", "aim", "p95 TTFT, best peer"],
                         rows)
        if llama:
            mean = math.exp(sum(math.log(value) for value in llama) / len(llama))
            aim = self._aim("geometric mean against llama-server", mean, cases.GEOMEAN_AIM_LLAMA)
            text += f"\n\nAgainst llama-server, geometric mean of {len(llama)}: {mean:.2f}x (aim {aim})."
        return text

    def _off(self):
        part = self.results.get("off")
        if not part:
            return ""
        rows = []
        for case, by_peer in part.items():
            own, theirs = (by_peer.get(peer, {}).get("rounds", {}) for peer in ("kvlink-off", "llama-server-nocache"))
            times = ratio(theirs, own, "wall_s")
            rows.append([case, number(middle(own, "wall_s"), 2, " s"), number(middle(theirs, "wall_s"), 2, " s"),
                         number(times, 2, "x"), self._aim(f"{case}, sharing off", times, cases.OFF_AIM)])
        return f"## {TITLES['off']}\n\n" + markdown(
            ["workload", "kvlink --sharing off", "llama-server --no-cache-prompt", "ratio", "aim"], rows)

    def _detail(self, part):
        rows = []
        for case, by_peer in self.results.get(part, {}).items():
            for peer, result in by_peer.items():
                rounds = result.get("rounds", {})
                if rounds:
                    rows.append([case, peer, len(rounds), *self._figures(rounds)])
        if not rows:
            return ""
        header = ["case", "peer", "rounds", "wall (spread)", "requests/s", "generated tok/s", "TTFT p50 / p95", "latency mean",
                  "cached / prompt tokens", "CPU", "peak memory", "client's CPU"]
        return f"## {TITLES[part]}: all figures (medians)\n\n" + markdown(header, rows)

    @staticmethod
    def _figures(rounds):
        def get(figure):
            return middle(rounds, figure)

        memory = get("server_peak_bytes") or get("rss_bytes")
        cpu = get("server_cpu_s") if get("server_cpu_s") is not None else get("cpu_s")
        client = get("client_cpu_share")
        cached = get("cached_tokens")
        return [f"{number(get('wall_s'), 2, ' s')} ({spread(rounds, 'wall_s'):.0%})", number(get("req_per_s")),
                number(get("gen_tok_per_s"), 1), f"{number(get('ttft_p50'))} / {number(get('ttft_p95'))} s",
                number(get("latency_mean"), 2, " s"),
                f"{'-' if cached is None else f'{cached:.0f}'} / {number(get('prompt_tokens'), 0)}", number(cpu, 1, " s"),
                "-" if memory is None else f"{memory / 2**30:.2f} GiB", "-" if client is None else f"{client:.2%}"]

    def _failures(self):
        rows = [[part, case, peer, result["failure"]] for part, by_case in self.results.items()
                for case, by_peer in by_case.items() for peer, result in by_peer.items() if result.get("failure")]
        return "## Not measured\n\n" + markdown(["part", "case", "peer", "why"], rows) if rows else ""
