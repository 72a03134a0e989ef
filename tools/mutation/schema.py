"""A file of source with all of its mutants in it, each behind a switch that is read at run time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache

import tree_sitter_rust
from tree_sitter import Language, Node, Parser

from tools.mutation.listing import Mutant

# What the rest of the crate asks: is this the mutant that runs?
SWITCH = """\
//! Which mutant of this build runs.

use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

const MOST: usize = 1 << 14;

static RUNS: OnceLock<Option<u32>> = OnceLock::new();
static REACHED: [AtomicBool; MOST] = [const { AtomicBool::new(false) }; MOST];
/// Open from the first one on: later there may be no descriptor to spare, or another user.
static FILE: OnceLock<Option<File>> = OnceLock::new();

fn runs() -> Option<u32> {
    std::env::var("KVRING_MUTANT").ok()?.parse().ok()
}

fn file() -> Option<File> {
    File::options().append(true).open(std::env::var_os("KVRING_REACHED")?).ok()
}

pub(crate) fn on(number: u32) -> bool {
    if let Some(mutant) = RUNS.get_or_init(runs) {
        return *mutant == number;
    }
    if !REACHED[number as usize].swap(true, Ordering::Relaxed)
        && let Some(mut file) = FILE.get_or_init(file).as_ref()
    {
        let _ = file.write_all(format!("{number}\\n").as_bytes());
    }
    false
}
"""

_BINARY = ("binary_expression", "compound_assignment_expr")
# Around a mutant, and around an expression that has some: errors are traced to them.
_MARKS = re.compile(rb"/\*(<|\[)(\d+(?:,\d+)*)\*/|/\*(\d+(?:,\d+)*)(>|\])\*/")


class Schema:
    """One file, and what of it can be switched."""

    def __init__(self, source: bytes, mutants: Iterable[Mutant]) -> None:
        self._source = source
        self._lines = source.split(b"\n")
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line) + 1)
        self._root = _parser().parse(source).root_node
        self._by_node: dict[int, list[Mutant]] = defaultdict(list)
        self.unplaced: list[Mutant] = []
        for mutant in mutants:
            node = self._node_of(mutant)
            if node is None:
                self.unplaced.append(mutant)
            else:
                self._by_node[node.id].append(mutant)

    def text(self) -> bytes:
        """Return the file with all mutants that have a place in it."""
        return self._rendered(self._root)

    def _offset(self, place: tuple[int, int]) -> int:
        line, column = place
        before = self._lines[line - 1].decode()[: column - 1]
        return self._starts[line - 1] + len(before.encode())

    def _span(self, mutant: Mutant) -> tuple[int, int]:
        return self._offset(mutant.start), self._offset(mutant.end)

    def _node_of(self, mutant: Mutant) -> Node | None:
        start, end = self._span(mutant)
        node = self._root.descendant_for_byte_range(start, max(start, end - 1))
        while node is not None and not self._fits(node, mutant, start):
            node = node.parent
        return node

    def _fits(self, node: Node, mutant: Mutant, start: int) -> bool:
        match mutant.genre:
            case "FnValue":
                return node.type == "block" and _parent(node).type == "function_item"
            case "BinaryOperator":
                return node.type in _BINARY and _field(node, "operator").start_byte == start
            case "UnaryOperator":
                return node.type == "unary_expression" and node.start_byte == start
            case "MatchArm":
                return node.type == "match_arm" and self._guard(node) is not _LET
            case "MatchArmGuard":
                return node.type == "match_arm" and self._guard(node) not in (None, _LET)
            case "StructField":
                return node.type == "struct_expression"
        return False

    def _guard(self, arm: Node) -> Node | str | None:
        condition = _field(arm, "pattern").child_by_field_name("condition")
        return _LET if condition is not None and "let" in condition.type else condition

    def _original(self, node: Node) -> bytes:
        return self._source[node.start_byte : node.end_byte]

    def _inner(self, node: Node) -> bytes:
        """The text of a node whose children may have mutants."""
        parts, at = [], node.start_byte
        for child in node.children:
            parts += [self._source[at : child.start_byte], self._rendered(child)]
            at = child.end_byte
        return b"".join(parts) + self._source[at : node.end_byte]

    def _rendered(self, node: Node) -> bytes:
        mutants = self._by_node.get(node.id)
        if not mutants:
            return self._inner(node)
        if node.type == "block":
            return self._function(node, mutants)
        if node.type == "match_arm":
            return self._arm(node, mutants)
        ways = b""
        for mutant in mutants:
            ways += _marked(
                mutant, b"if %s { %s } else" % (_on(mutant), self._changed(node, mutant))
            )
            ways += b" "
        text = b"%s{ %s }" % (ways, self._inner(node))
        if _parent(node).type != "expression_statement":
            text = b"(" + text + b")"
        return _enclosed(mutants, text)

    def _function(self, body: Node, mutants: list[Mutant]) -> bytes:
        ways = b"".join(
            _marked(one, b"if %s { return %s; }" % (_on(one), one.replacement.encode()))
            for one in mutants
        )
        return _enclosed(mutants, b"{ %s %s }" % (ways, self._inner(body)))

    def _arm(self, arm: Node, mutants: list[Mutant]) -> bytes:
        pattern = _field(arm, "pattern")
        guard = self._guard(arm)
        conditions = []
        if isinstance(guard, Node):
            conditions.append(b"(%s)" % self._rendered(guard))
            bare = self._source[pattern.start_byte : guard.start_byte].rstrip()
            bare = bare.removesuffix(b"if")
        else:
            bare = self._original(pattern)
        for mutant in mutants:
            on = _on(mutant)
            if mutant.genre == "MatchArmGuard" and mutant.replacement == "true":
                conditions[0] = _marked(mutant, b"(%s || %s)" % (on, conditions[0]))
            else:
                conditions.append(_marked(mutant, b"!" + on))
        rest = b"".join(
            self._source[before.end_byte : after.start_byte] + self._rendered(after)
            for before, after in zip(arm.children, arm.children[1:], strict=False)
            if after.start_byte >= pattern.end_byte
        )
        head = self._source[arm.start_byte : pattern.start_byte] + bare
        return _enclosed(mutants, b"%s if %s%s" % (head, b" && ".join(conditions), rest))

    def _changed(self, node: Node, mutant: Mutant) -> bytes:
        start, end = self._span(mutant)
        if node.type in _BINARY:
            left, right = _field(node, "left"), _field(node, "right")
            operator = mutant.replacement.encode()
            return b"(%s) %s (%s)" % (self._original(left), operator, self._original(right))
        text = self._original(node)
        start, end = start - node.start_byte, end - node.start_byte
        if mutant.genre == "UnaryOperator":
            return text[1:]
        rest = text[end:].lstrip()
        return text[:start] + rest.removeprefix(b",")


_LET = "let"


def blamed(text: bytes, offset: int) -> set[int]:
    """Return the innermost mutants around the place of an error."""
    open_marks: list[tuple[bool, set[int]]] = []
    for mark in _MARKS.finditer(text):
        if mark.start() > offset:
            break
        if mark[1]:
            open_marks.append((mark[1] == b"<", {int(part) for part in mark[2].split(b",")}))
        else:
            open_marks.pop()
    return open_marks[-1][1] if open_marks else set()


def arms_of_match(text: bytes, offset: int) -> set[int]:
    """Return the mutants of arms of the match around an offset: it may lack a case."""
    node = _parser().parse(text).root_node.descendant_for_byte_range(offset, offset)
    while node is not None and node.type != "match_expression":
        node = node.parent
    within = text[node.start_byte : node.end_byte] if node else b""
    return {int(number) for number in re.findall(rb"!crate::mutant::on\((\d+)\)", within)}


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_rust.language()))


def _field(node: Node, name: str) -> Node:
    child = node.child_by_field_name(name)
    if child is None:
        raise ValueError(f"a {node.type} without {name}")
    return child


def _parent(node: Node) -> Node:
    if node.parent is None:
        raise ValueError("the root of the file has no parent")
    return node.parent


def _on(mutant: Mutant) -> bytes:
    return b"crate::mutant::on(%d)" % mutant.number


def _marked(mutant: Mutant, text: bytes) -> bytes:
    return b"/*<%d*/%s/*%d>*/" % (mutant.number, text, mutant.number)


def _enclosed(mutants: list[Mutant], text: bytes) -> bytes:
    numbers = ",".join(str(mutant.number) for mutant in mutants).encode()
    return b"/*[%s*/%s/*%s]*/" % (numbers, text, numbers)
