"""Options of a shared tier that its adapter and `kvring config` check."""

from dataclasses import dataclass
from typing import Any, Final

from kvring._native import ConfigError, size_bytes

__all__ = ["MEANINGS", "SharedLimits"]

MEANINGS: Final = {
    "shared_lookup_deadline_ms": "a lookup there that takes longer is a miss; default 500",
    "shared_load_deadline_ms": "a load from there that takes longer is a miss; default 5000",
    "shared_buffer": "upper limit of the memory for copies to and from there; default 1GiB",
    "shared_checksums": "whether a chunk there that has no checksum beside it is a miss: required, "
    "or optional where other programs store there, too; default required",
}
_LOOKUP_DEADLINE_MS: Final = 500
_LOAD_DEADLINE_MS: Final = 5000
_LONGEST_DEADLINE_MS: Final = 600_000
_BUFFER: Final = "1GiB"


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
            known = ", ".join(MEANINGS)
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
