"""Keys decide whose blocks a request may find, and what its tenant may ask."""
import json
import os
import signal
import subprocess
import threading

import openai
import pytest

from conftest import BINARY, Server, cached, filler, key_line
from tier_tools import Redis


def ask(server, key, text, **extra):
    with server.client(key) as client:
        return cached(client.chat.completions.create(
            model=client.models.list().data[0].id, messages=[{"role": "user", "content": text}], max_tokens=2,
            temperature=0, extra_body=extra))


def test_without_a_known_key_nothing_is_answered(keyed_server):
    for key in ("key-z", "none"):
        with keyed_server.client(key) as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
    assert keyed_server.http.get("/v1/models").status_code == 401
    assert keyed_server.http.get("/health").status_code == 200


def test_a_tenant_hits_its_own_blocks_and_no_others(keyed_server):
    text = filler(100, "pair")
    assert ask(keyed_server, "key-a", text) == 0
    assert ask(keyed_server, "key-a", text) > 100
    assert ask(keyed_server, "key-b", text) > 100  # another key of the same tenant
    assert ask(keyed_server, "key-c", text) == 0
    assert ask(keyed_server, "key-c", text) > 100


def test_a_clients_salt_only_narrows(keyed_server):
    text = filler(100, "salt")
    assert ask(keyed_server, "key-a", text, cache_salt="s") == 0
    assert ask(keyed_server, "key-a", text, cache_salt="s") > 100
    assert ask(keyed_server, "key-a", text) < 100
    assert ask(keyed_server, "key-c", text, cache_salt="s") == 0
    assert ask(keyed_server, "key-c", text, cache_salt="acme") == 0


def test_a_miss_for_its_salt_says_so(keyed_server):
    text = filler(100, "reason")
    ask(keyed_server, "key-a", text)
    with keyed_server.client("key-a") as client:
        answer = client.chat.completions.create(model=client.models.list().data[0].id, messages=[{"role": "user", "content": text}],
                                                max_tokens=2, extra_body={"cache_salt": "another"})
    assert cached(answer) == 0 and answer.model_extra["kvlink"]["miss_reason"] == "salt"


def reasons(server, key, text):
    """Cached tokens of a chat, and why not more."""
    with server.client(key) as client:
        answer = client.chat.completions.create(model=client.models.list().data[0].id, messages=[{"role": "user", "content": text}],
                                                max_tokens=2, temperature=0)
    return cached(answer), answer.model_extra["kvlink"]["miss_reason"]


def new_key(*options):
    made = subprocess.run([BINARY, "key", "new", *options], capture_output=True, text=True, timeout=60, check=False)
    return made.returncode, made.stdout.strip(), made.stderr.strip()


TIGHT_BYTES = 16 << 20  # about 700 tokens of the default model, of the server's 23,000


@pytest.fixture(scope="module")
def tenants(tmp_path_factory):
    """A server with tenants of all kinds, a cold tier, and keys that `kvlink key new` made."""
    folder = tmp_path_factory.mktemp("tenants")
    keys, lines = {}, []
    for name, tenant, rights in [("red", "red", "inference"), ("blue", "blue", "inference"), ("solo", "solo", "inference"),
                                 ("clinic", "clinic", "inference"), ("ops", "ops", "inference,metrics,admin"),
                                 ("tight", "tight", "inference"), ("paced", "paced", "inference"),
                                 ("watch", "ops", "metrics")]:
        code, line, keys[name] = new_key("--name", name, "--tenant", tenant, "--rights", rights)
        assert code == 0
        lines.append(line)
    lines += [json.dumps(settings) for settings in [
        {"tenant": "red", "sharing": "group", "group": "colours"}, {"tenant": "blue", "sharing": "group", "group": "colours"},
        {"tenant": "solo", "sharing": "none", "max_requests": 1}, {"tenant": "clinic", "sensitive": True},
        {"tenant": "tight", "cache_bytes": TIGHT_BYTES, "weight": 2}, {"tenant": "paced", "requests_per_minute": 3}]]
    path = folder / "keys"
    path.write_text("\n".join(lines) + "\n")
    running = Server(folder / "log", "--api-keys", str(path), "--cold-dir", str(folder / "cold"), "--tier-writes", "all")
    running.keys, running.keys_file, running.log_file = keys, path, folder / "log"
    yield running
    assert running.stop() == 0


def metric(tenants, name, labels=""):
    text = tenants.http.get("/metrics", headers={"Authorization": f"Bearer {tenants.keys['ops']}"}).text
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
               if line.startswith((name + "{", name + " ")) and labels in line)


def test_a_new_key_shows_its_secret_once_and_its_hash_only(tenants):
    code, line, secret = new_key("--name", "x", "--tenant", "y")
    assert code == 0 and secret.startswith("kvl_") and secret not in line
    assert json.loads(line)["rights"] == ["inference"]
    code, line, error = new_key("--name", "x", "--tenant", "a b")
    assert code == 2 and line == "" and "--tenant" in error and '"a b"' in error


