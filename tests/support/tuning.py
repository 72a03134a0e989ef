"""Settings of kvring that are no options, for stores that are opened meanwhile."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

_VARIABLE = "KVRING_TUNING"


@contextmanager
def tuned(**settings: object) -> Iterator[None]:
    """Open stores with these settings, in child processes too; `Tuning` in the code tells each."""
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = json.dumps(settings)
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before
