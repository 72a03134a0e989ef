"""The image and the manifests that it is named in: what validators say, and what each refers to."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from kvring.cli import main
from kvring.cli.deployment import IMAGE, PROFILE_NAME
from kvring.cli.kubernetes import METRICS_PORT
from kvring.cli.programs import lmcache
from tests.python.conftest import REPOSITORY

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed (make build)")
validator = pytest.importorskip("kubernetes_validate", reason="it is not installed (make build)")

DOCKERFILE = REPOSITORY / "deploy" / "Dockerfile"
DIRECTORY, DEVICE = "/mnt/nvme/kvring", "/dev/disk/by-id/nvme-none"
SERVERS = {
    "a directory": [DIRECTORY, "500GiB"],
    "several": [DIRECTORY, "/mnt/nvme1/kvring", "500GiB"],
    "a device": [DEVICE, "all"],
    "both": [DIRECTORY, DEVICE, "500GiB,1TiB"],
    "words": ["/mnt/a b {c}'\"$(HOME)#é", "500GiB"],
    "native": [DIRECTORY, "500GiB", "--type=native_plugin"],
    "shared": [DIRECTORY, "500GiB", "--shared=file:///mnt/shared"],
    "redis": [DIRECTORY, "500GiB", "--shared=redis://cache"],
    "huge pages": [DIRECTORY, "500GiB", "--huge-pages", "--l1-size-gb=2.5"],
    "own port": [DIRECTORY, "500GiB", "--option", "metrics_port=9500"],
    "no port": [DIRECTORY, "500GiB", "--option", "metrics_port=off"],
}
ENGINES = {
    "a directory": [DIRECTORY, "500GiB"],
    "ranks": ["/mnt/nvme/kv-{dp_rank}", "500GiB", "--l1-size-gb=0.5"],
    "several": [DIRECTORY, "/mnt/nvme1/kvring", "500GiB,1TiB"],
    "a device": [DEVICE, "all"],
}


def documents(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    """Return what is printed, each found right by the schemas of a Kubernetes."""
    assert main(["config", *arguments, "--kubernetes"]) == 0
    return validated(capsys.readouterr().out)


def validated(text: str) -> list[dict[str, Any]]:
    found = list(yaml.safe_load_all(text))
    for document in found:
        for version in ("1.28", validator.latest_version()):
            validator.validate(document, version, strict=True)
    return found


def pod_of(document: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a pod and its container; what the schemas do not tell is right with them."""
    spec = document["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"] == labels
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == IMAGE
    # Else the pod is the first to be killed where memory is short.
    assert container["resources"]["requests"] == container["resources"]["limits"]
    claims = spec.get("volumeClaimTemplates", [])
    blocks = {
        claim["metadata"]["name"] for claim in claims if claim["spec"]["volumeMode"] == "Block"
    }
    files = {volume["name"] for volume in pod.get("volumes", [])}
    files |= {claim["metadata"]["name"] for claim in claims} - blocks
    assert {mount["name"] for mount in container.get("volumeMounts", [])} == files
    assert {device["name"] for device in container.get("volumeDevices", [])} == blocks
    return pod, container


