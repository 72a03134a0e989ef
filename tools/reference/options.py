"""options.md: the options of a store, and those beside it of a shared tier and of vLLM's tier."""

import ast
import re

import kvring
from kvring.shared_tier.limits import LIMITS, TIER
from tools.reference.markdown import linked, sections, table
from tools.reference.rust import source

__all__ = ["page"]

_HEAD = ("option", "default", "takes", "meaning")
_TIER_OF_VLLM = "connector_py/kvring/vllm/tier.py"

_INTRODUCTION = """
Options go into `adapter_params` of LMCache's JSON, into the JSON of vLLM and SGLang beside `path`,
or into `kvring.open()`. `kvring.options()` returns this table. Sizes are bytes or strings: `4096`,
`1.5e9`, `"500GiB"`, `"1.5TB"`. An invalid value or unknown name raises `kvring.ConfigError`, and
nothing is changed.
"""
_SHARED = """
## Shared tier

`KvringSharedL2Adapter` ([how-to](../how-to/shared-tier.md)) also takes:
"""
_VLLM = """
## vLLM and SGLang

`KvringTier` (vLLM) also takes:
"""
_NUMBERS = """
In paths, `{dp_rank}` (vLLM) and `{rank}` (SGLang) stand for the number of the process. It is added
to `metrics_port`.
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
    shared = [(f"`{name}`", *one) for name, one in {"shared_tier": TIER, **LIMITS}.items()]
    return sections(
        "Options",
        _INTRODUCTION,
        linked(table(_HEAD, rows)),
        _SHARED,
        linked(table(_HEAD, shared)),
        _VLLM,
        table(("option", "default", "meaning"), _of_vllm()),
        _NUMBERS,
    )


def _of_vllm() -> list[tuple[str, str, str]]:
    """Return the named options of vLLM's tier; the others are the store's."""
    classes = [
        node for node in ast.parse(source(_TIER_OF_VLLM)).body if isinstance(node, ast.ClassDef)
    ]
    (tier,) = (node for node in classes if node.name == "KvringTier")
    functions = [node for node in tier.body if isinstance(node, ast.FunctionDef)]
    (init,) = (node for node in functions if node.name == "__init__")
    texts = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", ast.get_docstring(init) or "", re.M)
    meanings = {name: " ".join(text.split()) for name, text in texts}
    defaults = init.args.defaults
    named = zip(init.args.args[-len(defaults) :], defaults, strict=True)
    return [
        (
            f"`{one.arg}`",
            str(ast.literal_eval(default)).replace("False", "false"),
            meanings[one.arg],
        )
        for one, default in named
        if one.arg != "backpressure_detector"
    ]
