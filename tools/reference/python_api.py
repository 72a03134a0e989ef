"""python.md: what programs call, by docstrings."""

import ast
import re
from typing import Final

import kvring
from tools.reference.errors import open_exceptions
from tools.reference.markdown import linked, sections, table
from tools.reference.rust import source

__all__ = ["page"]

_INTRODUCTION: Final = """
```python
import kvring

with kvring.open("/mnt/nvme/kvring", "500GiB", ttl="7d") as store:
    store.put("model@0@0@1", b"bytes of a chunk")
    print(store.get("model@0@0@1"))  # a bytearray; None for a miss
```

`Store` waits for each answer; `Connector` has completions, for event loops.
"""
_STUB: Final = "connector_py/kvring/_native.pyi"
_STORE: Final = "connector_py/kvring/store.py"


def page() -> str:
    """Return the page."""
    stub, store = (_Module(path) for path in (_STUB, _STORE))
    epochs = _Module("connector_py/kvring/epochs.py")
    functions = [
        store.function("open"),
        stub.function("build_info"),
        stub.function("options"),
        epochs.function("set_epoch"),
    ]
    return sections(
        "Python API",
        _INTRODUCTION,
        "## Store",
        *store.class_members("Store"),
        "## Connector",
        *stub.class_members("Connector"),
        "## Functions",
        table(("function", "effect"), functions),
        "## Exceptions",
        _exceptions(stub, store),
    )


class _Module:
    """The classes and functions of a source file."""

    def __init__(self, path: str) -> None:
        tree = ast.parse(source(path))
        self._all = {
            node.name: node
            for node in tree.body
            if isinstance(node, (ast.ClassDef, ast.FunctionDef))
        }
        self._constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.AnnAssign)
            for target in [node.target]
            if isinstance(target, ast.Name) and isinstance(node.value, ast.Constant)
        }

    def class_of(self, name: str) -> ast.ClassDef | None:
        node = self._all.get(name)
        return node if isinstance(node, ast.ClassDef) else None

    def function(self, name: str) -> tuple[str, str]:
        """Return a function, and what it does."""
        node = self._all[name]
        assert isinstance(node, ast.FunctionDef)
        return self._described(node)

    def class_members(self, name: str) -> list[str]:
        """Return what a class is, and what its methods do."""
        node = self.class_of(name)
        assert node is not None
        members = [one for one in node.body if isinstance(one, ast.FunctionDef)]
        public = [one for one in members if not one.name.startswith("_") and ast.get_docstring(one)]
        rows = [self._described(one) for one in public]
        return [_rendered(ast.get_docstring(node) or ""), table(("method", "effect"), rows)]

    def _described(self, node: ast.FunctionDef) -> tuple[str, str]:
        is_property = any(ast.unparse(one) == "property" for one in node.decorator_list)
        name = node.name if is_property else f"{node.name}({self._parameters(node.args)})"
        result = ast.unparse(node.returns) if node.returns else "Any"
        # A longer one is in the text.
        if result not in ("Any", "None") and " " not in result:
            name += f" -> {result}"
        return f"`{name}`", _in_one_line(ast.get_docstring(node) or "")

    def _parameters(self, arguments: ast.arguments) -> str:
        """Return parameters without their types."""
        for one in (*arguments.args, *arguments.kwonlyargs, arguments.kwarg):
            if one is not None:
                one.annotation = None
        for defaults in (arguments.defaults, arguments.kw_defaults):
            for position, default in enumerate(defaults):
                if isinstance(default, ast.Name):
                    defaults[position] = self._constants[default.id]
        return ast.unparse(arguments).removeprefix("self, ").removeprefix("self")


def _in_one_line(docstring: str) -> str:
    """Return what a function does, returns and raises."""
    text, *parts = re.split(r"\n\n?(Args|Returns|Raises):\n", docstring)
    lines = [text]
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        if title == "Returns":
            body = body.strip()
            lines.append(f"Returns {body if body[0] == '`' else body[0].lower() + body[1:]}")
            continue
        if title == "Args":
            # They are in help(); most say it by their names.
            continue
        for name, meaning in re.findall(r"^ {4}(\w+): ((?:.|\n(?: {5}|$))*)", body, re.M):
            lines.append(f"Raises `{name}`: {meaning}")
    return linked(" ".join(" ".join(lines).split()))


def _rendered(docstring: str) -> str:
    """Return what a class is."""
    return linked(_joined(docstring.partition("\n\nAttributes:\n")[0]))


def _joined(text: str) -> str:
    """Join the lines of each paragraph and each item of a list."""
    paragraphs = []
    for paragraph in text.split("\n\n"):
        items = re.split(r"\n(?=- )", paragraph)
        paragraphs.append("\n".join(" ".join(item.split()) for item in items))
    return "\n\n".join(paragraphs)


def _exceptions(*modules: _Module) -> str:
    """Return a list of the exceptions that the package exports."""
    of_opens = open_exceptions()
    rows = [
        (
            ", ".join(f"`{name}`" for name in of_opens),
            "[Why an open fails](errors.md#why-an-open-fails)",
        )
    ]
    for name in kvring.__all__:
        for node in filter(None, (module.class_of(name) for module in modules)):
            if name.endswith("Error") and name not in of_opens:
                bases = ", ".join(ast.unparse(base) for base in node.bases)
                text = _rendered(ast.get_docstring(node) or "").partition("\n\n")[0]
                rows.append((f"`{name}({bases})`", text))
    return table(("exception", "meaning"), rows)
