"""POST /kvlink/pin, warm and flush on a running server, and the page at /."""
import base64
import hashlib
import html.parser
import json
import re
import shutil
import subprocess

import httpx
import pytest

from conftest import Server, cached, filler


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
    (folder / "keys").write_text("".join(json.dumps(
        {"name": key, "hash": hashlib.sha256(key.encode()).hexdigest(), "tenant": tenant, "rights": may}) + "\n"
        for key, tenant, may in keys))
    running = Server(folder / "log", "--api-keys", str(folder / "keys"))
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
    for path in ("pin", "warm", "flush"):
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


class Page(html.parser.HTMLParser):
    """Scripts, styles, and every attribute."""

    def __init__(self, text):
        super().__init__()
        self.attributes, self.inside, self.texts = [], None, {"script": [], "style": []}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag in self.texts:
            self.inside = tag
            self.texts[tag].append("")

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside:
            self.texts[self.inside][-1] += data


@pytest.fixture(scope="module")
def answer(server):
    return httpx.get(f"{server.url}/")


@pytest.fixture(scope="module")
def page(answer):
    return Page(answer.text)


def test_the_page_is_held_to_itself_by_its_policy(answer, page):
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        assert len(page.texts[tag]) == 1
        digest = base64.b64encode(hashlib.sha256(page.texts[tag][0].encode()).digest()).decode()
        assert policy[directive] == f"'sha256-{digest}'"


def test_the_page_names_nothing_outside(answer, page):
    namespaces = {"http://www.w3.org/2000/svg"}
    assert set(re.findall(r"(?:https?:)?//[\w.-]+\.[\w/.-]+", answer.text)) <= namespaces
    assert [a for a in page.attributes if a[1] in ("src", "srcset", "action", "style") or a[1].startswith("on")] == []
    assert {value for _, name, value in page.attributes if name == "href"} == {"data:,", "#chat-text"}


def test_the_page_writes_text_and_never_markup_or_code(page):
    script = page.texts["script"][0]
    assert "textContent" in script
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "srcdoc",
                 "localStorage", "sessionStorage", "document.cookie"):
        assert word not in script, word


def test_every_field_of_the_page_has_a_label(answer, page):
    labelled = set(re.findall(r'<label for="([\w-]+)"', answer.text))
    for inner in re.findall(r"<label>(.*?)</label>", answer.text, re.S):
        labelled.update(re.findall(r'id="([\w-]+)"', inner))
    fields = {value for tag, name, value in page.attributes if tag in ("input", "select", "textarea") and name == "id"}
    assert len(fields) >= 6 and fields <= labelled


def test_the_page_reads_only_metrics_that_exist(page, server):
    server.wait_until_idle()
    exported = server.http.get("/metrics").text
    names = set(re.findall(r'"((?:vllm:|kvlink_)[\w:]+)"', page.texts["script"][0]))
    assert len(names) > 12
    complete(server, "something, so that every family has a line")
    for name in names:
        if not name.startswith("kvlink_tier_"):  # this server has no colder tier: their families are empty
            assert re.search(rf"^{name}(_bucket)?[{{ ]", exported, re.M), name


CHECKS = """
const check = (what, seen, expected) => {
  if (JSON.stringify(seen) !== JSON.stringify(expected)) throw new Error(what + ": " + JSON.stringify(seen));
};
const lines = (a, b, c) => `# HELP h x\\nh_bucket{le="0.1"} ${a}\\nh_bucket{le="1"} ${b}\\nh_bucket{le="+Inf"} ${c}\\n`;
const now = parseMetrics(lines(10, 20, 20) + 'n{a="x\\\\"}y\\\\n",b="2"} 3\\nn{b="5"} 4\\nplain 1.5e3\\n');
check("labels", now.n[0].labels, { a: 'x"}y\\n', b: "2" });
check("plain", now.plain, [{ labels: {}, value: 1500 }]);
check("sum", [sum(now, "n"), sum(now, "n", { b: "5" }), sum(now, "none")], [7, 4, 0]);
check("median", quantile(now, null, "h", 0.5), 0.1);
check("third quarter", quantile(now, null, "h", 0.75), 0.55);
check("only what came since", quantile(now, parseMetrics(lines(10, 10, 10)), "h", 0.5), 0.55);
check("nothing came", quantile(now, now, "h", 0.5), null);
check("past the last bound", quantile(parseMetrics(lines(0, 0, 4)), null, "h", 0.5), 1);
check("events", takeEvents("data: 1\\n\\ndata: 2\\n\\ndata: 3"), { events: ["1", "2"], rest: "data: 3" });
check("window", windowStart([{ time: 0 }, { time: 5000 }, { time: 9000 }], 5, 9000).time, 5000);
check("life", windowStart([{ time: 0 }], 0, 9000), null);
check("bytes", [showBytes(0), showBytes(1536), showBytes(512 * 1048576)], ["0 B", "1.5 KiB", "512 MiB"]);
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="no node here; a browser runs the script in dashboard_browser_test")
def test_the_script_parses_and_its_figures_are_right(page, tmp_path):
    script = tmp_path / "page.js"
    script.write_text(page.texts["script"][0] + CHECKS, encoding="utf-8")
    run = subprocess.run(["node", script], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
