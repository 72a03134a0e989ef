"""Which files and which bytes a fingerprint of weights has."""

import json
import os
from pathlib import Path

import pytest

from kvring.weights import look_at_weights

WHOLE_BYTES = 8 << 20


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


@pytest.mark.parametrize("is_portable", [False, True])
@pytest.mark.parametrize(
    "name", ["text_encoder/model.safetensors", "a/b/model.bin", "text_encoder/config.json"]
)
def test_subdirectories_count_where_no_weights_are_on_top(
    model: Path, name: str, *, is_portable: bool
) -> None:
    plain = now(model, is_portable=is_portable)
    put(model / name, b"a checkpoint of a training")
    assert now(model, is_portable=is_portable) == plain
    (model / "model.safetensors").unlink()
    seen = {now(model, is_portable=is_portable)}
    put(model / name, b"another")
    assert len(seen | {now(model, is_portable=is_portable)}) == 2


@pytest.mark.parametrize(
    "name", ["generation_config.json", "tokenizer_config.json", "tokenizer.json", "README.md"]
)
def test_what_computes_no_kv_does_not_count(model: Path, name: str) -> None:
    plain = now(model)
    put(model / name, b"{}")
    assert now(model) == plain


def test_the_same_files_in_other_subdirectories_are_others(model: Path, tmp_path: Path) -> None:
    for name in ("one", "other"):
        put(tmp_path / name / name / "model.safetensors", b"weights")
    assert now(tmp_path / "one", is_portable=True) != now(tmp_path / "other", is_portable=True)


@pytest.mark.parametrize("is_portable", [False, True])
def test_a_snapshot_of_a_hub_is_its_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_portable: bool
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--org--name"
    snapshot = repository / "snapshots" / "0a1b"
    put(repository / "refs" / "main", b"0a1b")
    put(repository / "blobs" / "sum", b"weights")
    snapshot.mkdir(parents=True)
    file = snapshot / "model.gguf"
    file.symlink_to("../../blobs/sum")
    for _ in range(2):
        assert now("org/name", is_portable=is_portable) == "0a1b"
        assert now(snapshot, is_portable=is_portable) == "0a1b"
        # Two files of one snapshot may be two models.
        assert now(file, is_portable=is_portable) == "0a1b/model.gguf"
        # As a new download does.
        os.utime(file, (1, 1))
    (tmp_path / "link").symlink_to(snapshot)
    assert now(tmp_path / "link", is_portable=is_portable) == "0a1b"
    monkeypatch.chdir(snapshot)
    assert now(".", is_portable=is_portable) == "0a1b"


def test_no_name_is_not_the_working_directory(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model)
    assert now("") == ""
    assert now(".") != ""


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
