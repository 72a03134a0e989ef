"""Keys: LMCache's forms and any other text of up to 4096 bytes in UTF-8."""

from collections.abc import Callable

from tests.python.conftest import Client, make_key, pattern

HASH = "0x" + "5a" * 32
KEYS = {
    "plain": f"llama@00000001@0@{HASH}",
    "model with a slash": f"meta-llama/Llama-3.1-8B-Instruct@00000001@0@{HASH}",
    "salted": f"meta-llama/Llama-3.1-8B-Instruct@00000001@0@{HASH}@tenant",
    "longest salt": f"meta-llama/Llama-3.1-8B-Instruct@00000001@0@{HASH}@{'s' * 128}",
    "another rank": f"meta-llama/Llama-3.1-8B-Instruct@00000002@0@{HASH}",
    "another object group": f"meta-llama/Llama-3.1-8B-Instruct@00000001@1f@{HASH}",
    "long model": f"{'organisation/' * 100}model@00000001@0@{HASH}",
    "empty": "",
    "a space": " ",
    "one character": "k",
    "only separators": "@@@@",
    "a path upwards": "../../../etc/passwd",
    "an absolute path": "/dev/null",
    "control characters": "line\nbreak\ttab\r\x1b[0m",
    "a NUL": "before\0after",
    "only a NUL": "\0",
    "composed": "\u00e9",
    "decomposed": "e\u0301",
    "many scripts": "модель/模型/モデル/😀@00000001@0@" + HASH,
    "upper case": f"LLAMA@00000001@0@{HASH}",
    "trailing space": f"llama@00000001@0@{HASH} ",
    "4095 bytes": "k" * 4095,
    "4096 bytes": "k" * 4096,
    "4096 bytes that end differently": "k" * 4095 + "l",
    "4096 bytes of four-byte characters": "😀" * 1024,
    "4096 bytes of three-byte characters": "模" * 1365 + "k",
}


def contents(keys: dict[str, str]) -> dict[str, bytes]:
    return {key: pattern(4096 + seed, seed) for seed, key in enumerate(keys.values())}


def test_all_keys_are_told_apart_also_after_a_restart(
    client: Client, open_client: Callable[..., Client]
) -> None:
    chunks = contents(KEYS)
    assert len(chunks) == len(KEYS)
    client.store(chunks)
    assert {key: client.load(key, len(content)) for key, content in chunks.items()} == chunks
    client.connector.close()
    client = open_client()
    assert client.stat("keys") == len(chunks)
    assert client.exists(list(chunks)) == [True] * len(chunks)
    assert {key: client.load(key, len(content)) for key, content in chunks.items()} == chunks


def test_what_is_no_key_is_not_found(client: Client) -> None:
    """Prefixes, extensions and other forms of keys that are held are not held."""
    chunks = contents(KEYS)
    client.store(chunks)
    others = {key[:-1] for key in chunks} | {key.swapcase() for key in chunks}
    others |= {key + "@" for key in chunks if len(key) < 1000}
    others -= set(chunks)
    assert len(others) > len(chunks)
    assert client.exists(list(others)) == [False] * len(others)


def test_equal_keys_from_different_objects_are_one_key(client: Client) -> None:
    class Text(str):
        """Some callers pass subclasses."""

        __slots__ = ()

    client.store({make_key(1): pattern(4096, 1)})
    assert client.exists([Text(make_key(1)), "".join(list(make_key(1)))]) == [True, True]


def test_a_key_twice_in_one_batch(client: Client) -> None:
    first, second = pattern(4096, 1), pattern(4096, 2)
    assert client.set(["key", "key"], [first, second])[1:] == (True, "", [True, True])
    assert client.load("key", 4096) == second
    memory = [bytearray(4096), bytearray(4096)]
    assert client.get(["key", "key"], memory).results == [True, True]
    assert memory == [second, second]
    assert client.exists(["key", "key"]) == [True, True]
    assert client.delete(["key", "key"]) == [True, True]
    assert client.stat("keys") == 0
