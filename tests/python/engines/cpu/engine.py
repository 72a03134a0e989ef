"""The real vLLM on processors, and what tests do with it: each function runs in a new process."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from typing_extensions import Self
from vllm import SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine.llm_engine import LLMEngine

from tests.python.conftest import MIB
from tests.python.engines.cpu.processes import BLOCK_TOKENS, Answer, Run
from tests.python.engines.vllm_engine import shared_memory
from tests.support import host_copies, preloaded_vllm  # noqa: F401
from tests.support.random_llama import write_llama

# A prompt of two thousand tokens takes four steps.
_STEP_TOKENS = 512
# A server that was killed is waited for, a millisecond a step.
_MAX_STEPS = 100_000
_ANSWER_TOKENS = 8


class CpuEngine:
    """Scheduler, connector and worker in one process, driven step by step."""

    def __init__(
        self,
        model: Path,
        tiers: Sequence[dict[str, Any]] = (),
        dtype: str = "float32",
        primary_bytes: int = 64 * MIB,
        connector: dict[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Start as vLLM does with these secondary tiers, or with another connector, or none."""
        extra = {
            "spec_name": "HostTieringSpec",
            "spec_module_path": host_copies.__name__,
            "cpu_bytes_to_use": primary_bytes,
            "secondary_tiers": list(tiers),
        }
        if tiers:
            connector = {
                "kv_connector": "OffloadingConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": extra,
            }
        self._engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=str(model),
                served_model_name="tiny",
                dtype=dtype,
                seed=0,
                skip_tokenizer_init=True,
                enforce_eager=True,
                max_model_len=4096,
                max_num_batched_tokens=_STEP_TOKENS,
                max_num_seqs=8,
                block_size=BLOCK_TOKENS,
                num_gpu_blocks_override=512,
                kv_transfer_config=connector,
                **options,
            )
        )
        self._scheduler = self._engine.engine_core.engine_core.scheduler
        self.answers: dict[str, Answer] = {}
        self._added = 0

    @property
    def engine_id(self) -> str:
        """What the primary tier's memory is named by."""
        engine_id: str = self._engine.vllm_config.kv_transfer_config.engine_id
        return engine_id

    @property
    def manager(self) -> Any:
        """vLLM's manager of all tiers."""
        return self._scheduler.connector.connector_scheduler.manager

    @property
    def tier(self) -> Any:
        """The first tier below the primary one."""
        return self.manager.secondary_tiers[0]

    @property
    def stats(self) -> dict[str, Any]:
        """What the store of the first tier counts."""
        if self._scheduler.connector is None:
            return {}
        stats: dict[str, Any] = self.tier._store.connector.stats()
        return stats

    def add(self, prompt: list[int], tokens: int = _ANSWER_TOKENS) -> str:
        """Queue a request; return its name."""
        self._added += 1
        name = f"request-{self._added}."
        sampling = SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        self._engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
        return name

    def abort(self, name: str) -> None:
        """End a request as a client does that hangs up."""
        self._engine.abort_request([name])

    def abort_when(self, prompt: list[int], is_reached: Callable[[str], bool]) -> None:
        """Queue a request, take steps until it is in a state, and abort it."""
        name = self.add(prompt)
        for _ in range(_MAX_STEPS):
            self.step()
            if is_reached(name):
                return self.abort(name)
        raise AssertionError("the request is never in that state")

    def status(self, name: str) -> str:
        """Return the state in which the scheduler has a request."""
        (found,) = (
            one.status.name for id_, one in self._scheduler.requests.items() if id_.startswith(name)
        )
        return str(found)

    def step(self) -> None:
        """Take a step, and keep what requests have given so far."""
        for output in self._engine.step():
            tokens = list(output.outputs[0].token_ids)
            self.answers[output.request_id] = Answer(tokens, output.num_cached_tokens)

    def settle(self) -> None:
        """Take steps until nothing is left to do, in the tiers neither."""
        for _ in range(_MAX_STEPS):
            if not self._scheduler.has_requests():
                return
            self.step()
            time.sleep(0.001)
        raise AssertionError("requests do not end")

    def forget(self) -> None:
        """Empty the engine's own prefix cache: what it needs comes from the primary tier."""
        assert self._engine.reset_prefix_cache()

    def ask(self, *prompts: list[int]) -> list[Answer]:
        """Have all prompts answered at once, and all of them stored."""
        names = [self.add(prompt) for prompt in prompts]
        self.settle()
        return [self.answers[name] for name in names]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._engine.engine_core.shutdown()


def write_models(directory: Path, seeds: Sequence[int]) -> None:
    """Write a model for each seed."""
    for seed in seeds:
        write_llama(directory / f"model-{seed}", seed=seed, layers=2, hidden_size=256)


def ask(rounds: Sequence[Sequence[list[int]]], **setup: Any) -> Run:
    """Ask for prompts; those of a round together."""
    with CpuEngine(**setup) as engine:
        answers = [answer for prompts in rounds for answer in engine.ask(*prompts)]
        return Run(answers, engine.stats)


def ask_twice(prompts: Sequence[list[int]], **setup: Any) -> Run:
    """Ask for one prompt after the other, twice; the second answers need the primary tier."""
    answers: list[Answer] = []
    with CpuEngine(**setup) as engine:
        for _ in range(2):
            engine.forget()
            answers += (answer for prompt in prompts for answer in engine.ask(prompt))
        return Run(answers, engine.stats)


def die_in_mid_store(prompts: Sequence[list[int]], last: list[int], **setup: Any) -> None:
    """Answer prompts, and be killed as soon as the last one's second store has begun."""
    engine = CpuEngine(**setup)
    engine.ask(*prompts)
    submit_store, calls = engine.tier.submit_store, count(1)

    def submit_and_die(job: Any) -> None:
        submit_store(job)
        if next(calls) == 2:
            # vLLM leaves it behind.
            shared_memory(engine.engine_id).unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    engine.tier.submit_store = submit_and_die
    engine.ask(last)


def abort_in_every_state(
    stored: Sequence[list[int]], new: Sequence[list[int]], **setup: Any
) -> Run:
    """Abort a request in each state, and then ask for all of them."""
    with CpuEngine(**setup) as engine:
        tier = engine.tier
        engine.abort(engine.add(new[0]))
        engine.abort_when(new[1], lambda name: engine.status(name) == "RUNNING")
        # It cannot end before it is seen.
        tier.get_finished_jobs = tuple
        engine.abort_when(stored[0], lambda _: any(job.is_promotion for job in tier._jobs.values()))
        del tier.get_finished_jobs
        engine.abort_when(stored[1], lambda name: engine.status(name) == "WAITING_FOR_REMOTE_KVS")
        assert not engine.answers
        engine.abort_when(stored[2], lambda name: name in engine.answers)
        engine.settle()
        assert not engine.manager.has_pending_work()
        answers = engine.ask(*stored, *new)
        assert tier._store.connector.check()["problems"] == []
        return Run(answers, engine.stats)
