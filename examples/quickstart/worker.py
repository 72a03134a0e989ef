"""The demo's two child processes: one computes and stores a KV cache, the next one loads it."""

import argparse
import json
import time
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

import torch

from examples.quickstart.chunks import (
    CacheBuilder,
    Chunk,
    chunk_layout,
    copy_from_cache,
    digest,
    split_into_chunks,
)
from examples.quickstart.console import Report
from examples.quickstart.model import (
    MODEL_NAME,
    build_model,
    generate,
    model_config,
    prefill,
    use_all_cores,
)
from examples.quickstart.prompt import prompt_tokens
from tests.support.adapter_spec import AdapterSpec
from tests.support.caches import CacheSession

GENERATED_TOKENS = 24
REFERENCE_FILE = "reference.pt"
STORE_RESULT_FILE = "store.json"
LOAD_RESULT_FILE = "load.json"


@dataclass(frozen=True)
class StoreResult:
    """What the storing process measured; times in seconds."""

    cached_tokens: int
    chunk_count: int
    total_bytes: int
    prefill_s: float
    store_s: float


@dataclass(frozen=True)
class LoadResult:
    """What the loading process measured and found."""

    hit_count: int
    prefetch_s: float
    restore_s: float
    equal_chunks: int
    tokens_equal: bool
    logits_equal: bool
    largest_logit_difference: float


def store(spec: AdapterSpec, token_count: int, exchange: Path) -> None:
    """Prefill without any cache, store the KV cache through LMCache, and note what came out."""
    report = Report()
    use_all_cores()
    token_ids = prompt_tokens(token_count)
    # A hit on the whole prompt would leave nothing to compute logits from: its last token stays
    # out of the cache, as it does in a serving engine.
    cached_ids, last_token_id = token_ids[:-1], token_ids[-1]
    model = build_model()
    chunks = split_into_chunks(cached_ids, MODEL_NAME)

    start_s = time.monotonic()
    with report.progress("Prefill without a cache", len(cached_ids), "tokens") as advance:
        cache = prefill(model, cached_ids, advance)
    prefill_s = time.monotonic() - start_s

    digests: list[str] = []
    total_bytes = _total_bytes(chunks)
    with CacheSession(spec, _l1_size_bytes(total_bytes)) as session:
        start_s = time.monotonic()
        with report.progress("Store in L2", len(chunks), "chunks") as advance:
            for layout_tokens, group in _by_size(chunks):
                keys = [chunk.key for chunk in group]
                with session.write(keys, chunk_layout(model.config, layout_tokens)) as tensors:
                    for chunk, tensor in zip(group, tensors, strict=True):
                        copy_from_cache(cache, chunk, tensor)
                        digests.append(digest(tensor))
            session.wait_until_stored(len(chunks), advance)
        store_s = time.monotonic() - start_s

    with report.step(f"Generate {GENERATED_TOKENS} tokens from the model's own cache"):
        generation = generate(model, cache, last_token_id, GENERATED_TOKENS)
    reference = {
        "digests": digests,
        "token_ids": generation.token_ids,
        "logits": generation.logits,
    }
    torch.save(reference, exchange / REFERENCE_FILE)
    result = StoreResult(
        cached_tokens=len(cached_ids),
        chunk_count=len(chunks),
        total_bytes=total_bytes,
        prefill_s=prefill_s,
        store_s=store_s,
    )
    (exchange / STORE_RESULT_FILE).write_text(json.dumps(asdict(result)))


def load(spec: AdapterSpec, token_count: int, exchange: Path) -> None:
    """Load the KV cache through LMCache, go on generating, and compare with the storing run."""
    report = Report()
    use_all_cores()
    token_ids = prompt_tokens(token_count)
    cached_ids, last_token_id = token_ids[:-1], token_ids[-1]
    model = build_model()
    chunks = split_into_chunks(cached_ids, MODEL_NAME)
    reference = torch.load(exchange / REFERENCE_FILE, weights_only=True)

    prefetch_s = restore_s = 0.0
    hit_count = 0
    digests: list[str] = []
    builder = CacheBuilder(model.config, len(cached_ids))
    with CacheSession(spec, _l1_size_bytes(_total_bytes(chunks))) as session:
        with report.progress("Load from L2", len(chunks), "chunks") as advance:
            for layout_tokens, group in _by_size(chunks):
                start_s = time.monotonic()
                keys = [chunk.key for chunk in group]
                hits = session.prefetch(keys, chunk_layout(model.config, layout_tokens))
                prefetch_s += time.monotonic() - start_s
                hit_count += sum(hits)
                if not all(hits):
                    continue
                with session.read(keys) as tensors:
                    start_s = time.monotonic()
                    for chunk, tensor in zip(group, tensors, strict=True):
                        builder.add(chunk, tensor)
                        advance(1)
                    restore_s += time.monotonic() - start_s
                    digests.extend(digest(tensor) for tensor in tensors)
        start_s = time.monotonic()
        cache = builder.finish()
        restore_s += time.monotonic() - start_s

    with report.step(f"Generate {GENERATED_TOKENS} tokens from the loaded cache"):
        generation = generate(model, cache, last_token_id, GENERATED_TOKENS)
    difference = (generation.logits - reference["logits"]).abs().max().item()
    result = LoadResult(
        hit_count=hit_count,
        prefetch_s=prefetch_s,
        restore_s=restore_s,
        equal_chunks=sum(map(str.__eq__, digests, reference["digests"])),
        tokens_equal=generation.token_ids == reference["token_ids"],
        logits_equal=torch.equal(generation.logits, reference["logits"]),
        largest_logit_difference=difference,
    )
    (exchange / LOAD_RESULT_FILE).write_text(json.dumps(asdict(result)))


def _by_size(chunks: list[Chunk]) -> list[tuple[int, list[Chunk]]]:
    """Group chunks of one size, for LMCache takes one memory layout per request."""
    grouped = groupby(chunks, key=lambda chunk: chunk.token_count)
    return [(token_count, list(group)) for token_count, group in grouped]


def _total_bytes(chunks: list[Chunk]) -> int:
    config = model_config()
    layouts = [chunk_layout(config, chunk.token_count) for chunk in chunks]
    return sum(layout.shapes[0].numel() * layout.dtypes[0].itemsize for layout in layouts)


def _l1_size_bytes(total_bytes: int) -> int:
    """Leave room above the data: LMCache starts to evict when its memory is 80 % full."""
    return 2 * total_bytes + (64 << 20)


def main() -> None:
    """Run the phase that the command line names."""
    parser = argparse.ArgumentParser(
        description="One process of the demo; see examples/quickstart/__main__.py."
    )
    parser.add_argument("phase", choices=("store", "load"))
    parser.add_argument("--adapter-json", required=True)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--exchange", type=Path, required=True)
    arguments = parser.parse_args()
    phase = store if arguments.phase == "store" else load
    phase(json.loads(arguments.adapter_json), arguments.tokens, arguments.exchange)


if __name__ == "__main__":
    main()
