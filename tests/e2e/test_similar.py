"""Rows of similar prompts: lent under a calibration, labelled, and never where exact answers are due."""
import json
import os
import pathlib
import shutil
import subprocess

import pytest

from conftest import BINARY, MODEL, Server, cached, key_line

TOWNS = ["Aldham", "Birkby", "Corfe", "Dunster", "Eyam", "Fowey", "Grasby", "Hythe", "Ilam", "Jarrow", "Kelso", "Lydd"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]
GOODS = ["parcels", "letters", "chairs", "books", "bicycles", "lamps", "carpets"]
RULES = " ".join(
    f"Rule {i + 1}: {GOODS[i % 7]} for {TOWNS[i * 5 % 12]} leave on {DAYS[i * 3 % 5]} and cost {3 + i * 7 % 20} pounds; "
    f"the driver calls {TOWNS[i * 7 % 12]} before noon if the road is closed." for i in range(36))


def head(clock="2026-11-03 08:15:42", code="4821"):
    return f"Current time: {clock}. Session 531207. The security code is {code}."


def ask(server, first_line, question="How much does a carpet cost?", key="none", salt="", max_tokens=16, **more):
    messages = [{"role": "system", "content": f"{first_line}\n\nYou work for a carrier. {RULES} {salt}"},
                {"role": "user", "content": question}]
    with server.client(key) as client:
        return client.chat.completions.create(model=client.models.list().data[0].id, messages=messages, temperature=0,
                                              max_tokens=max_tokens, extra_body=more)


def reuse(answer):
    return answer.model_extra["kvlink"]


def text(answer):
    return answer.choices[0].message.content


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """What a quick calibration wrote: the file, the report, and what it printed."""
    folder = tmp_path_factory.mktemp("calibrate")
    made, report = folder / "quick.json", folder / "quick.md"
    ended = subprocess.run([BINARY, "calibrate", "--model", MODEL, "--threads", "1", "--quick", "--pairs", "2", "--quiet",
                            "--out", str(made), "--report", str(report)], capture_output=True, text=True, timeout=600,
                           check=False)
    assert ended.returncode == 0, ended.stderr
    return made, report.read_text(), ended.stdout


@pytest.fixture(scope="module")
def open_calibration(quick, tmp_path_factory):
    """As if all classes of edits had passed: what is tested here holds whatever is lent."""
    calibration = json.loads(quick[0].read_text())
    calibration["classes"] = {name: {"trials": 500, "failures": 0} for name in ("values", "words", "passage", "many")}
    path = tmp_path_factory.mktemp("open") / "open.json"
    path.write_text(json.dumps(calibration))
    return str(path)


@pytest.fixture(scope="module")
def similar_server(tmp_path_factory, open_calibration):
    folder = tmp_path_factory.mktemp("similar")
    lines = [key_line(key, tenant) for key, tenant in [("key-a", "acme"), ("key-b", "other")]]
    (folder / "keys").write_text("\n".join(lines) + "\n")
    running = Server(folder / "log", "--similar", "on", "--calibration", open_calibration, "--api-keys",
                     str(folder / "keys"))
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def ask_similar(similar_server):
    def asked(first_line, **more):
        return ask(similar_server, first_line, **{"key": "key-a", **more})

    return asked


def run_serve(*options, binary=BINARY):
    return subprocess.run([binary, "serve", "--model", MODEL, "--port", "0", "--quiet", *options], capture_output=True,
                          text=True, timeout=300, check=False)


def test_without_a_calibration_it_does_not_start_and_says_how_to_get_one(tmp_path):
    # Away from the folder that ships one; its libraries stand beside it.
    elsewhere = tmp_path / "kvlink"
    shutil.copy(BINARY, elsewhere)
    for library in pathlib.Path(BINARY).resolve().parent.glob("*.so*"):
        (tmp_path / library.name).symlink_to(library)
    ended = run_serve("--similar", "on", binary=elsewhere)
    assert ended.returncode == 2
    assert "no calibration of" in ended.stderr
    assert "kvlink calibrate --model" in ended.stderr

    missing = tmp_path / "none.json"
    ended = run_serve("--similar", "on", "--calibration", str(missing))
    assert ended.returncode == 2
    assert f"cannot read '{missing}'" in ended.stderr


def test_a_calibration_of_another_model_is_refused(tmp_path):
    other = tmp_path / "other.json"
    other.write_text('{"format": "kvlink-calibration", "version": 1, "model_digest": "00ff"}')
    ended = run_serve("--similar", "on", "--calibration", str(other))
    assert ended.returncode == 2  # with which a service is not started again
    assert "is of model 00ff, not of" in ended.stderr


def test_another_clock_in_the_first_line_is_accepted_and_labelled(ask_similar):
    first = ask_similar(head())
    assert reuse(first)["similar"] == 0
    second = ask_similar(head(clock="2026-11-03 08:17:05"))
    assert reuse(second)["verdict"] == "accepted"
    assert reuse(second)["computed"] < 0.15 * second.usage.prompt_tokens
    assert reuse(second)["similar"] + reuse(second)["computed"] + cached(second) == second.usage.prompt_tokens
    assert 0.85 <= reuse(second)["mask_similarity"] <= 1


