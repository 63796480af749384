"""Conversations in Redis: keys, values that cannot be read, and outages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.memory.made import said, texts
from tests.memory.redis_server import RedisServer
from traced_tools import ConfigurationError
from traced_tools.errors import ChatMemoryUnavailable, UnreadableConversation
from traced_tools.memory import RedisChatMemoryRepository

ALIKE = ("a:b", "a%3Ab", "*", "a\nb", "entries")


@pytest.fixture
def repository(redis_server: RedisServer) -> Iterator[RedisChatMemoryRepository]:
    with redis_server.client() as client:
        client.flushall()
    with RedisChatMemoryRepository(redis_server.url()) as repository:
        yield repository


def keys(server: RedisServer) -> list[str]:
    with server.client() as client:
        return sorted(key.decode() for key in client.keys("*"))


@pytest.mark.slow
def test_ids_and_owners_are_escaped_in_keys(redis_server: RedisServer, repository: RedisChatMemoryRepository) -> None:
    for name in ALIKE:
        repository.append(name, [said(name)], 0, principal=name, attributes={name: name})
    assert all(key.startswith("traced_tools:memory:") for key in keys(redis_server))
    assert "traced_tools:memory:conversation:a%3Ab" in keys(redis_server)
    assert "traced_tools:memory:conversation:a%253Ab" in keys(redis_server)


@pytest.mark.slow
def test_a_deleted_conversation_leaves_no_key(redis_server: RedisServer, repository: RedisChatMemoryRepository) -> None:
    for name in ALIKE:
        repository.append(name, [said(name)], 0, principal=name, attributes={name: name})
    for name in ALIKE:
        repository.delete(name, principal=name)
    assert keys(redis_server) == []


@pytest.mark.slow
def test_a_value_that_cannot_be_read_is_named_and_left_alone(
    redis_server: RedisServer, repository: RedisChatMemoryRepository
) -> None:
    repository.append("c-42", [said("a-secret-one"), said("a-secret-two")], 0)
    (entries,) = (key for key in keys(redis_server) if ":entries:" in key)
    with redis_server.client() as client:
        for broken in ("no JSON", "[1]", '["id", 1, "message", "{}"]', '["id", "x", [], 7]'):
            client.hset(entries, "2", broken)
            with pytest.raises(UnreadableConversation, match="entry 2 of the conversation 'c-42'"):
                repository.read("c-42")
            assert client.hget(entries, "2") == broken.encode()
        client.hdel(entries, "2")
        with pytest.raises(
            UnreadableConversation, match="entry 2 of the conversation 'c-42' cannot be read, it is mis"
        ):
            repository.read("c-42")
        assert texts(repository.read("c-42", limit=1)) == ["a-secret-one"]
        name = "traced_tools:memory:conversation:c-42"
        for broken in ("no JSON", '{"key": "k"}'):
            client.set(name, broken)
            for version in (0, 2):
                with pytest.raises(UnreadableConversation, match="of the conversation 'c-42'"):
                    repository.append("c-42", [said("three")], version)
            assert client.get(name) == broken.encode()


@pytest.mark.slow
def test_a_wrong_password_is_reported_without_it(redis_server: RedisServer) -> None:
    with RedisChatMemoryRepository(redis_server.url(password="a-secret")) as repository:
        with pytest.raises(ChatMemoryUnavailable, match="AuthenticationError") as caught:
            repository.append("c", [said("a-secret-text")], 0)
    assert "a-secret" not in str(caught.value) + repr(repository) + repr(caught.value.__context__)


def test_a_redis_that_is_down_is_reported_without_contents() -> None:
    with RedisChatMemoryRepository("redis://:a-secret@127.0.0.1:9/0") as repository:
        with pytest.raises(ChatMemoryUnavailable, match="ConnectionError") as caught:
            repository.append("c", [said("a-secret-text")], 0)
    assert "a-secret" not in str(caught.value) + repr(repository) + repr(caught.value.__context__)


def test_a_url_that_cannot_be_used_is_refused_without_showing_its_password() -> None:
    with pytest.raises(ConfigurationError, match="redis://host:6379/0") as caught:
        RedisChatMemoryRepository("http://:a-secret@127.0.0.1")
    assert "a-secret" not in str(caught.value) + repr(caught.value.__context__)


def test_a_missing_redis_py_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traced_tools.memory.redis.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'traced_tools\[redis\]'"):
        RedisChatMemoryRepository("redis://127.0.0.1:9/0")
