"""`kvring selftest` against the HTTP server of the real vLLM, on processors."""

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from kvring.cli import main
from kvring.cli.programs import vllm
from tests.python.conftest import REPOSITORY
from tests.python.engines.cpu.processes import Processes
from tests.support.machines import KILLED_WITH_PARENT, free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SERVER = ("uvicorn", "prometheus_fastapi_instrumentator", "model_hosting_container_standards")
START_DEADLINE_S = 400.0
BLOCK_TOKENS = 32


@pytest.fixture
def model(models: list[Path]) -> Path:
    """One whose tokens have names, as the HTTP server wants them."""
    if missing := [name for name in SERVER if find_spec(name) is None]:
        pytest.skip(f"vLLM's HTTP server needs {missing[0]} (make engines)")
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    names = {f"w{number}": number for number in range(4096)}
    tokenizer = Tokenizer(WordLevel(names, unk_token="w0"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(models[0])
    return models[0]


@contextmanager
def serving(model: Path, store: Path, log_path: Path) -> Iterator[str]:
    """Run the server; yield its address when it answers."""
    (port,) = free_ports(1)
    spec = vllm({"path": str(store), "capacity": "256MiB"}, 0.25).spec
    # vLLM has no worker of its own for processors.
    more = {"spec_name": "HostTieringSpec", "spec_module_path": "tests.support.host_copies"}
    spec["kv_connector_extra_config"] |= more
    options = {
        "model": model,
        "port": port,
        "host": "127.0.0.1",
        "dtype": "float32",
        "max-model-len": 1024,
        "block-size": BLOCK_TOKENS,
        "kv-transfer-config": json.dumps(spec),
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    command = [*KILLED_WITH_PARENT, sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    path = filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")])
    environment = {
        "PYTHONPATH": os.pathsep.join(path),
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    environment |= {f"VLLM_{name}_ROOT": str(log_path.parent) for name in ("CONFIG", "CACHE")}
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*command, *words, "--enforce-eager"],
            env=os.environ | environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        deadline_s = time.monotonic() + START_DEADLINE_S
        while True:
            assert process.poll() is None, log_path.read_text(errors="replace")[-4000:]
            assert time.monotonic() < deadline_s, log_path.read_text(errors="replace")[-4000:]
            with suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5):
                break
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()


def test_a_vllm_finds_its_prompt_in_kvring(
    processes: Processes, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del processes
    store = tmp_path / "store"
    (port,) = free_ports(1)
    assert main(["selftest", "--vllm", f"http://127.0.0.1:{port}", str(store)]) == 1
    assert "no vLLM answers at" in capsys.readouterr().err
    assert main(["selftest", "--vllm", f"http://127.0.0.1:{port}"]) == 2
    assert "goes with the PATH" in capsys.readouterr().err
    with serving(model, store, tmp_path / "log") as url:
        assert main(["selftest", "--vllm", url, str(store), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["stored_chunks"] == told["tokens"] // BLOCK_TOKENS
        # The last token of a prompt is computed always.
        assert told["loaded_chunks"] >= (told["tokens"] - 1) // BLOCK_TOKENS
        assert told["is_equal"]
        assert all(step["ms"] > 0 for step in told["steps"])
        assert main(["selftest", "--vllm", url, str(tmp_path)]) == 1
        assert "there is no store in" in capsys.readouterr().err