def test_a_group_shares_and_who_shares_nothing_does_not(tenants):
    text = filler(100, "scopes")
    assert ask(tenants, tenants.keys["red"], text) == 0
    assert ask(tenants, tenants.keys["blue"], text) > 100
    for _ in range(2):
        assert ask(tenants, tenants.keys["solo"], text) == 0
    assert ask(tenants, tenants.keys["ops"], text) < 50


def test_blocks_of_a_sensitive_tenant_hit_in_ram_and_are_in_no_tier(tenants):
    text = filler(200, "records")
    tenants.wait_for(lambda: metric(tenants, "kvlink_tier_queue_blocks") == 0)  # of the tests before
    before = metric(tenants, "kvlink_tier_blocks_total")
    assert ask(tenants, tenants.keys["clinic"], text) == 0
    assert ask(tenants, tenants.keys["clinic"], text) > 100
    tenants.wait_for(lambda: metric(tenants, "kvlink_tier_queue_blocks") == 0)
    assert metric(tenants, "kvlink_tier_blocks_total") == before
    # The same of another tenant is written: the counter can move.
    assert ask(tenants, tenants.keys["ops"], text) < 100
    tenants.wait_for(lambda: metric(tenants, "kvlink_tier_blocks_total") > before)


def test_rights_are_those_of_the_key(tenants):
    for name, status in [("ops", 200), ("red", 403)]:
        answer = tenants.http.get("/metrics", headers={"Authorization": f"Bearer {tenants.keys[name]}"})
        assert answer.status_code == status
    assert tenants.http.get("/metrics").status_code == 401


def test_a_tenant_beyond_its_limit_is_told_which(tenants):
    results = []

    def run():
        with tenants.client(tenants.keys["solo"]) as client:
            try:
                client.completions.create(model=client.models.list().data[0].id, prompt=filler(600, "limit"), max_tokens=32,
                                          extra_body={"ignore_eos": True})
                results.append(200)
            except openai.RateLimitError as error:
                assert error.code == "tenant_max_requests" and "max_requests is 1" in str(error)
                assert int(error.response.headers["retry-after"]) >= 1
                results.append(429)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 200 in results and 429 in results
    assert ask(tenants, tenants.keys["solo"], "and again") == 0


def test_a_tenant_beyond_its_quota_loses_its_own_blocks_and_nobody_elses(tenants):
    held = 'tenant="tight"'
    text = filler(300, "kept by another")
    ask(tenants, tenants.keys["ops"], text)
    prompts = [filler(200, f"flood {number}") for number in range(12)]
    for prompt in prompts:
        ask(tenants, tenants.keys["tight"], prompt)
        assert 0 < metric(tenants, "kvlink_tenant_kv_bytes", held) <= TIGHT_BYTES
    assert metric(tenants, "kvlink_tenant_quota_evictions_total", held) > 0
    assert metric(tenants, "kvlink_tenant_kv_quota_bytes", held) == TIGHT_BYTES
    assert metric(tenants, "kvlink_tenant_kv_bytes") > TIGHT_BYTES
    assert ask(tenants, tenants.keys["ops"], text) > 250
    assert ask(tenants, tenants.keys["tight"], prompts[-1]) > 150


def test_a_prompt_that_its_tenants_quota_can_never_hold_is_refused_with_the_figures(tenants):
    with (tenants.client(tenants.keys["tight"]) as client,
          pytest.raises(openai.BadRequestError, match="the quota of its tenant") as refused):
        client.completions.create(model=client.models.list().data[0].id, prompt=filler(1500, "large"), max_tokens=2)
    assert refused.value.code == "kv_memory_exceeded"
    assert ask(tenants, tenants.keys["ops"], filler(1500, "large")) < 50  # others may


def test_a_minutes_requests_are_counted_and_the_time_to_come_back_is_told(tenants):
    with tenants.client(tenants.keys["paced"]) as client:
        model = client.models.list().data[0].id
        with pytest.raises(openai.RateLimitError) as refused:
            for _ in range(100):  # a slow machine may be given more meanwhile
                client.completions.create(model=model, prompt="Hello", max_tokens=1)
    assert refused.value.code == "tenant_requests_per_minute"
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 20
    assert ask(tenants, tenants.keys["red"], "not concerned") >= 0


def test_refusals_are_described_where_they_occur(tenants):
    document = tenants.http.get("/openapi.json").json()
    text = json.dumps(document["components"]["headers"]["RetryAfter"])
    assert "integer" in text
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            responses = operation["responses"]
            needs_key = operation.get("security") != []
            assert ("401" in responses, "403" in responses, "503" in responses) == (needs_key, needs_key, True), path
            for status in {"429", "503"} & set(responses):
                described = document["components"]["responses"][responses[status]["$ref"].rsplit("/", 1)[1]]
                assert "Retry-After" in described["headers"], path
            for status in ("401", "403") if needs_key else ():
                key = "unknown" if status == "401" else tenants.keys["watch" if path != "/metrics" else "red"]
                answer = tenants.http.request(method.upper(), path.replace("{model}", "x"), headers={"x-api-key": key})
                assert answer.status_code == int(status), (path, answer.text)
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/kvlink/warm"):
        assert "429" in document["paths"][path]["post"]["responses"]


