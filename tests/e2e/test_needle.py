"""Acceptance 9: a hundred security codes, each asked for behind a donor that says another one."""
import random

import pytest

from conftest import Server

CODES = 100
GOODS = ["parcels", "letters", "chairs", "books", "lamps", "carpets"]
# The start of the answer is given: behind it even a small model goes on with the code that it sees.
SAME, OTHER = "What is the code?\nAnswer: The security code is", "What are the rules for?\nAnswer: The rules of the depot are"


def prompt(number, code, question):
    """A text of its own per number, so that each prompt has exactly one donor."""
    rules = " ".join(f"Rule {i + 1} of depot {number}: {GOODS[(i + number) % 6]} for stop {(i * 5 + number) % 17} leave at "
                     f"{6 + i * 3 % 11} and cost {3 + (i * 7 + number) % 20} pounds." for i in range(14))
    return f"Session {number}. The security code is {code}.\n\nYou work for a carrier. {rules}\n\nQuestion: {question}"


def ask(server, text, similar="on"):
    answer = server.http.post("/v1/completions", json={"prompt": text, "temperature": 0, "max_tokens": 8,
                                                       "kvlink": {"similar": similar}})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    return body["choices"][0]["text"], body["kvlink"]


@pytest.fixture(scope="module")
def lending(tmp_path_factory):
    running = Server(tmp_path_factory.mktemp("needle") / "log", "--similar", "on")  # the calibration that ships
    yield running
    assert running.stop() == 0


def test_no_answer_holds_the_donors_code_and_each_holds_the_new_one_where_the_exact_one_does(lending):
    source = random.Random(9023)
    accepted = usable = 0
    for number in range(CODES):
        old, new = (str(code) for code in source.sample(range(1000, 10000), 2))
        # Every second donor was asked the same, so that its last rows hold the old answer.
        ask(lending, prompt(number, old, SAME if number % 2 else OTHER))
        text, reuse = ask(lending, prompt(number, new, SAME))
        exact, exact_reuse = ask(lending, prompt(number, new, SAME), similar="off")
        assert exact_reuse["similar"] == 0
        accepted += reuse["similar"] > 0
        usable += new in exact
        assert old not in text or old in exact, f"{number}: {text!r} holds the donor's {old}; {reuse}"
        assert new in text or new not in exact, f"{number}: {text!r} misses {new}, exactly {exact!r}; {reuse}"
    # With reuse off, or a model that names no code, nothing would be shown.
    print(f"accepted {accepted}, the exact answer holds the code {usable} of {CODES}")
    assert accepted >= CODES // 3
    assert usable >= CODES // 2