def test_an_exact_request_never_sees_approximate_rows(server, ask_similar):
    ask_similar(head(clock="2026-11-04 09:00:00"))
    line = head(clock="2026-11-04 09:31:27")
    assert reuse(ask_similar(line))["similar"] > 0
    exact = ask_similar(line, kvlink={"similar": "off"})
    assert reuse(exact)["similar"] == 0
    assert reuse(exact)["verdict"] is None
    # A shadow may have run some of its rows meanwhile: exactly.
    assert cached(exact) + reuse(exact)["computed"] == exact.usage.prompt_tokens
    reference = ask(server, line)
    assert text(exact) == text(reference)
    # Once more, from the exact rows.
    assert text(ask_similar(line, kvlink={"similar": "off"})) == text(reference)


def test_other_tenants_and_salts_get_no_donor(ask_similar):
    ask_similar(head(clock="2026-11-05 10:00:00"), salt="a")
    line = head(clock="2026-11-05 10:01:11")
    other = ask_similar(line, key="key-b", salt="a")
    assert (reuse(other)["similar"], cached(other)) == (0, 0)
    salted = ask_similar(line, salt="a", cache_salt="s")
    assert (reuse(salted)["similar"], cached(salted)) == (0, 0)
    assert reuse(ask_similar(line, salt="a"))["similar"] > 0


@pytest.mark.parametrize("option", [{"deterministic": True}, {"prompt_logprobs": 1}])
def test_what_needs_exact_numbers_switches_it_off(ask_similar, option):
    salt = "d" if "deterministic" in option else "p"
    ask_similar(head(clock="2026-11-06 11:00:00"), salt=salt)
    answer = ask_similar(head(clock="2026-11-06 11:02:13"), salt=salt, max_tokens=2, **option)
    assert reuse(answer)["similar"] == 0
    assert reuse(answer)["verdict"] is None


@pytest.mark.parametrize("code", ["7350", "1946", "60217"])
def test_an_answer_that_the_edit_decides_holds_the_new_fact(server, ask_similar, code):
    question = "What is the security code?"
    ask_similar(head(), question=question, salt="c")
    answer = ask_similar(head(code=code), question=question, salt="c")
    assert "4821" not in text(answer)
    if reuse(answer)["similar"] > 0:
        assert (code in text(answer)) == (code in text(ask(server, head(code=code), question=question, salt="c")))


def test_strict_asks_for_more_rows_before_it_accepts(ask_similar):
    ask_similar(head(clock="2026-11-07 12:00:00"), salt="t")
    answer = ask_similar(head(clock="2026-11-07 12:04:04"), salt="t", kvlink={"similar": "strict"})
    # Narrower than the server's policy: allowed. Accepted only after more rows agreed.
    assert reuse(answer)["verdict"] != "accepted"


def test_a_quick_calibration_opens_nothing_and_serve_takes_its_file(quick, tmp_path):
    made, report, printed = quick
    assert "open: none" in printed  # so few pairs prove nothing
    assert report.startswith("# Calibration of ")
    for chart in ("quick-kl.png", "quick-refused.png", "quick-ttft.png"):
        assert f"]({chart})" in report
        assert (made.parent / chart).read_bytes().startswith(b"\x89PNG")
    running = Server(tmp_path / "log", "--similar", "on", "--calibration", str(made))
    try:
        ask(running, head())
        answer = ask(running, head(clock="2026-11-08 13:00:00"))
        assert reuse(answer)["verdict"] in ("cluster_closed", "uncalibrated")
    finally:
        assert running.stop() == 0


def test_pairs_that_decide_are_usable_and_none_takes_the_donors_fact(tmp_path):
    report = tmp_path / "decisive.md"
    ended = subprocess.run([BINARY, "calibrate", "--model", MODEL, "--threads", "1", "--pairs", "1", "--classes", "values",
                            "--decisive", "3", "--no-noise", "--quiet", "--out", str(tmp_path / "decisive.json"),
                            "--report", str(report)], capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr
    line = next(line for line in ended.stdout.splitlines() if line.startswith("decisive: "))
    assert int(line.split()[1]) >= 3
    assert line.endswith("with the donor's fact: 0")
    assert "| code | given |" in report.read_text()


def test_the_default_models_calibration_is_found(tmp_path):
    running = Server(tmp_path / "log", "--similar", "on")
    assert running.stop() == 0


def test_policies_that_cannot_work_are_refused_at_the_start():
    ended = run_serve("--similar", "on", "--sharing", "off")
    assert ended.returncode == 2 and "needs --sharing exact" in ended.stderr
    ended = run_serve("--calibration", os.devnull)
    assert ended.returncode == 2 and "no effect with --similar off" in ended.stderr
