"""DonorIndex: who could lend rows, and what the forward check says."""

import numpy as np
import pytest

import kvlink


def prompt(seed, size=800):
    return np.random.default_rng(seed).integers(0, 5000, size)


def changed(tokens, position, token=4999):
    result = np.array(tokens)
    result[position] = token
    return result


@pytest.fixture
def index():
    index = kvlink.DonorIndex()
    for seed in range(5):
        assert index.add(prompt(seed))
    return index


def test_a_changed_token_near_the_head_costs_a_few_rows(index):
    match = index.find(changed(prompt(3), 5))
    assert match.found and match.reason == "none" and match.edit is not None
    assert match.saved_tokens > 600
    assert match.exact_tokens + match.saved_tokens + match.computed_tokens == 800
    assert 0.85 <= match.mask_similarity < 1
    for position, donor_position, rows in match.spans:
        np.testing.assert_array_equal(prompt(3)[donor_position : donor_position + rows],
                                      changed(prompt(3), 5)[position : position + rows])


def test_strangers_get_no_donor_and_equal_prompts_need_none(index):
    stranger = index.find(prompt(77))
    assert not stranger.found and stranger.reason == "no_donor" and stranger.saved_tokens == 0
    equal = index.find(prompt(2))
    assert equal.exact_tokens == 800 and equal.reason == "nothing_to_gain"


def test_a_lookup_changes_nothing(index):
    edited = changed(prompt(1), 9)
    first = index.find(edited)
    assert index.num_donors == 5
    assert index.find(edited) == first


def test_salts_and_tenants_see_their_own_donors_only(index):
    index.add(prompt(50), tenant="a", salt="x")
    edited = changed(prompt(50), 5)
    assert index.find(edited, tenant="a", salt="x").found
    assert not index.find(edited, tenant="a", salt="y").found
    assert not index.find(edited, tenant="b", salt="x").found
    assert not index.find(edited).found


def test_the_forward_check_refuses_where_too_little_is_alike(index):
    half = np.concatenate([prompt(60, 500), prompt(3)[400:600]])
    match = index.find(half)
    assert not match.found and match.reason in ("no_donor", "mask_mismatch", "few_rows", "too_much_work")


def test_a_budget_keeps_the_newest():
    index = kvlink.DonorIndex(budget_bytes=256 << 10)
    for seed in range(40):
        assert index.add(prompt(seed))
    assert 1 <= index.num_donors < 40
    assert index.find(changed(prompt(39), 5)).found
    assert not index.find(changed(prompt(0), 5)).found
    assert not index.add(np.zeros(100_000, np.int32))  # never fits


def test_models_whose_attention_does_not_permit_it_are_refused():
    with pytest.raises(kvlink.FailedPreconditionError, match="window"):
        kvlink.DonorIndex(attention=kvlink.AttentionTraits(sliding_window=512))


def test_a_closed_index_says_so(index):
    index.close()
    with pytest.raises(kvlink.FailedPreconditionError):
        index.find(prompt(1))


def test_options_stay_as_they_were_given():
    options = kvlink.SimilarOptions(wasted_compute_share=0.25, min_reused_rows=700)
    index = kvlink.DonorIndex(options=options)
    assert options.policy == kvlink.SimilarPolicy.OFF and options.wasted_compute_share == 0.25
    index.add(prompt(1))
    assert not index.find(changed(prompt(1), 400)).found  # and count: too few rows for 700
    assert kvlink.DonorIndex(options=kvlink.SimilarOptions()).add(prompt(1))
