"""No statement of the core takes two locks: the order in which it would is in none of its names."""

from collections.abc import Iterator
from pathlib import Path

import tree_sitter_rust
from tree_sitter import Language, Node, Parser

from tests.python.conftest import REPOSITORY

PARSER = Parser(Language(tree_sitter_rust.language()))

# Without arguments they return a guard; `read(buffer)` of a file is none.
LOCKING = {b"lock", b"read", b"write"}

# What is inside ends its temporaries itself.
OWN_STATEMENTS = {"block", "closure_expression", "match_arm"}


def locks_of(node: Node) -> int:
    """Count the guards that live as long as this statement."""
    own = node.type == "call_expression" and _takes_lock(node)
    inner = (child for child in node.children if child.type not in OWN_STATEMENTS)
    return own + sum(locks_of(child) for child in inner)


def _takes_lock(call: Node) -> bool:
    function = call.child_by_field_name("function")
    arguments = call.child_by_field_name("arguments")
    if function is None or function.type != "field_expression" or arguments is None:
        return False
    name = function.child_by_field_name("field")
    return name is not None and name.text in LOCKING and not arguments.named_children


def statements_of(node: Node) -> Iterator[Node]:
    """Yield each statement, and each expression that a block ends with."""
    for child in node.children:
        if node.type in OWN_STATEMENTS and child.is_named:
            yield child
        yield from statements_of(child)


def places_of(source: bytes, name: str) -> list[str]:
    root = PARSER.parse(source).root_node
    return [
        f"{name}:{one.start_point[0] + 1}"
        for one in statements_of(root)
        if one.type not in OWN_STATEMENTS and locks_of(one) > 1
    ]


def sources() -> list[Path]:
    places = [REPOSITORY / "src", REPOSITORY / "connector_py" / "src"]
    return sorted(path for place in places for path in place.rglob("*.rs"))


def test_no_statement_takes_two_locks() -> None:
    found = [
        place
        for path in sources()
        for place in places_of(path.read_bytes(), str(path.relative_to(REPOSITORY)))
    ]
    assert found == []


def test_two_locks_in_a_statement_are_found() -> None:
    source = b"""fn usage(&self) -> Usage {
        let one = self.a.lock().len();
        let other = { let guard = self.a.lock(); guard.len() } + self.b.read().len();
        self.each(|| self.a.lock().len());
        Usage { a: self.a.lock().len(), b: self.b.read().len() }
    }
    fn sum(&self) -> usize { self.a.lock().len() + self.b.lock().len() }"""
    assert places_of(source, "usage.rs") == ["usage.rs:5", "usage.rs:7"]
