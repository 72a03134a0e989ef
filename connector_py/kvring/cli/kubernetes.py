"""Manifests for Kubernetes: LMCache's server on each node, or vLLM with stores of its own.

A server is a DaemonSet, since all engines of a node share its store. A vLLM with a store of its own
is a StatefulSet: a store has one owner, and a replica finds its own again by its claim.
"""

import json
import math
from pathlib import Path
from typing import Any, Final

from kvring._native import size_bytes
from kvring.cli.deployment import IMAGE, PROFILE_NAME, Places, is_device

__all__ = ["METRICS_PORT", "server_manifest", "vllm_manifest"]

METRICS_PORT: Final = 9400

_HEAD: Final = f"""# The image: docker build --file deploy/Dockerfile --tag {IMAGE} .
# On each node: kvring config --seccomp > /var/lib/kubelet/seccomp/{PROFILE_NAME}
apiVersion: apps/v1
"""
# Of processes and their libraries, beside what they have for KV.
_SERVER_GIB: Final = 8
_VLLM_GIB: Final = 32
# Beside the chunks: the file system, and min_free.
_MORE_VOLUME: Final = 1.1
_MORE_VOLUME_GIB: Final = 10
_GIB: Final = 1 << 30


def server_manifest(
    places: Places, command: list[str], memory_gb: float, options: dict[str, Any]
) -> str:
    """Return a manifest that runs LMCache's server on each node that is labelled for it.

    Args:
        places: What the container has of the node.
        command: Starts the server.
        memory_gb: Size of L1.
        options: Of the store.
    """
    # The control group of a container denies devices of a hostPath to all but privileged ones.
    security = "privileged: true" if places.devices else "capabilities: {add: [IPC_LOCK]}"
    # No directory is made where it is missing: where a mount is, it would lie on the root disk.
    kinds = [
        (path, "BlockDevice" if is_device(path) else "Directory")
        for path in (*places.store, *places.shared)
    ]
    names = [f"store-{number}" for number in range(len(places.store))] + ["shared"]
    mounts, volumes = "", ""
    for name, (path, kind) in zip(names, kinds, strict=False):
        mounts += f"\n            - {{name: {name}, mountPath: {_text(path)}}}"
        volumes += (
            f"\n        - name: {name}\n          hostPath: {{path: {_text(path)}, type: {kind}}}"
        )
    return f"""{_HEAD}kind: DaemonSet
metadata:
  name: lmcache
spec:
  selector:
    matchLabels: {{app: lmcache}}
  template:
    metadata:
      labels: {{app: lmcache}}
    spec:
      nodeSelector: {{lmcache: "true"}}
      # It copies from the GPUs of all pods of the node, and has none for itself. Leave the class
      # out where the cluster has none and the default runtime is NVIDIA's.
      runtimeClassName: nvidia
      hostNetwork: true
      hostIPC: true
      terminationGracePeriodSeconds: 60
      securityContext:
        seccompProfile: {{type: Localhost, localhostProfile: {PROFILE_NAME}}}
      containers:
        - name: lmcache
          image: {IMAGE}
          env:
            - {{name: NVIDIA_VISIBLE_DEVICES, value: all}}
          # Registered memory counts against the limit on locked memory, which IPC_LOCK lifts.
          securityContext:
            {security}
          resources:
{_resources(_server_memory(command, memory_gb))}
          startupProbe:
            httpGet: {{host: 127.0.0.1, port: 8080, path: /healthcheck}}
            periodSeconds: 5
            failureThreshold: 120
          livenessProbe:
            httpGet: {{host: 127.0.0.1, port: 8080, path: /healthcheck}}
            periodSeconds: 20
            timeoutSeconds: 10
            failureThreshold: 6{_readiness(options)}
          command:
{_words(command)}
          volumeMounts:{mounts}
      volumes:{volumes}"""


def _readiness(options: dict[str, Any]) -> str:
    """Have a node whose store is sick hold up a rollout; to start it again mends no drive."""
    port = options.get("metrics_port", "off")
    if port == "off":
        return ""
    return f"""
          # Not of liveness: to start the server again mends no drive.
          readinessProbe:
            httpGet: {{host: 127.0.0.1, port: {port}, path: /healthz}}
            periodSeconds: 10
            timeoutSeconds: 5"""


