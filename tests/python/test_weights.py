"""Which files and which bytes a fingerprint of weights has."""

import errno
import json
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from kvring.weights import look_at_weights, weights_of

WHOLE_BYTES = 8 << 20
REVISION = "0a1b" * 10


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    put(directory / "model.safetensors", b"weights")
    put(directory / "config.json", b"{}")
    return directory


def put(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def safetensors(file: Path, changed: int | None = None) -> None:
    """Write 64 tensors, one of them with other bytes."""
    each = WHOLE_BYTES // 64
    places = {
        f"layer.{number}": {
            "dtype": "U8",
            "shape": [each],
            "data_offsets": [number * each, (number + 1) * each],
        }
        for number in range(64)
    }
    header = json.dumps({"__metadata__": {"format": "pt"}, **places}).encode()
    tensors = [bytes([number == changed]) * each for number in range(64)]
    put(file, len(header).to_bytes(8, "little") + header + b"".join(tensors))


def now(model: Path | str, *, is_portable: bool = False) -> str:
    return look_at_weights(str(model), is_portable=is_portable)


@pytest.mark.parametrize("is_portable", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "hf_quant_config.json",
        "quantize_config.json",
        "adapter_config.json",
        "preprocessor_config.json",
        "params.json",
    ],
)
def test_all_configuration_counts(model: Path, name: str, *, is_portable: bool) -> None:
    seen = {now(model, is_portable=is_portable)}
    for content in (b"one", b"another"):
        put(model / name, content)
        seen.add(now(model, is_portable=is_portable))
    assert len(seen) == 3
    assert "" not in seen


@pytest.mark.parametrize(
    "name",
    ["generation_config.json", "tokenizer_config.json", "tokenizer.json", "a/model.safetensors"],
)
def test_what_computes_no_kv_does_not_count(model: Path, name: str) -> None:
    plain = now(model)
    put(model / name, b"{}")
    assert now(model) == plain


@pytest.mark.parametrize("is_portable", [False, True])
def test_a_snapshot_of_a_hub_is_its_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_portable: bool
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--org--name"
    snapshot = repository / "snapshots" / REVISION
    put(repository / "refs" / "main", REVISION.encode())
    put(repository / "blobs" / "sum", b"weights")
    snapshot.mkdir(parents=True)
    file = snapshot / "model.gguf"
    file.symlink_to("../../blobs/sum")
    for _ in range(2):
        assert now("org/name", is_portable=is_portable) == REVISION
        assert now(snapshot, is_portable=is_portable) == REVISION
        # Two files of one snapshot may be two models.
        assert now(file, is_portable=is_portable) == f"{REVISION}/model.gguf"
        # As a new download does.
        os.utime(file, (1, 1))
    (tmp_path / "link").symlink_to(snapshot)
    assert now(tmp_path / "link", is_portable=is_portable) == REVISION
    monkeypatch.chdir(snapshot)
    assert now(".", is_portable=is_portable) == REVISION


def test_no_name_is_not_the_working_directory(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model)
    assert now("") == ""
    assert now(".") != ""


def test_what_cannot_be_looked_at_is_not_what_is_not_there(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", Mock(side_effect=OSError(errno.ESTALE, "stale")))
        with pytest.raises(OSError, match="stale"):
            now(model)
        assert weights_of(str(model)) == ""
        patch.setattr(Path, "iterdir", Mock(side_effect=PermissionError))
        assert now(model) == ""
    assert now(model) != ""


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "/no/such/model"])
def test_what_is_no_path_has_no_fingerprint(name: str) -> None:
    assert now(name) == ""


def test_each_tensor_is_in_the_portable_fingerprint(tmp_path: Path) -> None:
    file = tmp_path / "model" / "model.safetensors"
    seen = set()
    for changed in (None, *range(64)):
        safetensors(file, changed)
        seen.add(now(file.parent, is_portable=True))
    assert len(seen) == 65


def test_a_portable_fingerprint_is_that_of_a_copy(tmp_path: Path) -> None:
    for name in ("one", "copy"):
        safetensors(tmp_path / name / "model.safetensors")
        put(tmp_path / name / "config.json", b"{}")
    os.utime(tmp_path / "copy" / "model.safetensors", (1, 1))
    assert now(tmp_path / "one", is_portable=True) == now(tmp_path / "copy", is_portable=True)
    assert now(tmp_path / "one") != now(tmp_path / "copy")


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b'{"one": {}}',
        b'{"one": {"data_offsets": [0, "1"]}}',
        b'{"one": {"data_offsets": [0]}}',
        b"\xff",
    ],
)
def test_what_is_no_safetensors_has_samples_by_place(tmp_path: Path, header: bytes) -> None:
    file = tmp_path / "model.safetensors"
    seen = set()
    for last in (b"0", b"1"):
        put(file, len(header).to_bytes(8, "little") + header + bytes(100_000) + last)
        seen.add(now(file, is_portable=True))
    assert len(seen) == 2
    assert "" not in seen


def test_a_tensor_that_ends_after_its_file_costs_nothing(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    header = json.dumps({"one": {"data_offsets": [0, 1 << 60]}}).encode()
    put(file, len(header).to_bytes(8, "little") + header + b"weights")
    assert now(file, is_portable=True) != ""