def probes_of(container: dict[str, Any]) -> Iterator[tuple[str, Any, str]]:
    for name in ("startup", "liveness", "readiness"):
        if probe := container.get(f"{name}Probe"):
            yield name, probe["httpGet"]["port"], probe["httpGet"]["path"]


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_runs_on_each_node(capsys: pytest.CaptureFixture[str], name: str) -> None:
    arguments = SERVERS[name]
    (document,) = documents(capsys, *arguments)
    assert document["kind"] == "DaemonSet"
    pod, container = pod_of(document)
    # Kubernetes takes $$ for a $ that begins no variable.
    words = [word.replace("$$(", "$(") for word in container["command"]]
    options = json.loads(words[words.index("--l2-adapter") + 1])["adapter_params"]
    paths = options["path"] if isinstance(options["path"], list) else [options["path"]]
    places = {volume["hostPath"]["path"]: volume["hostPath"]["type"] for volume in pod["volumes"]}
    shared = {"/mnt/shared": "Directory"} if name == "shared" else {}
    kinds = {path: "BlockDevice" if path == DEVICE else "Directory" for path in paths}
    assert places == kinds | shared
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == places.keys()
    security = container["securityContext"]
    assert security.get("privileged", False) == (DEVICE in paths)
    assert security.get("capabilities", {}).get("add") == (
        None if DEVICE in paths else ["IPC_LOCK"]
    )
    profile = {"type": "Localhost", "localhostProfile": PROFILE_NAME}
    assert pod["securityContext"]["seccompProfile"] == profile
    port = options["metrics_port"]
    expected = [("startup", 8080, "/healthcheck"), ("liveness", 8080, "/healthcheck")]
    if port != "off":
        expected.append(("readiness", port, "/healthz"))
    assert list(probes_of(container)) == expected
    assert port == {"own port": 9500, "no port": "off"}.get(name, METRICS_PORT)
    memory = {"memory": "72Gi"}
    if name == "huge pages":
        # 2.5 GiB, and a page.
        memory = {"memory": "8Gi", "hugepages-2Mi": "2562Mi"}
    assert container["resources"]["limits"] == memory


@pytest.mark.parametrize("name", ENGINES)
def test_a_vllm_finds_its_own_stores_again(capsys: pytest.CaptureFixture[str], name: str) -> None:
    document, service = documents(capsys, *ENGINES[name], "--for=vllm")
    assert (document["kind"], service["kind"]) == ("StatefulSet", "Service")
    assert document["spec"]["serviceName"] == service["metadata"]["name"]
    _, container = pod_of(document)
    words = container["command"]
    assert words[:3] == ["vllm", "serve", "MODEL"]
    assert {path for _, _, path in probes_of(container)} == {"/health"}
    claims = document["spec"]["volumeClaimTemplates"]
    storage = [claim["spec"]["resources"]["requests"]["storage"] for claim in claims]
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert (storage, mounts) == {
        "a directory": (["560Gi"], [DIRECTORY, "/dev/shm"]),
        "ranks": (["560Gi"], ["/mnt/nvme", "/dev/shm"]),
        "several": (["560Gi", "1137Gi"], [DIRECTORY, "/mnt/nvme1/kvring", "/dev/shm"]),
        "a device": (["1Gi"], ["/dev/shm"]),
    }[name]


def test_a_vllm_reaches_the_server_of_its_node() -> None:
    text = (REPOSITORY / "deploy" / "vllm-with-lmcache.yaml").read_text(encoding="utf-8")
    deployment, service = validated(text)
    assert (deployment["kind"], service["kind"]) == ("Deployment", "Service")
    pod, container = pod_of(deployment)
    assert (pod["hostNetwork"], pod["hostIPC"]) == (True, True)
    options = {"path": DIRECTORY, "capacity": "1GiB"}
    start = lmcache(options, 64, "plugin", huge_pages=False)
    assert container["command"] == start.commands[1]


def test_the_schemas_find_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", *SERVERS["a directory"], "--kubernetes"]) == 0
    text = capsys.readouterr().out
    with pytest.raises(validator.ValidationError):
        validated(text.replace("periodSeconds:", "periodSecond:"))


def test_the_image_is_the_one_that_is_named() -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")
    assert f"docker build --file deploy/Dockerfile --tag {IMAGE} ." in text
    pins = (REPOSITORY / "requirements" / "engines.txt").read_text(encoding="utf-8").splitlines()
    (vllm,) = (line for line in pins if line.startswith("vllm=="))
    assert f"vllm-openai:v{vllm.removeprefix('vllm==')}\n" in text
    copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ")]
    for source in (one for words in copied for one in words if "--from" not in " ".join(words)):
        assert (REPOSITORY / source).exists()
    if lint := shutil.which("hadolint"):
        subprocess.run([lint, DOCKERFILE], check=True, timeout=60)
    docker = shutil.which("docker")
    if (
        docker
        and subprocess.run([docker, "info"], capture_output=True, check=False).returncode == 0
    ):
        command = [docker, "build", "--check", "--file", str(DOCKERFILE), str(REPOSITORY)]
        subprocess.run(command, check=True, timeout=300)
    elif not lint:
        pytest.skip("there is neither hadolint (make build) nor a running docker")
