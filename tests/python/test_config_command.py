"""`kvring config`, `info` and `usage`."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvring.cli import main
from tests.python.conftest import Client, make_key, pattern
from tests.support.adapter_spec import adapter_spec
from tests.support.two_nodes import shared_spec


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Run a command that goes well, and return what it prints."""
    capsys.readouterr()
    assert main([*map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_the_json_is_what_lmcache_takes(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "config", "/mnt/nvme/kvring", "500GiB", "--json")
    # The tests with a real server give it this.
    assert json.loads(text) == adapter_spec("plugin", Path("/mnt/nvme/kvring"), "500GiB")


def test_the_whole_command_holds_the_json(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--option", "ttl=1d", "--option", "io_threads=2", "--option", 'quotas={"m": "1GiB"}')
    text = printed(
        capsys, "config", "/mnt/nvme/kvring", "500GiB", "--type", "native_plugin", *options
    )
    block, command, engine = text.split("\n\n")
    words = shlex.split(command)
    assert words[:2] == ["lmcache", "server"]
    spec = json.loads(words[words.index("--l2-adapter") + 1])
    assert spec == json.loads(block)
    assert (spec["module_path"], spec["class_name"]) == ("kvring", "Connector")
    parameters = spec["adapter_params"]
    assert (parameters["ttl"], parameters["io_threads"]) == ("1d", 2)
    assert parameters["quotas"] == {"m": "1GiB"}
    *_, name, transfer = shlex.split(engine)
    assert (name, json.loads(transfer)["kv_role"]) == ("--kv-transfer-config", "kv_both")
    # Under a killed server a step would wait 600 s, and end in an AssertionError.
    assert json.loads(transfer)["kv_load_failure_policy"] == "recompute"
    assert json.loads(transfer)["kv_connector_extra_config"]["lmcache.mp.mq_timeout"] == 30


@pytest.mark.parametrize(
    ("url", "tier"),
    [
        ("redis://10.0.0.5", {"type": "resp", "host": "10.0.0.5", "port": 6379}),
        ("valkey://cache-1.local:7000/", {"type": "resp", "host": "cache-1.local", "port": 7000}),
        (
            "s3://kv.s3.eu-central-1.amazonaws.com?region=eu-central-1",
            {
                "type": "s3",
                "s3_endpoint": "s3://kv.s3.eu-central-1.amazonaws.com",
                "s3_region": "eu-central-1",
            },
        ),
        ("file:///mnt/shared", {"type": "fs", "base_path": "/mnt/shared"}),
        ("file:///mnt/of%20all", {"type": "fs", "base_path": "/mnt/of all"}),
    ],
)
def test_a_shared_tier_stands_behind_the_store(
    capsys: pytest.CaptureFixture[str], url: str, tier: dict[str, Any]
) -> None:
    text = printed(capsys, "config", "/mnt/nvme/kvring", "500GiB", "--shared", url)
    block, command, _ = text.split("\n\n")
    words = shlex.split(command)
    spec = json.loads(words[words.index("--l2-adapter") + 1])
    assert spec == json.loads(block) == shared_spec(Path("/mnt/nvme/kvring"), tier, "500GiB")


def test_options_of_a_shared_tier_go_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    options = {"shared_load_deadline_ms": 900, "shared_buffer": "4GiB"}
    words = [word for name, one in options.items() for word in ("--option", f"{name}={one}")]
    arguments = ("/mnt/nvme/kvring", "500GiB", "--shared", "redis://host", *words, "--json")
    tier = {"type": "resp", "host": "host", "port": 6379}
    expected = shared_spec(Path("/mnt/nvme/kvring"), tier, "500GiB", **options)
    assert json.loads(printed(capsys, "config", *arguments)) == expected


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ("--systemd", ["RequiresMountsFor=/mnt/nvme/kvring /mnt/shared"]),
        ("--docker", ["--mount type=bind,source=/mnt/shared,target=/mnt/shared"]),
        (
            "--kubernetes",
            ['- {name: shared, mountPath: "/mnt/shared"}', 'path: "/mnt/shared", type: Directory'],
        ),
    ],
)
def test_a_service_has_the_directory_that_nodes_share(
    capsys: pytest.CaptureFixture[str], form: str, told: list[str]
) -> None:
    arguments = ("/mnt/nvme/kvring", "500GiB", "--shared", "file:///mnt/shared", form)
    text = printed(capsys, "config", *arguments)
    assert all(line in text for line in told), text


def test_the_command_of_vllm_has_the_tier(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("/mnt/nvme/kv-{dp_rank}", "500GiB", "--option", "ttl=1d", "--l1-size-gb", "10")
    text = printed(capsys, "config", *arguments, "--for", "vllm")
    block, command = text.split("\n\n")
    assert shlex.split(command)[:3] == ["vllm", "serve", "MODEL"]
    spec = json.loads(shlex.split(command)[-1])
    assert spec == json.loads(block)
    assert main(["config", *arguments, "--for", "vllm", "--json"]) == 0
    ended = capsys.readouterr()
    assert json.loads(ended.out) == spec
    assert "must hold the longest prefix as a whole" in ended.err
    assert spec["kv_connector"] == "OffloadingConnector"
    extra = spec["kv_connector_extra_config"]
    assert (extra["spec_name"], extra["cpu_bytes_to_use"]) == ("TieringOffloadingSpec", 10 << 30)
    # The tests with vLLM's own factory give it this.
    assert extra["secondary_tiers"] == [
        {
            "type": "KvringTier",
            "module_path": "kvring.vllm",
            "path": "/mnt/nvme/kv-{dp_rank}",
            "capacity": "500GiB",
            "ttl": "1d",
        }
    ]


LLAMA_8B = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
DEEPSEEK_V3 = {
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "max_position_embeddings": 163840,
}
HYBRID = {"layer_types": ["linear_attention"] * 24 + ["full_attention"] * 8, "head_dim": 256}


@pytest.mark.parametrize(
    ("model", "arguments", "told"),
    [
        (LLAMA_8B, "", "131,072 tokens of 128.0 KiB (16 bits) are 16.0 GiB, which --l1-size-gb 64"),
        (LLAMA_8B, "--l1-size-gb 15.9", "16.0 GiB: longer prefixes than --l1-size-gb 15.9 holds"),
        (LLAMA_8B, "--l1-size-gb 16", "are 16.0 GiB, which --l1-size-gb 16 holds"),
        (LLAMA_8B, "--l1-size-gb 3 --max-model-len 32768", "write --l1-size-gb 4 or a smaller"),
        (DEEPSEEK_V3, "", "163,840 tokens of 68.6 KiB (16 bits) are 10.7 GiB, which"),
        # As of a model that sees pictures, with layers that have states.
        ({"text_config": {**LLAMA_8B, **HYBRID}}, "--max-model-len 1024", "of 64.0 KiB"),
    ],
)
def test_the_least_primary_tier_of_vllm_is_told(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    model: dict[str, Any],
    arguments: str,
    told: str,
) -> None:
    (path := tmp_path / "config.json").write_text(json.dumps(model), encoding="utf-8")
    for place in (tmp_path, path):
        command = f"config /mnt/nvme/kvring 500GiB --for vllm --model {place} {arguments}"
        assert main(command.split()) == 0
        ended = capsys.readouterr()
        assert told in ended.err
        assert ("kvring config: warning: " in ended.err) is ("holds are not loaded" in ended.err)
        assert "vllm serve" in ended.out


def test_a_model_that_tells_too_little_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (path := tmp_path / "config.json").write_text('{"num_hidden_layers": 2}', encoding="utf-8")
    command = ["config", "/mnt/nvme/kvring", "500GiB", "--for", "vllm", "--model", str(path)]
    assert main(command) == 2
    assert "'num_attention_heads' is not told" in capsys.readouterr().err
    path.write_text("[]", encoding="utf-8")
    assert main(command) == 2
    assert "cannot read a config.json" in capsys.readouterr().err


def test_the_command_of_sglang_has_the_backend(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "config", "/mnt/nvme/kvring", "500GiB", "--for", "sglang")
    block, command = text.split("\n\n")
    words = shlex.split(command)
    assert words[words.index("--hicache-storage-backend") + 1] == "dynamic"
    spec = json.loads(words[words.index("--hicache-storage-backend-extra-config") + 1])
    assert spec == json.loads(block)
    assert (spec["module_path"], spec["class_name"]) == ("kvring.sglang", "HiCacheKvring")
    assert (spec["interface_v1"], spec["capacity"]) == (1, "500GiB")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
def test_systemd_takes_the_unit(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    unit = tmp_path / "lmcache.service"
    text = printed(capsys, "config", "/mnt/nvme/kvring", "500GiB", "--systemd")
    # The user and the program need not be here.
    text = text.replace("User=lmcache", "User=root").replace("ExecStart=/", "ExecStart=-/")
    program = text.partition("ExecStart=-")[2].partition(" ")[0]
    unit.write_text(text.replace(program, "/bin/true"), encoding="utf-8")
    checked = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert str(unit) not in checked.stderr, checked.stderr
    assert "lmcache.service:" not in checked.stderr, checked.stderr


def test_the_seccomp_profile_allows_io_uring(capsys: pytest.CaptureFixture[str]) -> None:
    profile = json.loads(printed(capsys, "config", "--seccomp"))
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
    denied = {name for rule in profile["syscalls"] for name in rule["names"]}
    assert {"mount", "bpf", "kexec_load", "clone3"} <= denied
    assert not any(name.startswith("io_uring") for name in denied)


@pytest.mark.parametrize("content", ["[]", "{}", "no JSON", '{"syscalls": [1]}'])
def test_what_is_no_seccomp_profile_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str
) -> None:
    (base := tmp_path / "default.json").write_text(content, encoding="utf-8")
    assert main(["config", "--seccomp-base", str(base)]) == 2
    assert f"--seccomp-base {base}: it is no seccomp profile" in capsys.readouterr().err


PLACE = "/mnt/nvme/kvring 500GiB"
REFUSED = {
    "": "PATH and CAPACITY are needed",
    "/mnt/nvme/kvring": "PATH and CAPACITY are needed",
    "/mnt/nvme/kvring big": "capacity",
    f"{PLACE} --option ttl": "NAME=VALUE",
    f"{PLACE} --l1-size-gb nan": "'nan' is not finite",
    f"{PLACE} --l1-size-gb inf --for vllm": "not in the range",
    f"{PLACE} --option ttl={'[' * 100_000}": "ttl",
    f"{PLACE} --option tl=1d": "ttl",
    f"{PLACE} --type other": "other",
    f"{PLACE} --l1-size-gb 0": "0",
    # A shared tier that cannot be.
    f"{PLACE} --shared http://host": "'http://host' is not valid; write redis://",
    f"{PLACE} --shared redis://host:99999": "Port out of range",
    f"{PLACE} --shared redis://user:secret@host": "LMCACHE_RESP_PASSWORD",
    f"{PLACE} --shared redis://host?password=secret": "'redis://host' is not valid",
    f"{PLACE} --shared redis://[fd00::5]": "is not valid",
    f"{PLACE} --shared redis://$(id)": "is not valid",
    f"{PLACE} --shared s3://bucket.host?colour=red": "'s3://bucket.host' is not valid",
    f"{PLACE} --shared file:///mnt/kv#1": "is not valid",
    f"{PLACE} --shared redis://host --option shared_buffer=much": "'shared_buffer' = 'much'",
    f"{PLACE} --shared redis://host --option shared_load_deadline_ms=0": "1 to 600000",
    f"{PLACE} --shared redis://host --option shared_tea=1": "shared tier are: shared_tier, ",
    f"{PLACE} --shared redis://host --type native_plugin": "goes with --type plugin",
    f"{PLACE} --shared redis://host --for sglang": "of LMCache's server",
    # What is not for these programs.
    f"{PLACE} --for vllm --docker": "--for vllm",
    f"{PLACE} --for sglang --systemd": "--for sglang",
    f"{PLACE} --for sglang --kubernetes": "--for sglang",
    f"{PLACE} --for sglang --huge-pages": "--for sglang",
    f"{PLACE} --for vllm --type plugin": "--for vllm",
    f"{PLACE} --for sglang --option capcity=1": "capcity",
    f"{PLACE} --model /": "go with --for vllm",
    f"{PLACE} --for vllm --max-model-len 9": "goes with --model",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_does_not_fit_is_named(capsys: pytest.CaptureFixture[str], arguments: str) -> None:
    assert main(["config", *arguments.split()]) == 2
    ended = capsys.readouterr()
    assert REFUSED[arguments] in ended.err
    assert (ended.out, "secret" in ended.err) == ("", False)


def test_info_of_a_store_in_use_and_after(
    capsys: pytest.CaptureFixture[str], client: Client, store_directory: Path
) -> None:
    client.store({make_key(number): pattern(5000, number) for number in range(7)})
    client.store({make_key(1, salt="tenant"): pattern(100, 1)})
    before: dict[str, Any] = json.loads(printed(capsys, "info", store_directory, "--json"))
    assert (before["keys"], before["stored_bytes"]) == (8, 35_100)
    assert before["allocated_bytes"] == 7 * 8192 + 4096
    assert before["namespaces"] == 2
    assert before["layout"] == "extents"
    assert before["holder_process_id"] == os.getpid()
    assert not before["is_closed_in_order"]
    assert before["capacity_bytes"] == client.stat("capacity_bytes")
    blocks = sum(file.stat().st_blocks for file in store_directory.iterdir())
    # Not the chunks alone: data files are made ahead of need.
    assert before["taken_bytes"] == blocks * 512 > before["allocated_bytes"]
    assert f"process {os.getpid()}" in printed(capsys, "info", store_directory)
    client.connector.close()
    after = json.loads(printed(capsys, "info", store_directory, "--json"))
    assert (after["holder"], after["is_closed_in_order"]) == (None, True)
    assert after["capacity_bytes"] is None
    assert after["store_id"] == before["store_id"]
    assert "none; closed cleanly" in printed(capsys, "info", store_directory)


def test_usage_is_by_namespace(
    capsys: pytest.CaptureFixture[str], client: Client, store_directory: Path
) -> None:
    client.store({make_key(number): pattern(5000, number) for number in range(7)})
    client.store({make_key(1, salt="tenant"): pattern(100, 1), "other": pattern(1, 1)})
    assert client.load(make_key(1), 5000) is not None
    client.connector.close()
    document = json.loads(printed(capsys, "usage", store_directory, "--json"))["namespaces"]
    model = make_key(0).partition("@")[0]
    assert next(iter(document)) == model
    assert (document[model]["keys"], document[model]["allocated_bytes"]) == (7, 7 * 8192)
    assert document[model]["uses"] == 1
    assert document[f"{model}@tenant"]["stored_bytes"] == 100
    assert document[""]["keys"] == 1
    shown = printed(capsys, "usage", store_directory)
    assert f"{model}@tenant" in shown
    assert "56.0 KiB" in shown


@pytest.mark.parametrize("arguments", [["usage"], ["ls"]])
def test_a_reader_that_has_enough_ends_a_command(
    client: Client, store_directory: Path, arguments: list[str]
) -> None:
    client.store({make_key(number): pattern(1, number) for number in range(3000)})
    client.connector.close()
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "kvring", *arguments, str(store_directory)]
    ended = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (0, "")
