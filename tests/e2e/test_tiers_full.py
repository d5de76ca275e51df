"""The whole of acceptance 1: a working set many times the RAM, from all three tiers, again and again."""
from test_tiers import nothing_left, redis, reference, run_through_all_tiers  # noqa: F401: fixtures


def test_many_facts_come_back_from_disk_and_redis_as_they_were(tmp_path, reference, redis):  # noqa: F811
    run_through_all_tiers(tmp_path, reference, redis, count=60, rounds=5, kv_memory="30M", cold_size="200M")
