"""The cache as an operator sees it: /kvlink/*, `kvlink cache` and the Grafana dashboard."""
import itertools
import json
import os
import re
import subprocess

import pytest

from conftest import BINARY, Server, cached, filler, key_line

SOURCE = os.environ["KVLINK_SOURCE_DIR"]


@pytest.fixture(scope="module")
def small_server(tmp_path_factory):
    """A cache that a few prompts fill: 32 MiB are some 1,400 tokens of the default model."""
    running = Server(tmp_path_factory.mktemp("small") / "log", "--pin-budget", "0.4", kv_memory="32M")
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def admin_server(tmp_path_factory):
    """Two keys of a tenant and one of another that may administer, and one that may only ask."""
    folder = tmp_path_factory.mktemp("admins")
    rights = ["inference", "metrics", "admin"]
    keys = [("chief", "acme", rights), ("deputy", "acme", rights), ("rival", "other", rights), ("guest", "acme", rights[:1])]
    (folder / "keys").write_text("".join(key_line(*key) + "\n" for key in keys))
    running = Server(folder / "log", "--api-keys", str(folder / "keys"))
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def tiered_server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiered")
    running = Server(folder / "log", "--cold-dir", str(folder / "cold"))
    yield running
    assert running.stop() == 0


def post(server, path, body):
    return server.http.post(f"/kvlink/{path}", json=body)


