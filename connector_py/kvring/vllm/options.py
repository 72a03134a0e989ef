"""What the tier makes of its options, and of vLLM's configuration."""

import inspect
import logging
from functools import reduce
from typing import Any, Final

from vllm.config import VllmConfig
from vllm.config.utils import normalize_value
from vllm.v1.kv_offload.base import Locality
from vllm.v1.kv_offload.file_mapper import FileMapper

from kvring import _native
from kvring.engine_store import digest_of, options_of
from kvring.weights import weights_of

__all__ = [
    "SETTINGS",
    "WHERE",
    "layout_of",
    "locality_of",
    "options_of_replica",
    "promote_of",
    "set_queue_bytes_of",
]

_logger = logging.getLogger(__name__)

WHERE: Final = "kv_connector_extra_config, secondary_tiers"

# Fields of vLLM's configuration (0.33.0) that decide how KV is computed, or what its bytes mean.
# Its own `compute_hash()` leaves out weights, and has what only sizes an engine.
# tests/python/engines/test_knobs.py says why the others do not.
SETTINGS: Final = (
    "additional_config",
    "attention_config.backend",
    "attention_config.backend_per_kind",
    "attention_config.disable_flashinfer_q_quantization",
    "attention_config.indexer_kv_dtype",
    "attention_config.use_non_causal",
    "attention_config.use_prefill_query_quantization",
    "cache_config.cache_dtype",
    "cache_config.kv_cache_dtype_skip_layers",
    "cache_config.mamba_cache_dtype",
    "cache_config.mamba_ssm_cache_dtype",
    "cache_config.use_kda_recoverssm",
    "cache_config.use_replayssm",
    "diffusion_config",
    "load_config.ignore_patterns",
    "load_config.load_format",
    "load_config.model_loader_extra_config",
    "mamba_config.backend",
    "model_config.code_revision",
    "model_config.convert",
    "model_config.disable_sliding_window",
    "model_config.dtype",
    "model_config.model_class_overrides",
    "model_config.model_impl",
    "model_config.model_weights",
    "model_config.multimodal_config.mm_encoder_attn_dtype",
    "model_config.multimodal_config.mm_encoder_fp8_scale_path",
    "model_config.multimodal_config.mm_processor_kwargs",
    "model_config.multimodal_config.video_pruning_method",
    "model_config.multimodal_config.video_pruning_rate",
    "model_config.quantization",
    "model_config.quantization_config",
    "model_config.revision",
    "model_config.runner",
    "parallel_config.cp_kv_cache_interleave_size",
    "speculative_config.draft_load_config",
    "speculative_config.kv_cache_dtype",
    "speculative_config.method",
    "speculative_config.quantization",
    "use_v2_model_runner",
)

# Of a model's own configuration: which release wrote it, and from where it was read.
_VOLATILE: Final = ("transformers_version", "_name_or_path")

# Models that compute other KV for the same tokens with another `max_model_len`.
_BY_LENGTH: Final = ("longrope", "dynamic", "llama4_text")


def layout_of(offloading_spec: Any, row_bytes: int) -> str:
    """Return a digest of what decides how the bytes of a row lie.

    It begins with the one by which vLLM's own file tier names its directories. That one has no
    layout of the KV cache, no length of a row, and often no parallel layout, although vLLM puts the
    parts of its workers one after the other.
    """
    config = offloading_spec.config
    mapper = FileMapper.from_offloading_spec(
        root_dir="",
        offloading_spec=offloading_spec,
        blocks_per_file=offloading_spec.blocks_per_chunk,
        parallel_agnostic=True,
    )
    parallel = config.parallel
    ranks = [parallel.tp_size, parallel.pp_size, parallel.pcp_size, parallel.dcp_size]
    own = {
        "row_bytes": row_bytes,
        "kv_cache_layout": config.kv_cache_layout,
        # In these vLLM's bytes are the same with any ranks, or it tells them apart by itself.
        "ranks": None if config.canonical_layout or config.replicated_layout else ranks,
        "engine": _facts_of(config.model.name, _engine_config()),
    }
    return f"{mapper.base_path.rpartition('_')[2]}-{digest_of(own)}"


