"""examples/gpu without a GPU: it says why it is skipped, and vLLM takes what it is given."""

import ast
import dataclasses
import inspect
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed (make engines)")

import torch
from vllm.config.kv_transfer import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

from examples.gpu import __main__ as demo
from examples.gpu import stage


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: run python -m examples.gpu")
def test_without_a_gpu_it_is_skipped_with_the_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["examples.gpu"])
    assert demo.main() == 0
    told = capsys.readouterr().out
    assert told == "examples/gpu: skipped: there is no GPU that torch can use here\n"


@pytest.mark.parametrize("tier", ["kvring", "vLLM's fs"])
def test_vllm_takes_the_configuration(tmp_path: Path, tier: str) -> None:
    config = KVTransferConfig(**demo.transfer_of(tier, tmp_path, 16, "1GiB"))
    (one,) = config.kv_connector_extra_config["secondary_tiers"]
    name = {"kvring": "KvringTier", "vLLM's fs": "FileSystemTierManager"}[tier]
    assert SecondaryTierFactory.get_tier_class(one).__name__ == name


def test_vllm_knows_the_arguments_of_the_engine() -> None:
    tree = ast.parse(inspect.getsource(stage))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    (call,) = [node for node in calls if isinstance(node.func, ast.Name) and node.func.id == "LLM"]
    given = {keyword.arg for keyword in call.keywords}
    assert "kv_transfer_config" in given
    assert given <= {field.name for field in dataclasses.fields(EngineArgs)}
