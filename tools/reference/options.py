"""options.md: the options of a store."""

import kvring
from tools.reference.markdown import linked, sections, table

__all__ = ["page"]

_INTRODUCTION = """
Options go into `adapter_params` of LMCache's JSON, or into `kvring.open()`; `kvring.options()`
returns this table. Sizes are bytes or strings: `4096`, `1.5e9`, `"500GiB"`, `"1.5TB"`. An invalid
value or unknown name raises `kvring.ConfigError`, and nothing is changed.
"""
_LIMITS = """
## What follows from the device

`queue_depth` and `max_in_flight_bytes` of [stats()](metrics.md#state-in-stats) are the limits of
in-flight transfers, which follow from the drives below a path.
"""


def page() -> str:
    """Return the page."""
    rows = [
        (
            f"`{name}`",
            str(one["default"] or "required"),
            str(one["range"]).replace(" such as '500GiB' from", " from"),
            str(one["meaning"]),
        )
        for name, one in kvring.options().items()
    ]
    listed = table(("option", "default", "takes", "meaning"), rows)
    return sections("Options", _INTRODUCTION, linked(listed), _LIMITS)
