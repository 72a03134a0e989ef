"""What vLLM imports as it starts on processors: forks of a process that has it start in seconds."""

import gc

import vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector
import vllm.model_executor.layers.quantization.online.base
import vllm.model_executor.models.llama
import vllm.v1.attention.backends.cpu_attn
import vllm.v1.engine.core
import vllm.v1.executor.uniproc_executor
import vllm.v1.worker.cpu_worker  # noqa: F401
from vllm.model_executor.models import registry

# vLLM looks at the class of each new model in a process of its own, which imports all again.
registry._run_in_subprocess = lambda function: function()
# An engine collects garbage seven times as it starts, and nothing that was imported is any.
gc.freeze()
