"""The options of a shared tier, beside those of the store in `adapter_params`."""

import argparse
import json
from dataclasses import dataclass
from typing import Any, Final

from lmcache.v1.distributed.l2_adapters.config import (
    L2AdapterConfigBase,
    parse_args_to_l2_adapters_config,
)

from kvring._native import ConfigError
from kvring.engine_store import identity_of
from kvring.shared_tier.limits import TIER, SharedLimits

__all__ = ["SharedOptions"]

# They need LMCache's own memory, or are done around the whole adapter.
_REFUSED_TYPES: Final = {
    "p2p": "LMCache makes that one itself, from its coordinator (docs/how-to/shared-tier.md)",
    "plugin": "give LMCache a second --l2-adapter for that",
    "native_plugin": "give LMCache a second --l2-adapter for that",
}
_REFUSED_KEYS: Final = ("serde", "eviction")


@dataclass(frozen=True)
class SharedOptions:
    """A shared tier, as it was configured."""

    adapter: L2AdapterConfigBase
    name: str
    limits: SharedLimits
    # As the store has it, which checks it; empty for none.
    identity: str | None

    @classmethod
    def take(cls, parameters: dict[str, Any]) -> "SharedOptions":
        """Take the options out of `adapter_params`; what is left is the store's.

        Raises:
            ConfigError: One of them cannot be used; the message names it.
        """
        spec = parameters.pop("shared_tier", None)
        return cls(
            adapter=_adapter(spec),
            name=_name(spec),
            limits=SharedLimits.take(parameters),
            identity=identity_of(parameters),
        )


def _adapter(spec: Any) -> L2AdapterConfigBase:
    if not isinstance(spec, dict):
        # It may have a password.
        shown = repr(spec) if "@" not in str(spec) else f"a {type(spec).__name__}"
        text = f"option 'shared_tier' = {shown} is not valid; it takes {TIER.takes}: {TIER.meaning}"
        raise ConfigError(text)
    instead = _REFUSED_TYPES.get(str(spec.get("type")))
    if instead is not None:
        raise ConfigError(f"option 'shared_tier' cannot be of type {spec['type']!r}; {instead}")
    for key in _REFUSED_KEYS:
        if key in spec:
            text = f"option 'shared_tier' takes no {key!r}; write it beside 'adapter_params'"
            raise ConfigError(text)
    try:
        arguments = argparse.Namespace(l2_adapter=[json.dumps(spec)])
        return parse_args_to_l2_adapters_config(arguments).adapters[0]
    except ImportError as error:
        # For a type that it does not find, LMCache raises the error of whichever adapter failed.
        text = (
            f"option 'shared_tier': unknown adapter type {spec['type']!r}, or a package that it "
            f"needs is missing ({error})"
        )
        raise ConfigError(text) from error
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"option 'shared_tier' is not valid: {error}") from error


def _name(spec: dict[str, Any]) -> str:
    """Name a tier for messages, without what is secret."""
    where = spec.get("host") or spec.get("s3_endpoint") or spec.get("base_path") or ""
    port = f":{spec['port']}" if "port" in spec else ""
    return f"{spec['type']} {str(where).rpartition('@')[2]}{port}".rstrip()
