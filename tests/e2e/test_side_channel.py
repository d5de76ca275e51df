"""What time tells: whether a prompt is cached shows within a tenant, and to nobody else.

The channel is the time to the first token. In each trial a victim sends a prompt; then two others ask for a prompt that
is the victim's in half of the trials, and a new one of the same length in the rest: a stranger, of another tenant, who
must not be able to tell the two halves apart, and a colleague, with a key of the victim's tenant, who must (else the
measurement could see nothing, whatever leaked). AUC is the chance that a prompt which the victim sent is answered sooner
than one which it did not: 0.5 is blind, 1 is certain. With n trials of each half the standard error of a blind AUC is
sqrt((2 n + 1) / (12 n^2)): 0.018 at n = 500.
"""
import os
import random
import time

import pytest

from conftest import Server, filler, key_line

TRIALS = int(os.environ.get("KVLINK_SIDE_CHANNEL_TRIALS", "500"))  # of each half
WORDS = 40


def area_under_curve(seen, unseen):
    """Chance that a time of `seen` is less than one of `unseen`; ties count half (Mann and Whitney 1947)."""
    wins = sum(1.0 if a < b else 0.5 if a == b else 0.0 for a in seen for b in unseen)
    return wins / (len(seen) * len(unseen))


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """{key: {was it sent: [(seconds, cached tokens)]}}"""
    folder = tmp_path_factory.mktemp("side_channel")
    keys = {"victim": "acme", "colleague": "acme", "stranger": "other"}
    (folder / "keys").write_text("\n".join(key_line(key, tenant) for key, tenant in keys.items()) + "\n")
    server = Server(folder / "log", "--api-keys", str(folder / "keys"))
    model = server.http.get("/v1/models", headers={"x-api-key": "victim"}).json()["data"][0]["id"]

    def first_token(key, text):
        body = {"model": model, "prompt": text, "max_tokens": 1, "temperature": 0}
        start = time.perf_counter()
        answer = server.http.post("/v1/completions", json=body, headers={"x-api-key": key})
        seconds = time.perf_counter() - start
        assert answer.status_code == 200, answer.text
        return seconds, answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    halves = [True, False] * TRIALS
    random.Random(1).shuffle(halves)
    times = {key: {True: [], False: []} for key in ("stranger", "colleague")}
    for trial, is_sent in enumerate(halves):
        sent = f"{trial} {filler(WORDS, f'{trial} sent')}"
        asked = sent if is_sent else f"{trial} {filler(WORDS, f'{trial} kept')}"
        first_token("victim", sent)
        for key, of_key in times.items():
            of_key[is_sent].append(first_token(key, asked))
    yield times
    assert server.stop() == 0


def auc(of_key):
    return area_under_curve(*([seconds for seconds, _ in of_key[is_sent]] for is_sent in (True, False)))


def test_another_tenant_cannot_tell_what_was_sent(measured):
    # Its own prompts begin alike, so that some rows are its own.
    assert all(cached < WORDS // 2 for half in measured["stranger"].values() for _, cached in half)
    value = auc(measured["stranger"])
    print(f"AUC of another tenant {value:.3f}, {TRIALS} trials of each half")
    assert abs(value - 0.5) <= 0.05


def test_a_key_of_the_same_tenant_can(measured):
    assert all(cached > WORDS // 2 for _, cached in measured["colleague"][True])
    value = auc(measured["colleague"])
    print(f"AUC of the same tenant {value:.3f}, {TRIALS} trials of each half")
    assert value > 0.75  # a busy machine blurs it