def vllm_manifest(
    places: Places, command: list[str], memory_gb: float, options: dict[str, Any]
) -> str:
    """Return a manifest that runs vLLM, each replica with a store of its own.

    Args:
        places: Where the container has the volumes of the store.
        command: Starts vLLM.
        memory_gb: Size of its primary tier.
        options: Of the store.
    """
    capacities = options["capacity"]
    if not isinstance(capacities, list):
        capacities = [capacities] * len(places.store)
    mounts: dict[str, list[str]] = {"volumeMounts": [], "volumeDevices": []}
    claims = ""
    for number, (path, capacity) in enumerate(zip(places.store, capacities, strict=True)):
        is_block = is_device(path)
        kind, where = ("volumeDevices", "devicePath") if is_block else ("volumeMounts", "mountPath")
        name = f"store-{number}"
        mounts[kind].append(f"{{name: {name}, {where}: {_text(_fixed(path))}}}")
        mode = "Block" if is_block else "Filesystem"
        claims += f"""
    - metadata: {{name: {name}}}
      spec:
        # Of local volumes, such as sig-storage-local-static-provisioner makes.
        storageClassName: local-nvme
        accessModes: [ReadWriteOncePod]
        volumeMode: {mode}
        resources: {{requests: {{storage: {_storage(capacity)}}}}}"""
    mounts["volumeMounts"].append("{name: shm, mountPath: /dev/shm}")
    lists = "".join(
        f"\n          {kind}:" + "".join(f"\n            - {one}" for one in ones)
        for kind, ones in mounts.items()
        if ones
    )
    memory = {"memory": f"{math.ceil(memory_gb) + _VLLM_GIB}Gi", "nvidia.com/gpu": "1"}
    return f"""{_HEAD}kind: StatefulSet
metadata:
  name: vllm
spec:
  serviceName: vllm
  replicas: 1
  selector:
    matchLabels: {{app: vllm}}
  template:
    metadata:
      labels: {{app: vllm}}
    spec:
      terminationGracePeriodSeconds: 60
      securityContext:
        seccompProfile: {{type: Localhost, localhostProfile: {PROFILE_NAME}}}
      containers:
        - name: vllm
          image: {IMAGE}
          securityContext:
            capabilities: {{add: [IPC_LOCK]}}
          resources:
{_resources(memory)}
          ports:
            - {{name: http, containerPort: 8000}}
          # Of vLLM: where the store is sick it computes, so no probe asks kvring's /healthz.
          startupProbe:
            httpGet: {{port: http, path: /health}}
            periodSeconds: 10
            failureThreshold: 180
          livenessProbe:
            httpGet: {{port: http, path: /health}}
            periodSeconds: 20
            timeoutSeconds: 10
            failureThreshold: 6
          readinessProbe:
            httpGet: {{port: http, path: /health}}
            periodSeconds: 10
            timeoutSeconds: 5
          command:
{_words(command)}{lists}
      volumes:
        - name: shm
          emptyDir: {{medium: Memory, sizeLimit: {math.ceil(memory_gb) + _VLLM_GIB // 2}Gi}}
  volumeClaimTemplates:{claims}
---
apiVersion: v1
kind: Service
metadata:
  name: vllm
spec:
  selector: {{app: vllm}}
  ports:
    - {{name: http, port: 8000, targetPort: http}}"""


def _server_memory(command: list[str], memory_gb: float) -> dict[str, str]:
    if "--l1-use-hugepages" in command:
        # What is left over of a page of 2 MiB is one more.
        pages = math.ceil(memory_gb * 512) + 1
        return {"memory": f"{_SERVER_GIB}Gi", "hugepages-2Mi": f"{2 * pages}Mi"}
    return {"memory": f"{math.ceil(memory_gb) + _SERVER_GIB}Gi"}


def _resources(limits: dict[str, str]) -> str:
    """Have a pod get what it may take: one that gets less is killed first."""
    lines = "".join(f"\n              {name}: {json.dumps(size)}" for name, size in limits.items())
    return f"            requests:{lines}\n            limits:{lines}"


def _storage(capacity: Any) -> str:
    """Return what a volume must have at least."""
    if capacity == "all":
        return "1Gi"
    return f"{math.ceil(size_bytes(capacity) * _MORE_VOLUME / _GIB) + _MORE_VOLUME_GIB}Gi"


def _fixed(path: Path) -> Path:
    """Return the part of a path that is the same for all ranks."""
    while "{" in str(path):
        path = path.parent
    return path


def _words(command: list[str]) -> str:
    # A string of JSON is one of YAML. Kubernetes puts variables in place of $(NAME).
    return "\n".join(f"            - {_text(word).replace('$(', '$$(')}" for word in command)


def _text(value: Path | str) -> str:
    return json.dumps(str(value))
