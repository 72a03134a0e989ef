"""The real vLLM on this machine's processor: each task has a new process, which answers prompts.

    python -m examples.quickstart.engine <<< '{"model": ..., "prompts": [[number, tokens], ...]}'

A task is a line. Lines of JSON say which process is about to answer the last prompt, what was
answered, and how the process ended.
"""

import json
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

os.environ |= {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

if find_spec("vllm") is None:
    sys.exit(f"{__doc__}\n`python -m examples.quickstart` starts it, after `make engines`.")

from vllm import LLM, SamplingParams
from vllm.platforms import current_platform

from tests.support import preloaded_vllm  # noqa: F401
from tests.support.random_llama import prompt, write_llama

# What libraries print goes where their logs do.
_TELLS: Final = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
_BLOCK_TOKENS: Final = 32
_ANSWER_TOKENS: Final = 16
_DEADLINE_S: Final = 60.0


def main() -> None:
    """Fork for each task: to import vLLM takes as long as all else that a new process does."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            return answer(json.loads(line))
        _tell(ended=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return None


def answer(task: dict[str, Any]) -> None:
    """Answer prompts; a model that is not there is written first."""
    model = Path(task["model"])
    if not model.exists():
        write_llama(model, seed=20_240_917, layers=16, hidden_size=512)
    if "lmcache" in task:
        # vLLM does it again as it starts, and cannot once LMCache has imported llvmlite.
        current_platform.register_triton_kernel_overrides()
        type(current_platform).register_triton_kernel_overrides = classmethod(lambda _: None)
        # Behind the packages of this environment, which have the same versions.
        sys.path.append(task["lmcache"])
    engine = LLM(
        str(model),
        served_model_name="demo",
        skip_tokenizer_init=True,
        dtype="float32",
        seed=0,
        enforce_eager=True,
        max_model_len=8192,
        max_num_batched_tokens=2048,
        block_size=_BLOCK_TOKENS,
        kv_transfer_config=task.get("connector"),
        disable_log_stats=False,
    )
    # What is done for the first time takes longer.
    _ask(engine, [5, 6, 7])
    answers = []
    for number, length in task["prompts"]:
        _tell(storing=os.getpid())
        answers.append(_ask(engine, prompt(number, length)))
    _finish_stores(engine, task.get("store"), sum(length for _, length in task["prompts"]))
    _tell(answers=answers)
    # It has nothing to clean up but what vLLM does.
    engine.llm_engine.engine_core.shutdown()


def _tell(**what: Any) -> None:
    print(json.dumps(what), file=_TELLS, flush=True)


def _ask(engine: Any, tokens: list[int]) -> dict[str, Any]:
    sampling = SamplingParams(
        temperature=0, max_tokens=_ANSWER_TOKENS, ignore_eos=True, detokenize=False
    )
    (output,) = engine.generate({"prompt_token_ids": tokens}, sampling, use_tqdm=False)
    return {
        "first_token_s": output.metrics.first_token_latency,
        "cached": output.num_cached_tokens,
        "tokens": list(output.outputs[0].token_ids),
    }


def _finish_stores(engine: Any, store: str | None, tokens: int) -> None:
    """Wait until all whole blocks are stored: vLLM stores while it answers."""
    if store is None:
        return
    from kvring.owner_requests import ask

    wanted = tokens // _BLOCK_TOKENS - 1
    end_s = time.monotonic() + _DEADLINE_S
    while time.monotonic() < end_s:
        if ask(Path(store), None, {"ask": "stats"})["stats"]["keys"] >= wanted:
            return
        _ask(engine, [5, 6, 7])


if __name__ == "__main__":
    main()
