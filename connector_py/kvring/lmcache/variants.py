"""What LMCache's memory objects mean beyond their keys: dtype, shape, and weights of the model."""

import logging
import zlib
from collections.abc import Iterable
from itertools import compress
from typing import Any, Final

import torch
from lmcache.v1.distributed.api import ObjectKey

from kvring.lmcache.known_weights import KnownWeights
from kvring.logs import warn

__all__ = ["NOBODYS", "Variants", "form_of"]

_logger: Final = logging.getLogger(__name__)

# Of weights that nobody knows: no chunk has it. Those above it mean something to the store.
NOBODYS: Final = 0x7FFFFFFF


class Variants:
    """Variants of chunks. A store adds its epoch to its own; those of other machines have it here.

    A serde of LMCache's (`serde_wrapper.py` of 0.5.6) gives bytes to an adapter that tell neither
    what they were nor which serde made them; lookups tell of the objects before that. Only an
    `identity` says so, and where there is none they are not found.
    """

    def __init__(
        self,
        identity: str | None,
        weights: KnownWeights,
        *,
        is_portable: bool = False,
    ) -> None:
        """Know none yet.

        Args:
            identity: That of the store.
            weights: Those of the store, and its epoch.
            is_portable: Whether other machines are to have the same variants.
        """
        self._identity = identity
        self._weights = weights
        self.epoch = weights.epoch
        self._is_portable = is_portable
        self._known: dict[Any, int] = {}
        # Models whose memory objects come as they are, without a serde.
        self._plain: set[str] = set()
        self._has_warned = False

    def of_objects(self, keys: Iterable[ObjectKey], objects: Iterable[Any]) -> list[int]:
        """Return the variant of each memory object."""
        variants = []
        last, variant = None, 0
        for key, one in zip(keys, objects, strict=True):
            form = (key.model_name, *form_of(one))
            # Those of a batch are mostly alike.
            if form != last:
                last, variant = form, self._of(*form)
                self._note_form(*form)
            variants.append(variant)
        return variants

    def of_stored(
        self, keys: list[ObjectKey], objects: list[Any]
    ) -> tuple[list[ObjectKey], list[Any], list[int]]:
        """Return keys, memory objects and variants, without those whose weights nobody knows."""
        variants = self.of_objects(keys, objects)
        if NOBODYS not in variants:
            return keys, objects, variants
        are_known = [one != NOBODYS for one in variants]
        return (
            list(compress(keys, are_known)),
            list(compress(objects, are_known)),
            list(compress(variants, are_known)),
        )

    def of_lookup(self, keys: Iterable[ObjectKey], layouts: dict[int, Any]) -> list[int | None]:
        """Return the variants of objects of these layouts, by group; None where it is not known."""
        known: dict[tuple[str, int], int | None] = {}
        variants = []
        for key in keys:
            form = (key.model_name, key.object_group_id)
            if form not in known:
                # With an identity they may be a serde's bytes. The load knows.
                is_told = self._identity is None or key.model_name in self._plain
                layout = layouts.get(key.object_group_id)
                known[form] = None
                if is_told and layout is not None and layout.shapes:
                    known[form] = self._of(key.model_name, layout.shapes, layout.dtypes)
            variants.append(known[form])
        return variants

    def _note_form(self, model: str, shapes: list[Any], dtypes: list[Any]) -> None:
        is_serialized = len(shapes) == 1 and len(shapes[0]) == 1 and dtypes == [torch.uint8]
        if not is_serialized:
            self._plain.add(model)
        elif self._identity is None and not self._has_warned:
            self._has_warned = True
            warn(
                _logger,
                "chunks come as bytes of a serde, and those of two serdes cannot be told apart: "
                "they are stored, and not found. Set 'identity' in adapter_params to a name of "
                "this model and serde",
            )

    def _of(self, model: str, shapes: list[Any], dtypes: list[Any]) -> int:
        weights = self._weights.of(model, is_portable=self._is_portable)
        if weights is None:
            return NOBODYS
        form = (weights, tuple(shapes), tuple(dtypes))
        variant = self._known.get(form)
        if variant is None:
            parts = [weights, *(f"{list(one)}" for one in shapes), *map(str, dtypes)]
            variant = min(max(zlib.crc32("\0".join(parts).encode()) & NOBODYS, 1), NOBODYS - 1)
            self._known[form] = variant
        # A store adds it by itself.
        return variant ^ self.epoch() if self._is_portable else variant


def form_of(one: Any) -> tuple[list[Any], list[Any]]:
    """Return shapes and dtypes of a memory object, one for each of its groups."""
    metadata = one.metadata
    if metadata.shapes is None or metadata.dtypes is None:
        return [metadata.shape], [metadata.dtype]
    return metadata.shapes, metadata.dtypes