def _engine_config() -> VllmConfig | None:
    """Return the configuration of the engine whose constructors are building a tier.

    vLLM gives tiers an excerpt (`v1/kv_offload/config.py`), and has the whole only in arguments.
    """
    frame = inspect.currentframe()
    while frame is not None:
        config = frame.f_locals.get("vllm_config")
        if isinstance(config, VllmConfig):
            return config
        frame = frame.f_back
    _logger.warning(
        "vLLM's full configuration is not in reach: the namespace has what OffloadingConfig says. "
        "Set 'identity' to keep engines apart that differ in more, such as Mamba dtypes"
    )
    return None


def _facts_of(name: str, config: VllmConfig | None) -> dict[str, Any]:
    """Return which weights compute the KV, how, and what its bytes mean."""
    if config is None:
        return {"weights": weights_of(name)}
    facts = {
        one: _plain(reduce(lambda of, part: getattr(of, part, None), one.split("."), config))
        for one in SETTINGS
    }
    model = config.model_config
    facts["model"] = _plain(_lasting(model.hf_config.to_dict()))
    if any(f"'{one}'" in str(facts["model"]) for one in _BY_LENGTH):
        facts["max_model_len"] = model.max_model_len
    if config.load_config.load_format == "dummy":
        facts["seed"] = model.seed
    draft = config.speculative_config and config.speculative_config.draft_model_config
    facts["weights"] = [_weights_of(one) for one in (model, draft) if one is not None]
    scales = getattr(model.multimodal_config, "mm_encoder_fp8_scale_path", None)
    if scales:
        facts["scales"] = weights_of(scales)
    return facts


def _weights_of(model: Any) -> str:
    # From an object store there are copies of the configuration, new at each start.
    if model.model_weights:
        return ""
    known = weights_of(model.model, model.revision)
    return known or str(getattr(model.hf_config, "_commit_hash", ""))


def _lasting(one: Any) -> Any:
    if isinstance(one, dict):
        return {key: _lasting(value) for key, value in one.items() if key not in _VOLATILE}
    return one


def _plain(value: Any) -> Any:
    try:
        return normalize_value(value)
    except TypeError:
        # A function, or an object of a plugin: its text may have an address.
        return getattr(value, "__qualname__", type(value).__qualname__)


def locality_of(name: str | None) -> Locality | None:
    """Return a locality of vLLM's."""
    try:
        return None if name is None else Locality(name)
    except ValueError as error:
        text = (
            f"{WHERE}: Locality: 'locality' = {name!r} is not valid; it takes 'LOCAL' or 'REMOTE'"
        )
        raise ValueError(text) from error


def options_of_replica(where: str, options: dict[str, Any], parallel: Any) -> dict[str, Any]:
    """Return the options of a data-parallel replica: each is a process with its own store."""
    paths = options.get("path")
    # What is no path the store refuses.
    named = paths if isinstance(paths, list) else [paths]
    common = [path for path in named if isinstance(path, str) and "{dp_rank}" not in path]
    replica = parallel.data_parallel_index
    # Of a dense model each replica is told that it is the only one, and keeps its number.
    if common and (parallel.data_parallel_size > 1 or replica > 0):
        text = (
            f"{where}: path = {common[0]!r} would be shared by data-parallel replicas (this one is "
            f"number {replica}), and a store has one owner; write {{dp_rank}} where their paths "
            f"are to differ, such as {common[0].rstrip('/')}-{{dp_rank}}"
        )
        raise ValueError(text)
    return options_of(options, "dp_rank", parallel.data_parallel_index)


def promote_of(where: str, promote: object) -> bool:
    """Return the option `promote`."""
    if not isinstance(promote, bool):
        text = f"{where}: 'promote' = {promote!r} is not valid; it takes true or false"
        raise ValueError(text)
    return promote


def set_queue_bytes_of(options: dict[str, Any]) -> int:
    """Return the option `set_queue_bytes` of a store that has taken it."""
    default = _native.options()["set_queue_bytes"]["default"]
    size: Any = options.get("set_queue_bytes", default)
    return _native.size_bytes(size) if isinstance(size, str) else int(size)