def done(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()


def refused(answer, status, code=None):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert code is None or error["code"] == code
    return error


def complete(server, text):
    with server.client() as client:
        answer = client.completions.create(model=client.models.list().data[0].id, prompt=text, max_tokens=1, temperature=0)
        return answer.usage.prompt_tokens, cached(answer)


def fill(server, salt):
    """Enough other prompts to evict what is not pinned."""
    for i in range(6):
        complete(server, filler(400, f"{salt}{i}"))


def test_a_warmed_prompt_hits_and_a_flushed_one_does_not(server):
    text = filler(200, "warmed")
    hits = server.metric("vllm:prefix_cache_hits_total")
    warmed = done(post(server, "warm", {"prompt": text}))
    assert warmed["prompt_tokens"] > 150
    assert warmed["computed_tokens"] + warmed["cached_tokens"] == warmed["prompt_tokens"]
    assert warmed["prompts"][0]["miss_reason"] in ("cold", "diverged", "none")
    generated = server.metric("vllm:generation_tokens_total")
    again = done(post(server, "warm", {"prompt": text}))
    assert again["cached_tokens"] >= again["prompt_tokens"] - 1
    assert server.metric("vllm:generation_tokens_total") == generated, "an answer that is dropped counts as none"
    tokens, hit = complete(server, text)
    assert hit >= tokens - 1
    assert server.metric("vllm:prefix_cache_hits_total") - hits >= 2 * (tokens - 1)

    server.wait_until_idle()
    assert server.metric("kvlink_blocks", state="cached") > 0
    dropped = done(post(server, "flush", {}))
    assert dropped["dropped_pages"] > 0 and dropped["dropped_bytes"] > 0
    assert server.metric("kvlink_blocks", state="cached") == 0
    assert complete(server, text) == (tokens, 0)


def test_warming_a_chat_serves_the_chat(server, chat):
    messages = [{"role": "system", "content": filler(120, "warm chat")}, {"role": "user", "content": "Which river?"}]
    warmed = done(post(server, "warm", {"messages": messages}))
    answer = chat(None, messages=messages)
    assert answer.usage.prompt_tokens == warmed["prompt_tokens"]
    assert cached(answer) >= warmed["prompt_tokens"] - 1
    salted = chat(None, messages=messages, extra_body={"cache_salt": "another"})
    assert cached(salted) == 0


def test_several_prompts_are_warmed_in_one_request(server):
    texts = [filler(60, f"many {i}") for i in range(3)]
    warmed = done(post(server, "warm", {"prompt": texts}))
    assert [each["prompt_tokens"] for each in warmed["prompts"]] == [complete(server, text)[0] for text in texts]
    assert sum(each["prompt_tokens"] for each in warmed["prompts"]) == warmed["prompt_tokens"]
    assert all(tokens - hit <= 1 for tokens, hit in (complete(server, text) for text in texts))


def test_answers_are_the_same_while_somebody_flushes(server, chat):
    question = filler(150, "flushed while asked")
    plain = chat(question, max_tokens=40).choices[0].message.content
    for _ in range(3):
        with server.client() as client:
            stream = client.chat.completions.create(
                model=client.models.list().data[0].id, messages=[{"role": "user", "content": question}], max_tokens=40,
                temperature=0, stream=True)
            text = ""
            for i, chunk in enumerate(stream):
                if chunk.choices:
                    text += chunk.choices[0].delta.content or ""
                if i % 8 == 1:
                    done(post(server, "flush", {}))
        assert text == plain
    server.wait_until_idle()
    assert server.metric("kvlink_blocks", state="in_use") == 0


def test_a_pinned_prompt_survives_what_evicts_another(small_server):
    kept, lost = filler(300, "kept"), filler(300, "lost")
    for text in (kept, lost):
        done(post(small_server, "warm", {"prompt": text}))
    pinned = done(post(small_server, "pin", {"prompt": kept, "ttl_s": 600}))
    assert pinned["pinned_tokens"] >= pinned["prompt_tokens"] - 1
    assert pinned["ttl_s"] == 600
    assert pinned["pinned_bytes"] == small_server.metric("kvlink_kv_bytes", state="pinned") > 0
    fill(small_server, "evicting")
    assert complete(small_server, lost)[1] < 100
    tokens, hit = complete(small_server, kept)
    assert hit >= tokens - 1

    done(post(small_server, "flush", {}))
    assert small_server.metric("kvlink_kv_bytes", state="pinned") == 0
    assert complete(small_server, kept)[1] == 0


def test_a_pin_ends_with_its_time(small_server):
    text = filler(300, "short")
    done(post(small_server, "flush", {}))
    done(post(small_server, "warm", {"prompt": text}))
    done(post(small_server, "pin", {"prompt": text, "ttl_s": 0.001}))
    fill(small_server, "after the time")
    assert complete(small_server, text)[1] < 100


def test_pins_keep_to_their_budget(small_server):
    done(post(small_server, "flush", {}))
    budget = 0.4 * small_server.metric("kvlink_kv_bytes", state="budget")
    answers = []
    for i in range(3):
        text = filler(400, f"budget {i}")
        done(post(small_server, "warm", {"prompt": text}))
        answers.append(post(small_server, "pin", {"prompt": text, "ttl_s": 600}))
        assert small_server.metric("kvlink_kv_bytes", state="pinned") <= budget
    done(answers[0])
    error = refused(answers[-1], 409, "pin_budget_exhausted")
    assert "bytes" in error["message"] and "--pin-budget" in error["message"]
    done(post(small_server, "flush", {}))


def test_an_unpinned_prompt_is_evicted_as_others_are(small_server):
    done(post(small_server, "flush", {}))
    kept, freed = filler(250, "still pinned"), filler(250, "pinned no longer")
    for text in (kept, freed):
        done(post(small_server, "warm", {"prompt": text}))
    done(post(small_server, "pin", {"prompt": kept, "ttl_s": 600}))
    held = small_server.metric("kvlink_kv_bytes", state="pinned")
    pinned = done(post(small_server, "pin", {"prompt": freed, "ttl_s": 600}))["pinned_tokens"]
    assert pinned > 50
    unpinned = done(post(small_server, "unpin", {"prompt": freed}))
    assert unpinned["unpinned_tokens"] == pinned and unpinned["pinned_bytes"] == held
    assert done(post(small_server, "unpin", {"prompt": freed}))["unpinned_tokens"] == 0, "there is nothing left to end"
    fill(small_server, "after the pin")
    assert complete(small_server, freed)[1] < 100
    tokens, hit = complete(small_server, kept)
    assert hit >= tokens - 1
    refused(post(small_server, "unpin", {"prompt": kept, "cache_salt": "nobody's"}), 404, "not_cached")
    assert refused(post(small_server, "unpin", {"prompt": ["a", "b"]}), 400)["param"] == "prompt"
    done(post(small_server, "flush", {}))


# --- GET /kvlink/blocks ---


def blocks_of(server, key=None, **query):
    answer = server.http.get("/kvlink/blocks", params=query, headers={"Authorization": f"Bearer {key}"} if key else {})
    return done(answer)


def shown(server, block, key=None, **query):
    answer = server.http.get(f"/kvlink/blocks/{block}", params=query, headers={"Authorization": f"Bearer {key}"} if key else {})
    return answer


def test_blocks_are_listed_as_a_tree_that_adds_up(server):
    done(post(server, "flush", {}))
    start = filler(120, "common start")
    for end in ("one end", "another end altogether", "one end"):
        complete(server, f"{start} {end}")
    server.wait_until_idle()
    listed = blocks_of(server)
    blocks = {block["id"]: block for block in listed["data"]}
    assert listed["next"] is None and listed["total"] == len(blocks) > 4
    assert sum(block["bytes"] for block in blocks.values()) == server.metric("kvlink_kv_bytes", state="cached")
    for block in blocks.values():
        assert block["state"] == "cached" and block["users"] == 0 and block["tenant"] == "default"
        assert block["length"] == block["position"] + block["tokens"]
        assert block["children"] == sum(other["parent"] == block["id"] for other in blocks.values())
        if block["parent"] is not None:
            above = blocks[block["parent"]]
            assert above["length"] == block["position"] and above["uses"] >= block["uses"]
        else:
            assert block["position"] == 0
    first = next(block for block in blocks.values() if block["parent"] is None)
    assert first["uses"] == 3 and first["hot"] and first["kind"] == "full"
    text = done(shown(server, first["id"]))
    assert text["chain"] == [first["id"]] and start[:40] in text["text"]
    leaf = max(blocks.values(), key=lambda block: block["length"])
    whole = done(shown(server, leaf["id"], last=256))
    assert whole["chain"][0] == first["id"] and whole["chain"][-1] == leaf["id"]
    assert start in whole["text"]

    done(post(server, "flush", {}))
    assert blocks_of(server)["total"] == 0
    refused(shown(server, first["id"]), 404, "no_such_block")


def test_a_list_of_many_pages_is_of_one_moment(server):
    done(post(server, "flush", {}))
    complete(server, filler(200, "paged"))
    server.wait_until_idle()
    whole = blocks_of(server)
    page = blocks_of(server, limit=2)
    assert page["total"] == whole["total"] > 4 and page["first"] == 0
    done(post(server, "flush", {}))  # what is read on is the list as it was
    ids = []
    while True:
        assert len(page["data"]) <= 2
        ids += [block["id"] for block in page["data"]]
        if page["next"] is None:
            break
        page = blocks_of(server, limit=2, cursor=page["next"])
        assert page["first"] == len(ids)
    assert ids == [block["id"] for block in whole["data"]]
    assert blocks_of(server)["total"] == 0
    assert refused(server.http.get("/kvlink/blocks?limit=0"), 400)["param"] == "limit"
    assert "'99.x'" in refused(server.http.get("/kvlink/blocks?cursor=99.x"), 400)["message"]
    refused(server.http.get("/kvlink/blocks?cursor=999999.0"), 410, "list_expired")
    assert refused(server.http.get("/kvlink/blocks/none"), 400)["param"] == "id"


def kv_figures(server):
    """Of one answer of /metrics, so that they are of one moment."""
    text = server.http.get("/metrics").text
    figures = {state: float(value) for state, value in re.findall(r'^kvlink_kv_bytes\{.*state="(\w+)"\} (\S+)$', text, re.M)}
    figures["saved"] = float(re.search(r"^kvlink_kv_saved_bytes\{.*\} (\S+)$", text, re.M)[1])
    return figures


def test_blocks_in_use_and_what_sharing_saves_are_seen_while_requests_run(server):
    done(post(server, "flush", {}))
    text = filler(300, "seen while running")
    done(post(server, "warm", {"prompt": text}))
    with server.client() as client:
        model = client.models.list().data[0].id
        streams = [client.completions.create(model=model, prompt=text, max_tokens=400, temperature=0, stream=True,
                                             extra_body={"ignore_eos": True}) for _ in range(2)]
        used, figures = [], {"shared": 0}
        while not used or not figures["shared"]:
            assert server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting") > 0, "too late"
            used = used or [block for block in blocks_of(server)["data"] if block["users"] > 1]
            figures = kv_figures(server)
        for stream in streams:
            stream.close()
    assert all(block["state"] == "in_use" and block["hot"] for block in used)
    assert 0 < figures["shared"] <= figures["in_use"] < figures["without_sharing"]
    assert figures["saved"] == figures["without_sharing"] - figures["in_use"]
    server.wait_until_idle()
    assert server.metric("kvlink_kv_saved_bytes") == server.metric("kvlink_kv_bytes", state="without_sharing") == 0


def test_a_tenant_lists_its_own_blocks_and_reads_text_with_the_right_to(admin_server):
    secret = filler(100, "what acme asked")
    done(post_as(admin_server, "chief", "warm", {"prompt": secret}))
    done(post_as(admin_server, "rival", "warm", {"prompt": filler(60, "what the rival asked")}))
    own, others = blocks_of(admin_server, "chief"), blocks_of(admin_server, "rival")
    assert own["total"] > 2 and others["total"] > 1
    assert {block["tenant"] for block in own["data"]} == {"acme"}
    assert {block["tenant"] for block in others["data"]} == {"other"}
    assert not {block["id"] for block in own["data"]} & {block["id"] for block in others["data"]}
    block = own["data"][0]["id"]
    assert "what acme asked" in done(shown(admin_server, own["data"][-1]["id"], "chief", last=256))["text"]
    guest = done(shown(admin_server, block, "guest"))
    assert guest["text"] is None and "admin" in guest["text_withheld"]
    refused(shown(admin_server, block, "rival"), 404, "no_such_block")
    refused(shown(admin_server, block), 401, "invalid_api_key")
    refused(admin_server.http.get("/kvlink/blocks"), 401, "invalid_api_key")
    # Nor can another tenant read on in a list.
    cursor = blocks_of(admin_server, "chief", limit=1)["next"]
    assert blocks_of(admin_server, "chief", cursor=cursor)["first"] == 1
    answer = admin_server.http.get("/kvlink/blocks", params={"cursor": cursor}, headers={"Authorization": "Bearer rival"})
    refused(answer, 410, "list_expired")


def test_a_block_that_is_on_disk_too_says_so(tiered_server):
    done(post(tiered_server, "warm", {"prompt": filler(100, "goes to disk")}))
    full = []

    def all_are_on_disk():
        full[:] = [block for block in blocks_of(tiered_server)["data"] if block["kind"] == "full"]
        return full and all(block["tiers"] == ["cold"] for block in full)

    tiered_server.wait_for(all_are_on_disk)
    assert len(full) > 2


# --- kvlink cache ---


def kvlink_cache(server, *arguments, key=None, **more):
    environment = {**os.environ, **({"KVLINK_API_KEY": key} if key else {})}
    return subprocess.run([BINARY, "cache", arguments[0], "--url", server.url, *arguments[1:]], capture_output=True,
                          text=True, timeout=300, check=False, env=environment, **more)


def said(run):
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_the_cache_is_administered_from_the_command_line(server, tmp_path):
    text = filler(80, "from the command line")
    (tmp_path / "prompt").write_text(text)
    said(kvlink_cache(server, "flush"))
    warmed = json.loads(said(kvlink_cache(server, "warm", "--prompt-file", str(tmp_path / "prompt"), "--json")))
    assert warmed["object"] == "kvlink.warm" and warmed["prompt_tokens"] > 60
    tokens, hit = complete(server, text)
    assert hit >= tokens - 1
    assert f"of {tokens} tokens for 60 s" in said(kvlink_cache(server, "pin", "--prompt", text, "--ttl", "60"))
    assert server.metric("kvlink_kv_bytes", state="pinned") > 0
    listed = said(kvlink_cache(server, "list", "--limit", "2", "--sort", "uses", "--text"))
    total = blocks_of(server)["total"]
    assert f"{total} blocks, 2 shown" in listed and "BLOCK" in listed and "from the command line" in listed
    as_json = json.loads(said(kvlink_cache(server, "list", "--limit", "0", "--json")))
    assert [block["id"] for block in as_json["data"]] == [block["id"] for block in blocks_of(server)["data"]]
    unpinned = said(kvlink_cache(server, "unpin", "--prompt-file", "-", input=text))
    assert "pinned no longer; pins hold 0 bytes" in unpinned
    figures = json.loads(said(kvlink_cache(server, "stats", "--json")))
    assert figures["kv_bytes"]["budget"] == server.metric("kvlink_kv_bytes", state="budget")
    assert figures["prompt_tokens"]["all"] == server.metric("vllm:prompt_tokens_total")
    assert "without sharing" in said(kvlink_cache(server, "stats"))
    assert "dropped" in said(kvlink_cache(server, "flush"))
    assert blocks_of(server)["total"] == 0


def test_a_system_message_is_warmed_for_whatever_follows(server, chat, tmp_path):
    system = filler(90, "warmed system")
    said(kvlink_cache(server, "warm", "--system", system))
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Which river?"}]
    assert cached(chat(None, messages=messages)) > 60
    (tmp_path / "chat.json").write_text(json.dumps(messages))
    assert "tokens for" in said(kvlink_cache(server, "pin", "--messages", str(tmp_path / "chat.json")))
    (tmp_path / "chat.json").write_text(json.dumps({"messages": messages}))
    said(kvlink_cache(server, "unpin", "--messages", str(tmp_path / "chat.json")))
    assert server.metric("kvlink_kv_bytes", state="pinned") == 0


@pytest.mark.parametrize("arguments,code,named", [
    (["list", "--sort", "colour"], 2, ["--sort", "colour"]),
    (["pin"], 2, ["--prompt", "--messages"]),
    (["pin", "--prompt", "x", "--system", "y"], 2, ["not 2"]),
    (["pin", "--prompt", "x", "--ttl", "0"], 2, ["--ttl"]),
    (["pin", "--prompt", "a prompt that nobody sent before"], 1, ["/kvlink/warm"]),
    (["warm", "--prompt-file", "/no/such/file"], 2, ["--prompt-file", "'/no/such/file'"]),
    (["warm", "--prompt", "word " * 5000], 2, ["context length"]),
    (["frobnicate"], 2, ["frobnicate"]),
], ids=lambda value: " ".join(map(str, value))[:40] if isinstance(value, list) else str(value))
def test_the_command_line_says_what_is_wrong(server, arguments, code, named):
    run = kvlink_cache(server, *arguments)
    assert run.returncode == code, run.stderr
    assert run.stdout == "" and all(text in run.stderr for text in named), run.stderr


def test_the_command_line_tells_of_keys_and_of_nobody(admin_server, tmp_path):
    run = kvlink_cache(admin_server, "list")
    assert run.returncode == 1 and "--api-key" in run.stderr
    run = kvlink_cache(admin_server, "flush", key="guest")
    assert run.returncode == 1 and '"admin"' in run.stderr
    run = kvlink_cache(admin_server, "stats", key="guest")
    assert run.returncode == 1 and '"metrics"' in run.stderr
    done(post_as(admin_server, "chief", "warm", {"prompt": filler(40, "text of a tenant")}))
    assert "text of a tenant" in said(kvlink_cache(admin_server, "list", "--text", "--sort", "length", key="chief"))
    run = kvlink_cache(admin_server, "list", "--text", key="guest")
    assert run.returncode == 1 and '"admin"' in run.stderr
    run = subprocess.run([BINARY, "cache", "list", "--url", "http://127.0.0.1:1"], capture_output=True, text=True,
                         timeout=60, check=False)
    assert run.returncode == 1 and "--url" in run.stderr and "127.0.0.1:1" in run.stderr


# --- Grafana ---


def samples(metrics_text):
    """{name: [labels]} of everything exported."""
    found = {}
    for name, labels in re.findall(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})? \S+$", metrics_text, re.M):
        found.setdefault(name, []).append(dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels)))
    return found


