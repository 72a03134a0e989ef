"""What LMCache's own file adapters have written, served by kvring."""

from pathlib import Path

import pytest

pytest.importorskip("lmcache", reason="LMCache is not installed (make lmcache)")

from kvring.cli import main
from tests.python.lmcache.adapter_driver import AdapterDriver, make_key, random_bytes
from tests.support.adapter_spec import adapter_spec

pytestmark = pytest.mark.lmcache


@pytest.mark.parametrize("type_name", ["fs_native", "fs"])
@pytest.mark.parametrize("adapter_name", ["plugin", "native_plugin"])
def test_all_chunks_of_lmcache_load_through_kvring(
    tmp_path: Path, type_name: str, adapter_name: str
) -> None:
    source, target = tmp_path / "lmcache", tmp_path / "kvring"
    keys = [
        make_key(number, model, salt)
        for number in range(8)
        for model in ("meta-llama/Llama-3.1-8B-Instruct", "plain")
        for salt in ("", "tenant a")
    ]
    contents = [random_bytes(4096 + 7 * number, number) for number in range(len(keys))]
    writer = AdapterDriver({"type": type_name, "base_path": str(source)})
    assert writer.store(keys, contents)
    writer.close()
    assert main(["adopt", str(source), str(target), "--capacity=64MiB"]) == 0
    reader = AdapterDriver(adapter_spec(adapter_name, target, "64MiB"))
    assert reader.lookup(keys) == [True] * len(keys)
    assert reader.load_bytes(keys, [len(content) for content in contents]) == contents
    reader.close()
