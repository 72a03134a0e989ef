"""What LMCache's memory objects mean beyond their keys: dtype, shape, and weights of the model."""

import logging
import zlib
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from lmcache.v1.distributed.api import ObjectKey

from kvring.logs import warn
from kvring.weights import weights_of

__all__ = ["Variants", "form_of"]

_logger: Final = logging.getLogger(__name__)

# Above it are those that mean something to the store.
_MOST: Final = 0x7FFFFFFF


class Variants:
    """Variants of chunks. A store adds its epoch to its own; those of other machines have it here.

    A serde of LMCache's (`serde_wrapper.py` of 0.5.6) gives bytes to an adapter that tell neither
    what they were nor which serde made them; lookups tell of the objects before that. Only an
    `identity` says so, and where there is none they are not found.
    """

    def __init__(
        self,
        identity: str | None,
        epoch: Callable[[], int] | None = None,
        *,
        is_portable: bool = False,
    ) -> None:
        """Know none yet.

        Args:
            identity: That of the store.
            epoch: Returns that of the store, where that does not add it.
            is_portable: Whether other machines are to have the same variants.
        """
        self._identity = identity
        self._epoch = epoch
        self._is_portable = is_portable
        self._known: dict[Any, int] = {}
        self._has_warned = False

    def epoch(self) -> int:
        """Return the epoch that is in these variants; 0 for the first one, and for none."""
        return 0 if self._epoch is None else self._epoch()

    def of_objects(self, keys: Iterable[ObjectKey], objects: Iterable[Any]) -> list[int]:
        """Return the variant of each memory object."""
        return [
            self._of(key.model_name, *form_of(one)) for key, one in zip(keys, objects, strict=True)
        ]

    def of_stored(self, keys: list[ObjectKey], objects: list[Any]) -> list[int]:
        """Return the variant of each memory object that is to be stored."""
        if self._identity is None and not self._has_warned:
            self._has_warned = any(_is_serialized(one) for one in objects)
            if self._has_warned:
                warn(
                    _logger,
                    "chunks come as bytes of a serde, and those of two serdes cannot be told "
                    "apart: they are stored, and not found. Set 'identity' in adapter_params to a "
                    "name of this model and serde",
                )
        return self.of_objects(keys, objects)

    def of_lookup(self, keys: Iterable[ObjectKey], layouts: dict[int, Any]) -> list[int | None]:
        """Return the variants of objects of these layouts, by group; None where it is not known."""
        if self._identity is not None:
            # They may be a serde's bytes. The load knows.
            return [None for _ in keys]
        known: dict[tuple[str, int], int | None] = {}
        variants = []
        for key in keys:
            form = (key.model_name, key.object_group_id)
            if form not in known:
                layout = layouts.get(key.object_group_id)
                known[form] = None
                if layout is not None and layout.shapes:
                    known[form] = self._of(key.model_name, layout.shapes, layout.dtypes)
            variants.append(known[form])
        return variants

    def _of(self, model: str, shapes: list[Any], dtypes: list[Any]) -> int:
        form = (model, tuple(shapes), tuple(dtypes))
        variant = self._known.get(form)
        if variant is None:
            weights = weights_of(model, is_portable=self._is_portable)
            parts = [weights, *(f"{list(one)}" for one in shapes), *map(str, dtypes)]
            variant = max(zlib.crc32("\0".join(parts).encode()) & _MOST, 1)
            self._known[form] = variant
        return variant ^ self.epoch()


def form_of(one: Any) -> tuple[list[Any], list[Any]]:
    """Return shapes and dtypes of a memory object, one for each of its groups."""
    metadata = one.metadata
    if metadata.shapes is None or metadata.dtypes is None:
        return [metadata.shape], [metadata.dtype]
    return metadata.shapes, metadata.dtypes


def _is_serialized(one: Any) -> bool:
    """Say whether a memory object is plain bytes."""
    shapes, dtypes = form_of(one)
    return len(shapes) == 1 and len(shapes[0]) == 1 and dtypes == [torch.uint8]
