"""Options of a shared tier that its adapter and `kvring config` check."""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kvring._native import ConfigError, size_bytes

__all__ = ["LIMITS", "TIER", "SharedLimits", "SharedOption"]

_LOOKUP_DEADLINE_MS: Final = 500
_LOAD_DEADLINE_MS: Final = 5000
_LONGEST_DEADLINE_MS: Final = 600_000
_BUFFER: Final = "1GiB"


class SharedOption(NamedTuple):
    """An option, as help and the reference show it."""

    default: str
    takes: str
    meaning: str


TIER: Final = SharedOption(
    "required",
    "an adapter of LMCache, as --l2-adapter takes it",
    'the shared tier, such as {"type": "resp", "host": "10.0.0.5", "port": 6379}',
)
LIMITS: Final = {
    "shared_lookup_deadline_ms": SharedOption(
        str(_LOOKUP_DEADLINE_MS),
        f"1 to {_LONGEST_DEADLINE_MS}",
        "a lookup in the shared tier that takes longer is a miss",
    ),
    "shared_load_deadline_ms": SharedOption(
        str(_LOAD_DEADLINE_MS),
        f"1 to {_LONGEST_DEADLINE_MS}",
        "a load from the shared tier that takes longer is a miss",
    ),
    "shared_buffer": SharedOption(
        _BUFFER, "a size", "maximum memory for copies to and from the shared tier"
    ),
    "shared_checksums": SharedOption(
        "required",
        "'required' or 'optional'",
        "with 'required' a chunk of the shared tier without a checksum is a miss; with 'optional' "
        "it is an unverified hit",
    ),
}


@dataclass(frozen=True)
class SharedLimits:
    """What a shared tier may take of a node: time of its requests, memory, and its trust."""

    lookup_deadline_s: float
    load_deadline_s: float
    buffer_bytes: int
    requires_checksums: bool

    @classmethod
    def take(cls, parameters: dict[str, Any]) -> "SharedLimits":
        """Take these options out of `adapter_params`.

        Raises:
            ConfigError: One of them cannot be used, or does not exist; the message names it.
        """
        limits = cls(
            _seconds(parameters, "shared_lookup_deadline_ms", _LOOKUP_DEADLINE_MS),
            _seconds(parameters, "shared_load_deadline_ms", _LOAD_DEADLINE_MS),
            _bytes(parameters.pop("shared_buffer", _BUFFER)),
            _requires_checksums(parameters.pop("shared_checksums", "required")),
        )
        unknown = next((name for name in parameters if name.startswith("shared_")), None)
        if unknown is not None:
            known = ", ".join(LIMITS)
            text = f"unknown option {unknown!r}; those of a shared tier are: shared_tier, {known}"
            raise ConfigError(text)
        return limits


def _bytes(text: Any) -> int:
    try:
        return size_bytes(str(text))
    except ConfigError as error:
        raise ConfigError(f"option 'shared_buffer' = {text!r} is not valid: {error}") from error


def _requires_checksums(text: Any) -> bool:
    if text not in ("required", "optional"):
        raise ConfigError(
            f"option 'shared_checksums' = {text!r} is not valid; it takes required or optional"
        )
    return bool(text == "required")


def _seconds(parameters: dict[str, Any], name: str, default_ms: int) -> float:
    value = parameters.pop(name, default_ms)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 1 <= value <= _LONGEST_DEADLINE_MS:
        text = f"option {name!r} = {value!r} is not valid; it takes 1 to {_LONGEST_DEADLINE_MS}"
        raise ConfigError(text)
    return float(value) / 1000
