"""One process of vLLM: `python -m examples.gpu.stage SPECIFICATION`, JSON in, lines of JSON out."""

import json
import sys
import time
from typing import Any

from examples.gpu.model import prompt

_HITS = "vllm:kv_offload_tiering_chunk_hits"
_STORING = "vllm:kv_offload_tiering_active_cascade_jobs"
_STORE_DEADLINE_S = 120.0

# Not of the prompts that are timed.
_WARM_UP = -1


def main() -> None:
    """Answer prompts, and print the time to the first token of each and where its KV came from."""
    if len(sys.argv) != 2:
        sys.exit(f"{__doc__}\n`python -m examples.gpu` starts it.")
    specification = json.loads(sys.argv[1])
    engine = _Engine(specification)
    # The first one pays for what is compiled and allocated at first.
    engine.first_token(prompt(specification["lengths"][0], _WARM_UP))
    for tokens in specification["lengths"]:
        for number in range(specification["prompts"]):
            ids = prompt(tokens, number)
            for source in specification["sources"]:
                # GPU memory keeps it otherwise.
                engine.forget()
                before = engine.hits()
                seconds, token = engine.first_token(ids)
                hits = {tier: count - before.get(tier, 0) for tier, count in engine.hits().items()}
                line = {"source": source, "tokens": tokens, "number": number, "token": token}
                print(json.dumps({**line, "seconds": seconds, "hits": hits}), flush=True)
    engine.finish_stores()


class _Engine:
    def __init__(self, specification: dict[str, Any]) -> None:
        from vllm import LLM, SamplingParams

        self._sampling = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
        self._llm = LLM(
            specification["model"],
            skip_tokenizer_init=True,
            load_format="dummy",
            dtype="bfloat16",
            seed=1,
            max_model_len=max(specification["lengths"]) + 16,
            enable_prefix_caching=True,
            # Its metrics are where the hits are counted.
            disable_log_stats=False,
            kv_transfer_config=specification["transfer"],
        )

    def first_token(self, ids: list[int]) -> tuple[float, int]:
        started_s = time.perf_counter()
        (answer,) = self._llm.generate({"prompt_token_ids": ids}, self._sampling, use_tqdm=False)
        return time.perf_counter() - started_s, answer.outputs[0].token_ids[0]

    def forget(self) -> None:
        """Have nothing in GPU memory."""
        deadline_s = time.monotonic() + _STORE_DEADLINE_S
        # It refuses while blocks of a request before are still being offloaded.
        while not self._llm.reset_prefix_cache():
            if time.monotonic() > deadline_s:
                raise TimeoutError("vLLM does not empty its prefix cache")
            self._step()

    def hits(self) -> dict[str, int]:
        """Return how many chunks each tier has had so far."""
        self._step()
        found = {}
        for metric in self._llm.get_metrics():
            if metric.name == _HITS:
                found[metric.labels["tier"]] = int(metric.value)
        return found

    def finish_stores(self) -> None:
        """Wait until all is stored below."""
        deadline_s = time.monotonic() + _STORE_DEADLINE_S
        while any(one.value for one in self._llm.get_metrics() if one.name == _STORING):
            if time.monotonic() > deadline_s:
                raise TimeoutError("vLLM's tiers do not finish their stores")
            self._step()

    def _step(self) -> None:
        """Have the engine look at its transfers: it does so in its steps alone."""
        self._llm.generate({"prompt_token_ids": [1, 2, 3]}, self._sampling, use_tqdm=False)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