def missing(expression, legend, exported):
    """What the expression names and the server does not export; `instance` and `job` are Prometheus' own."""
    wrong = []
    grouped = {label.strip() for labels in re.findall(r"by \(([^)]*)\)", expression) for label in labels.split(",")}
    shown_labels = set(re.findall(r"\{\{(\w+)\}\}", legend))
    for name, selector in re.findall(r"((?:vllm:|kvlink_)[\w:]+)(?:\{([^}]*)\})?", expression):
        wanted = {label: value for label, value in re.findall(r'(\w+)="([^"]*)"', selector)}
        lines = [labels for labels in exported.get(name, []) if all(labels.get(key) == value for key, value in wanted.items())]
        labels = (grouped | shown_labels) - {"instance", "job"}
        if not any(labels <= set(line) for line in lines):
            wrong.append(f"{name}{wanted or ''} by {sorted(labels)}")
    return wrong


def test_the_grafana_dashboard_asks_for_nothing_that_is_not_exported(tiered_server):
    with open(f"{SOURCE}/share/kvlink/grafana.json", encoding="utf-8") as text:
        board = json.load(text)
    complete(tiered_server, "something, so that every family has a line")
    exported = samples(tiered_server.http.get("/metrics").text)
    assert missing("sum(rate(kvlink_nothing_total[5m]))", "", exported)
    assert missing('kvlink_kv_bytes{state="nowhere"}', "", exported)
    assert missing("sum by (nothing) (kvlink_blocks)", "", exported)
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    targets = [(panel, target) for panel in panels for target in panel["targets"]]
    assert len(panels) > 20 and len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    for panel, target in targets:
        assert missing(target["expr"], target["legendFormat"], exported) == [], panel["title"]
        assert target["expr"].count("(") == target["expr"].count(")") and '{instance=~"$instance"' in target["expr"]
    named = {name for _, target in targets for name in re.findall(r"(?:vllm:|kvlink_)[\w:]+", target["expr"])}
    assert {"kvlink_kv_saved_bytes", "kvlink_reuse_tokens_total", "kvlink_miss_total"} <= named
    for one, other in itertools.combinations([panel["gridPos"] for panel in board["panels"]], 2):
        apart = (one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
                 or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"])
        assert apart and one["x"] + one["w"] <= 24, (one, other)


def test_what_cannot_be_done_is_refused_with_what_was_seen(server):
    error = refused(post(server, "pin", {"prompt": filler(80, "never sent")}), 404, "not_cached")
    assert "/kvlink/warm" in error["message"] and error["param"] == "prompt"
    error = refused(post(server, "pin", {"prompt": "x", "ttl_s": -1}), 400)
    assert error["param"] == "ttl_s" and "-1" in error["message"]
    error = refused(post(server, "pin", {"prompt": ["a", "b"]}), 400)
    assert "not 2" in error["message"]
    assert refused(post(server, "pin", {}), 400, "missing_field")["param"] == "messages"
    both = {"prompt": "x", "messages": [{"role": "user", "content": "y"}]}
    assert "combined" in refused(post(server, "warm", both), 400)["message"]
    assert refused(post(server, "warm", {"prompt": "x", "kvlink": {"store": False}}), 400)["param"] == "kvlink.store"
    assert refused(post(server, "warm", {"prompt": "x", "model": "other"}), 404)["param"] == "model"
    assert refused(post(server, "warm", {"prompt": "word " * 5000}), 400, "context_length_exceeded")["param"] == "prompt"
    error = refused(post(server, "flush", {"tenant": "acme"}), 400)
    assert error["param"] == "tenant" and "acme" in error["message"]
    assert done(server.http.post("/kvlink/flush"))["object"] == "kvlink.flush"
    assert server.http.get("/kvlink/flush").status_code == 405


def post_as(server, key, path, body):
    return server.http.post(f"/kvlink/{path}", json=body, headers={"Authorization": f"Bearer {key}"} if key else {})


def test_administration_needs_its_right_where_there_are_keys(admin_server):
    for path in ("pin", "unpin", "warm", "flush"):
        refused(post_as(admin_server, None, path, {}), 401, "invalid_api_key")
        refused(post_as(admin_server, "nobody", path, {}), 401, "invalid_api_key")
        error = refused(post_as(admin_server, "guest", path, {}), 403, "missing_right")
        assert "guest" in error["message"] and "admin" in error["message"]
    done(post_as(admin_server, "chief", "flush", {}))
    assert admin_server.http.get("/").status_code == 200  # the page itself tells nothing


def test_a_pin_is_for_ones_own_tenant(admin_server):
    body = {"prompt": filler(100, "pinned by a tenant")}
    done(post_as(admin_server, "chief", "warm", body))
    assert done(post_as(admin_server, "deputy", "pin", body))["pinned_tokens"] > 50  # another key of the same tenant
    refused(post_as(admin_server, "rival", "pin", body), 404, "not_cached")


# --- the page ---
