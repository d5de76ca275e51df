"""What is measured: the cases of each part of the comparison, and what the issue that asked for them aims at."""
import json
import random
from dataclasses import dataclass
from pathlib import Path

# First lines of each workload, so that three rounds of everything fit an hour; other files: 10.
LIMITS = {"customer_service": 10, "document_questions": 10, "code_branches": 8, "head_mutation": 12, "agent_branches": 10,
          "cold": 20}
OFF_LIMITS = {"customer_service": 3, "document_questions": 3, "code_branches": 3, "head_mutation": 4, "agent_branches": 2,
              "cold": 10}
OPERATIONS = ["prefill:512", "prefill:2048", "decode:16", "decode:2048", "shared:10x2048", "distinct:10x2048"]

# Least ratio to the best of the peers, over whole workloads.
WORKLOAD_AIMS = {"customer_service": 3.0, "document_questions": 3.5, "code_branches": 3.0, "agent_branches": 3.0, "cold": 1.3,
                 "head_mutation": 1.2}
GEOMEAN_AIM_LLAMA = 10.0
OFF_AIM = 0.95
# Least ratio of raw operations to each peer, by the type of the weights, on a machine with AVX-512 VNNI.
OPERATION_AIMS = {
    "Q4_1": {"llama.cpp": {"prefill:512": 9.0, "prefill:2048": 8.0, "decode:16": 2.7, "decode:2048": 3.0,
                           "shared:10x2048": 7.0, "distinct:10x2048": 3.5},
             "openvino": {"prefill:512": 1.4, "prefill:2048": 1.4, "decode:16": 3.5, "distinct:10x2048": 2.0}},
    "Q4_0": {"llama.cpp": {"prefill:512": 2.2, "prefill:2048": 2.2, "decode:16": 1.6}},
    "Q8_0": {"llama.cpp": {"prefill:512": 3.5, "prefill:2048": 3.5, "decode:16": 1.5}},
}
# Without AVX-512 on either side: nothing is slower, and Q4_1's prefill is what the issue names.
OPERATION_AIMS_AVX2 = {
    weights: {"llama.cpp": {case: 2.5 if weights == "Q4_1" and case.startswith("prefill") else 1.0 for case in OPERATIONS}}
    for weights in ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")
}

CONCURRENCIES = [1, 2, 5, 10, 20]
SHARED_LENGTHS = [256, 1024, 2048, 4096]
SWEEP_ANSWER = 32  # tokens
WORDS = ("the river town keeps a quiet market where people trade bread fish wool paper tools and stories each morning before "
         "work begins near old stone bridge under tall green trees while children walk to school along narrow street past "
         "small garden gate open door bright window and slow boat on water they talk about weather harvest price of salt "
         "new road far city letter from friend visit next week long winter short summer good music").split()


@dataclass(frozen=True)
class Case:
    name: str
    workload: str = ""
    limit: int = 0
    concurrency: int = 10
    branches: int = 1   # the most that one request asks for
    requests: int = 0
    x: float = 0        # on a plot


def _described(name, path, limit, concurrency, x=0):
    lines = [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    turns = [turn for line in (lines[:limit] if limit else lines) for turn in line["turns"]]
    return Case(name, str(path), limit, concurrency, max(turn.get("n", 1) for turn in turns), len(turns), x)


def workload_cases(paths, limits, concurrency):
    return [_described(path.stem, path, limits.get(path.stem, 10), concurrency) for path in paths]


def _text(source, words):
    return " ".join(source.choice(WORDS) for _ in range(words))


def _write_shared(path, requests, shared_words, seed):
    """`requests` users ask short questions about one text."""
    source = random.Random(seed)
    text = _text(source, shared_words)
    lines = [{"id": f"q{i}", "tenant": "t", "turns": [{"max_tokens": SWEEP_ANSWER, "messages": [
        {"role": "system", "content": "Answer from this text.\n" + text},
        {"role": "user", "content": f"Question {i}: what about {_text(source, 12)}?"}]}]} for i in range(requests)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def concurrency_cases(folder, concurrencies):
    """One text of about 1,000 tokens; every user asks twice."""
    cases = []
    for users in concurrencies:
        path = folder / f"concurrency_{users}.jsonl"
        _write_shared(path, max(4, 2 * users), 1000, 1)
        cases.append(_described(f"{users} users", path, 0, users, users))
    return cases


def shared_cases(folder, lengths, concurrency):
    """Texts of about so many tokens (a word of WORDS is little more than a token), twice as many questions as users."""
    cases = []
    for length in lengths:
        path = folder / f"shared_{length}.jsonl"
        _write_shared(path, 2 * concurrency, length, length)
        cases.append(_described(f"{length} shared", path, 0, concurrency, length))
    return cases