def test_what_is_not_to_be_stored_is_in_no_tier_and_tenants_have_keys_of_their_own_in_redis(tmp_path):
    """Acceptance 24 and 25, with a Redis that is looked into."""
    keys = tmp_path / "keys"
    keys.write_text(key_line("key-a", "acme", ("inference", "metrics")) + "\n" + key_line("key-c", "other") + "\n")
    redis = Redis(tmp_path)
    try:
        running = Server(tmp_path / "log", "--api-keys", str(keys), "--cold-dir", str(tmp_path / "cold"), "--remote", redis.url,
                         "--tier-writes", "all")
        running.keys = {"ops": "key-a"}
        text = filler(200, "in redis")

        def written():
            running.wait_for(lambda: metric(running, "kvlink_tier_queue_blocks") == 0)
            return metric(running, "kvlink_tier_blocks_total", 'outcome="stored"'), set(redis.command("KEYS", "*"))

        assert ask(running, "key-a", text, kvlink={"store": False}) == 0
        assert ask(running, "key-a", text, kvlink={"store": False}) == 0
        assert written() == (0, set())
        assert ask(running, "key-a", text) == 0
        running.wait_for(lambda: written()[0] > 0 and written()[1])
        of_acme = written()[1]
        assert ask(running, "key-c", text) == 0
        running.wait_for(lambda: len(written()[1]) >= 2 * len(of_acme))
        assert of_acme < written()[1]
        assert ask(running, "key-a", text) > 150  # what both have, each found
        assert ask(running, "key-c", text) > 150
        assert running.stop() == 0
    finally:
        redis.stop()


def test_a_miss_for_what_its_tenant_left_in_another_scope_says_so_to_that_tenant_alone(tenants):
    """Acceptance 28: reason `namespace`."""
    lines = tenants.keys_file.read_text()
    mover = [key_line(key, "mover") for key in ("key-mover", "key-mover-2")]

    def reload(*more):
        """With a key that is new, so that it shows when the file was read."""
        reload.count += 1
        mark = f"key-mark-{reload.count}"
        tenants.keys_file.write_text(lines + "\n".join([*mover, key_line(mark, "mark"), *more]) + "\n")
        os.kill(tenants._process.pid, signal.SIGHUP)
        tenants.wait_for(lambda: tenants.http.get("/v1/models", headers={"x-api-key": mark}).status_code == 200)

    reload.count = 0
    reload()
    text, unknown = filler(200, "before the move"), filler(200, "never sent")
    assert reasons(tenants, "key-mover", text)[0] < 100
    assert reasons(tenants, "key-mover-2", text)[0] > 200
    for settings in ({"sharing": "group", "group": "colours"}, {"sensitive": True}):
        reload(json.dumps({"tenant": "mover", **settings}))
        hit, reason = reasons(tenants, "key-mover", text)
        assert hit < 100 and reason == "namespace", settings
        assert reasons(tenants, "key-mover", unknown)[1] in ("cold", "diverged")
        # The others of the group, and everybody else, learn nothing of it: what mover just asked is red's as well now.
        assert reasons(tenants, tenants.keys["ops"], text)[1] != "namespace"
        assert reasons(tenants, "key-mover-2", text)[0] > 200  # in the new scope it is there now
        unknown = filler(200, f"never sent {settings}")
    assert reasons(tenants, tenants.keys["red"], filler(200, "before the move"))[0] > 200
    # Back where it was: its own blocks of the first scope hit again, and the group's are not spoken of.
    fresh = filler(200, "of the group")
    assert reasons(tenants, tenants.keys["red"], fresh)[0] < 100
    reload()
    assert reasons(tenants, "key-mover", text)[0] > 200
    assert reasons(tenants, "key-mover", fresh)[1] in ("cold", "diverged")
    tenants.keys_file.write_text(lines)
    os.kill(tenants._process.pid, signal.SIGHUP)


def test_keys_are_read_again_on_sighup_and_a_broken_file_keeps_the_old_ones(tenants):
    good = tenants.keys_file.read_text()
    tenants.keys_file.write_text(good + key_line("key-new", "late") + "\n")
    os.kill(tenants._process.pid, signal.SIGHUP)
    tenants.wait_for(lambda: tenants.http.get("/v1/models", headers={"x-api-key": "key-new"}).status_code == 200)
    tenants.keys_file.write_text(good + '{"name": "broken"}\n')
    os.kill(tenants._process.pid, signal.SIGHUP)
    tenants.wait_for(lambda: "hash: must be" in tenants.log_file.read_text())
    assert tenants.http.get("/v1/models", headers={"x-api-key": "key-new"}).status_code == 200
    tenants.keys_file.write_text(good)
    os.kill(tenants._process.pid, signal.SIGHUP)
    tenants.wait_for(lambda: tenants.http.get("/v1/models", headers={"x-api-key": "key-new"}).status_code == 401)
    log = tenants.log_file.read_text()
    assert not any(secret in log for secret in tenants.keys.values())
