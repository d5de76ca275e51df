"""One vLLM, driven by lines of JSON on standard input; runs in vLLM's own Python environment.

usage: vllm_session.py '{"model": FOLDER, "connector": {OPTIONS} or null, "engine": {ARGUMENTS}}'
Every line of input is {"generate": [[token ids], ...], "max_tokens": N, "salt": TEXT or null},
{"steps": N, "prompt": [token ids]} (median time between tokens), {"metrics": null} or {"reset": null};
every answer is one line that starts with "@ ".
"""

import json
import statistics
import sys
import time


def make_engine(setup):
    from vllm import LLM
    from vllm.config import KVTransferConfig

    options = {"dtype": "float32", "enforce_eager": True, "max_model_len": 8192,
               "kv_cache_memory_bytes": 600 << 20, "max_num_batched_tokens": 2048,
               "disable_log_stats": False, "seed": 0, **setup.get("engine", {})}
    if setup.get("connector") is not None:
        options["kv_transfer_config"] = KVTransferConfig(
            kv_connector="KVLinkConnector", kv_connector_module_path="kvlink.vllm",
            kv_role="kv_both", kv_connector_extra_config=setup["connector"])
    return LLM(model=setup["model"], **options)


def generate(llm, command):
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": tokens} for tokens in command["generate"]]
    if command.get("salt"):
        for prompt in prompts:
            prompt["cache_salt"] = command["salt"]
    parameters = SamplingParams(temperature=0, max_tokens=command["max_tokens"], ignore_eos=True)
    start = time.perf_counter()
    outputs = llm.generate(prompts, parameters, use_tqdm=False)
    return {"seconds": time.perf_counter() - start,
            "tokens": [list(output.outputs[0].token_ids) for output in outputs],
            "cached": [output.num_cached_tokens for output in outputs]}


def step_times(llm, command):
    """Seconds between one request's tokens: of a run with n tokens minus one with few."""
    from vllm import SamplingParams

    prompt = {"prompt_token_ids": command["prompt"]}
    times = []
    for _ in range(command.get("rounds", 3)):
        seconds = []
        for count in (2, 2 + command["steps"]):
            parameters = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
            start = time.perf_counter()
            llm.generate(prompt, parameters, use_tqdm=False)
            seconds.append(time.perf_counter() - start)
        times.append((seconds[1] - seconds[0]) / command["steps"])
    return {"median": statistics.median(times), "all": times}


def metrics(llm):
    values = {}
    for metric in llm.get_metrics():
        if metric.name.startswith(("vllm:kvlink_", "vllm:external_prefix_cache", "vllm:prefix_cache")):
            values[metric.name] = values.get(metric.name, 0) + getattr(metric, "value", 0)
    return values


def main():
    setup = json.loads(sys.argv[1])
    llm = make_engine(setup)
    print("@ ready", flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if "generate" in command:
            answer = generate(llm, command)
        elif "steps" in command:
            answer = step_times(llm, command)
        elif "metrics" in command:
            answer = metrics(llm)
        else:
            answer = {"ok": bool(llm.reset_prefix_cache())}
        print("@ " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
