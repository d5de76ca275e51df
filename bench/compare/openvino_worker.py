"""OpenVINO GenAI in process, measured as `kvlink bench` measures KVLink. Runs in OpenVINO's virtual environment.

usage: openvino_worker.py MODEL.gguf THREADS workload FILE LIMIT CONCURRENCY
       openvino_worker.py MODEL.gguf THREADS op OPERATION DECODE_TOKENS
Prints one JSON object on the last line. The workload loop is the closed loop of docs/bench.md: greedy (n > 1: sampled at 0.8),
max_tokens always generated. OpenVINO shows the tokens of a request with n > 1 only at its end, so such requests give no TTFT.
"""
import json
import random
import sys
import time

import numpy
import openvino
import openvino_genai as genai

CACHE_GB = 3
TEMPERATURE = 0.8


def pipeline(model, threads, prefix_caching):
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GB
    scheduler.max_num_batched_tokens = 512
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = prefix_caching
    return genai.ContinuousBatchingPipeline(model, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})


def config(max_tokens, n=1, seed=0):
    result = genai.GenerationConfig()
    result.max_new_tokens = max_tokens
    result.ignore_eos = True
    if n > 1:
        result.do_sample = True
        result.temperature = TEMPERATURE
        result.num_return_sequences = n
        result.rng_seed = seed
    return result


def percentile(values, fraction):
    values = sorted(values)
    if not values:
        return None
    rank = fraction * (len(values) - 1)
    low = int(rank)
    return values[low] + (values[min(low + 1, len(values) - 1)] - values[low]) * (rank - low)


class User:
    """Works through one conversation after the other, a turn at a time."""

    def __init__(self, pipe, conversations, figures):
        self.pipe, self.tokenizer, self.conversations, self.figures = pipe, pipe.get_tokenizer(), conversations, figures
        self.turns, self.handle = [], None
        self.advance()

    def advance(self):
        if not self.turns:
            self.turns, self.history = (list(next(self.conversations, {"turns": []})["turns"]), [])
        if not self.turns:
            self.handle = None
            return
        self.turn = self.turns.pop(0)
        self.history += self.turn["messages"]
        self.start, self.first, self.tokens = time.monotonic(), None, {}
        prompt = self.tokenizer.apply_chat_template(self.history, True)
        ids = self.tokenizer.encode(prompt, add_special_tokens=False).input_ids
        self.figures["prompt_tokens"] += ids.shape[1]
        self.figures["requests"] += 1
        number = self.figures["requests"]
        self.handle = self.pipe.add_request(number, ids, config(self.turn["max_tokens"], self.turn.get("n", 1), number))

    def look(self):
        """Takes what a step made; goes on with the next turn when this one is answered."""
        while self.handle.can_read():
            for branch, output in self.handle.read().items():
                self.tokens.setdefault(branch, []).extend(output.generated_ids)
            if self.first is None and self.turn.get("n", 1) == 1:
                self.first = time.monotonic()
                self.figures["ttft"].append(self.first - self.start)
        if self.handle.get_status() == genai.GenerationStatus.RUNNING:
            return
        self.figures["latency"].append(time.monotonic() - self.start)
        generated = sum(len(tokens) for tokens in self.tokens.values())
        self.figures["generated_tokens"] += generated
        if self.handle.get_status() != genai.GenerationStatus.FINISHED or generated == 0:
            self.figures["errors"] += 1
        first_branch = self.tokens[min(self.tokens)] if self.tokens else []
        answer = self.turn.get("assistant", self.tokenizer.decode(first_branch))
        self.history.append({"role": "assistant", "content": answer})
        self.advance()


def run_workload(pipe, path, limit, concurrency):
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file if line.strip()]
    conversations = iter(lines[:limit] if limit else lines)
    figures = {"requests": 0, "errors": 0, "prompt_tokens": 0, "generated_tokens": 0, "ttft": [], "latency": []}
    start, cpu = time.monotonic(), time.process_time()
    users = [User(pipe, conversations, figures) for _ in range(concurrency)]
    users = [user for user in users if user.handle]
    while users:
        pipe.step()
        for user in users:
            user.look()
        users = [user for user in users if user.handle]
    wall = time.monotonic() - start
    ttft, latency = figures.pop("ttft"), figures.pop("latency")
    return {**figures, "wall_s": wall, "cpu_s": time.process_time() - cpu,
            "req_per_s": (figures["requests"] - figures["errors"]) / wall,
            "gen_tok_per_s": figures["generated_tokens"] / wall,
            "ttft_p50": percentile(ttft, 0.5), "ttft_p95": percentile(ttft, 0.95),
            "latency_mean": sum(latency) / len(latency) if latency else None,
            "latency_p50": percentile(latency, 0.5), "latency_p95": percentile(latency, 0.95)}


def random_prompt(length, source):
    return [source.randrange(1000, 40000) for _ in range(length)]


def submit(pipe, number, tokens, max_tokens):
    return pipe.add_request(number, openvino.Tensor(numpy.array([tokens], dtype=numpy.int64)), config(max_tokens))


def run_op(pipe, operation, decode_tokens):
    """Tokens per second: prefill over the time to the first token; decoding over the steps in which all sequences decode."""
    kind, size = operation.split(":")
    source = random.Random(1)
    sequences, context = map(int, size.split("x")) if "x" in size else (1, int(size))
    finish(pipe, [submit(pipe, 0, random_prompt(64, source), 4)])  # faults the weights in
    if kind == "prefill":
        prompt = random_prompt(context, source)
        start = time.monotonic()
        handle = submit(pipe, 1, prompt, 2)
        step_until(pipe, lambda: handle.can_read())
        rate = context / (time.monotonic() - start)
        finish(pipe, [handle])
        return rate
    shared = random_prompt(context, source)
    if kind == "shared":
        finish(pipe, [submit(pipe, 1, shared, 1)])
    # Sequences that start early go on decoding until the last has its first token, so they get room for that.
    room = decode_tokens * 4 + sequences * (context // 256 + 2)
    handles = []
    for number in range(sequences):
        prompt = shared[:-1] + random_prompt(1, source) if kind == "shared" else random_prompt(context, source)
        handles.append(submit(pipe, 10 + number, prompt, room))
    begun = set()

    def all_begun():
        for index, handle in enumerate(handles):
            if handle.can_read():
                handle.read()
                begun.add(index)
        return len(begun) == len(handles)

    step_until(pipe, all_begun)
    count, start = 0, time.monotonic()
    for _ in range(decode_tokens):
        pipe.step()
    elapsed = time.monotonic() - start
    for handle in handles:
        while handle.can_read():
            count += sum(len(output.generated_ids) for output in handle.read().values())
    if count != sequences * decode_tokens:
        raise SystemExit(f"{operation}: {count} tokens in {decode_tokens} steps of {sequences} sequences")
    for handle in handles:
        handle.stop()
    finish(pipe, [])
    return count / elapsed


def step_until(pipe, condition):
    while not condition():
        pipe.step()


def finish(pipe, handles):
    while pipe.has_non_finished_requests():
        pipe.step()
    for handle in handles:
        while handle.can_read():
            handle.read()


def main():
    model, threads, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if what == "workload":
        path, limit, concurrency = sys.argv[4], int(sys.argv[5]), int(sys.argv[6])
        figures = run_workload(pipeline(model, threads, True), path, limit, concurrency)
    else:
        shared = sys.argv[4].startswith("shared")
        figures = {"tok_per_s": run_op(pipeline(model, threads, shared), sys.argv[4], int(sys.argv[5]))}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
