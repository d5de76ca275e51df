"""Keys decide whose blocks a request may find."""
import openai
import pytest

from conftest import cached, filler


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
