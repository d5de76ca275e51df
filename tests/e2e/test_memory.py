"""A small budget: it is hard, one-off traffic does not flush what is hot, and sequences are not slots."""
import openai
import pytest

from conftest import Server, cached, filler

MIB = 1 << 20
BUDGET_MIB = 48  # about 2,080 tokens of the default model


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    running = Server(tmp_path_factory.mktemp("small") / "log", "--max-seqs", "4", kv_memory=f"{BUDGET_MIB}M")
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def ask(small):
    client = small.client()
    model = client.models.list().data[0].id

    def send(*messages, max_tokens=2):
        roles = ["system", "user"] if len(messages) == 2 else ["user"]
        return client.chat.completions.create(
            model=model, temperature=0, max_tokens=max_tokens,
            messages=[{"role": role, "content": text} for role, text in zip(roles, messages)])

    return send


def test_a_prompt_of_more_than_the_budget_is_refused_with_the_figures_and_others_go_on(small, ask):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(filler(3300, "three budgets"))
    tokens = int(small.metric("kvlink_blocks")) * 32
    assert 1900 < tokens < 2200
    assert str(tokens) in refused.value.message or f"{tokens - 1}" in refused.value.message, refused.value.message
    assert ask("Say hello.").usage.completion_tokens > 0


def test_resident_memory_stays_within_the_budget_and_a_stated_slack(small, ask):
    ask("A first answer, so that everything but KV is in memory.")
    before = small.resident_bytes()
    for i in range(12):  # four budgets
        ask(filler(600, f"resident {i}"))
    assert small.metric("kvlink_blocks", state="free") * 32 < 1000  # the budget was used up
    assert small.resident_bytes() - before < (BUDGET_MIB + 48) * MIB


def test_one_off_prompts_do_not_flush_a_hot_one(ask):
    policy = filler(400, "hot policy")
    for i in range(4):
        ask(policy, f"Question {i}?")
    for i in range(40):  # eight budgets
        ask(filler(400, f"one-off {i}"))
    assert cached(ask(policy, "Question 5?")) >= 400


# The rest needs room: what is evicted must not be for want of a sequence.
def test_short_calls_do_not_push_a_long_chat_out_of_its_slot(chat):
    long_chat = filler(900, "long chat")
    prompt_tokens = chat(long_chat, max_tokens=2).usage.prompt_tokens
    for i in range(20):
        chat(f"Short call {i}.", max_tokens=2)
    assert cached(chat(long_chat, max_tokens=2)) >= prompt_tokens - 1


def test_one_prompt_more_than_sequences_in_turn_still_hits(chat):
    prompts = [filler(60, f"turn {i}") for i in range(17)]  # 16 sequences
    for prompt in prompts:
        chat(prompt, max_tokens=2)
    for prompt in prompts:
        again = chat(prompt, max_tokens=2)
        assert cached(again) == again.usage.prompt_tokens - 1
