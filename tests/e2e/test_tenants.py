"""Keys decide whose blocks a request may find, and what its tenant may ask."""
import json
import os
import signal
import subprocess
import threading

import openai
import pytest

from conftest import BINARY, Server, cached, filler, key_line


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


def new_key(*options):
    made = subprocess.run([BINARY, "key", "new", *options], capture_output=True, text=True, timeout=60, check=False)
    return made.returncode, made.stdout.strip(), made.stderr.strip()


@pytest.fixture(scope="module")
def tenants(tmp_path_factory):
    """A server with tenants of all kinds, a cold tier, and keys that `kvlink key new` made."""
    folder = tmp_path_factory.mktemp("tenants")
    keys, lines = {}, []
    for name, tenant, rights in [("red", "red", "inference"), ("blue", "blue", "inference"), ("solo", "solo", "inference"),
                                 ("clinic", "clinic", "inference"), ("ops", "ops", "inference,metrics,admin")]:
        code, line, keys[name] = new_key("--name", name, "--tenant", tenant, "--rights", rights)
        assert code == 0
        lines.append(line)
    lines += [json.dumps(settings) for settings in [
        {"tenant": "red", "sharing": "group", "group": "colours"}, {"tenant": "blue", "sharing": "group", "group": "colours"},
        {"tenant": "solo", "sharing": "none", "max_requests": 1}, {"tenant": "clinic", "sensitive": True}]]
    path = folder / "keys"
    path.write_text("\n".join(lines) + "\n")
    running = Server(folder / "log", "--api-keys", str(path), "--cold-dir", str(folder / "cold"), "--tier-writes", "all")
    running.keys, running.keys_file, running.log_file = keys, path, folder / "log"
    yield running
    assert running.stop() == 0


def metric(tenants, name):
    text = tenants.http.get("/metrics", headers={"Authorization": f"Bearer {tenants.keys['ops']}"}).text
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith((name + "{", name + " ")))


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
                assert error.response.headers["retry-after"] == "1"
                results.append(429)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 200 in results and 429 in results
    assert ask(tenants, tenants.keys["solo"], "and again") == 0


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
