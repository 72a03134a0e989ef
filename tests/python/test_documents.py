"""The documents name what is there: files, types, dependencies, what a method returns."""

import ast
import re
from collections import Counter
from pathlib import Path

from kvring.cli.doctor.software import _TESTED_LMCACHE
from tests.python.conftest import REPOSITORY, Client

DOCS = REPOSITORY / "docs"


def section(text: str, heading: str) -> str:
    """Return what is below a heading, up to the next one."""
    _, found, rest = text.partition(f"\n{heading}\n")
    assert found, heading
    return re.split(r"^#", rest, maxsplit=1, flags=re.M)[0]


def test_what_other_methods_return_is_in_the_stub(client: Client) -> None:
    client.store({"model@0@0@0": b"content"})
    answers = {
        "usage": next(iter(client.connector.usage().values())),
        "purge": client.connector.purge("model"),
        "check": client.connector.check(),
        "close": client.connector.close(),
    }
    for method, answer in answers.items():
        assert answer.keys() <= set(re.findall(r"`(\w+)`", docstring(method))), method


def docstring(method: str) -> str:
    """Return what the stub says of a method of Connector."""
    stub = REPOSITORY / "connector_py" / "kvring" / "_native.pyi"
    for node in ast.walk(ast.parse(stub.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef) and node.name == "Connector":
            for one in node.body:
                if isinstance(one, ast.FunctionDef) and one.name == method:
                    return ast.get_docstring(one) or ""
    raise AssertionError(method)


def test_every_source_file_says_first_what_it_is() -> None:
    """There is no table of files: the first line of each is its entry."""
    sources = [
        path
        for package in ("src", "loadgen/src", "connector_py/src")
        for path in (REPOSITORY / package).rglob("*.rs")
    ]
    assert len(sources) > 100
    first_lines = {path: path.read_text(encoding="utf-8").split("\n", 1)[0] for path in sources}
    assert [path for path, line in first_lines.items() if not re.match(r"//! [\w`]", line)] == []


def test_files_that_the_documents_name_are_there() -> None:
    for page in pages():
        text = page.read_text(encoding="utf-8")
        for name in re.findall(
            r"`((?:src|loadgen|tests|tools|examples|deploy|connector_py|benches)/[\w/]+\.\w+)`",
            text,
        ):
            assert (REPOSITORY / name).exists(), f"{page.name}: {name}"
        for link, heading in re.findall(r"\]\(([\w./-]*)(?:#([\w-]+))?\)", text):
            target = (page.parent / link).resolve() if link else page
            assert target.exists(), f"{page.name}: {link}"
            assert not heading or heading in headings(target), f"{page.name}: {link}#{heading}"


def test_names_in_the_architecture_are_those_of_the_code() -> None:
    text = (DOCS / "explanation" / "architecture.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 180
    code = "\n".join(
        path.read_text(encoding="utf-8") for path in (REPOSITORY / "src").rglob("*.rs")
    )
    named = re.findall(r"`(?:([A-Z]\w+)|([A-Z]\w+)::(\w+))`", text)
    assert len(named) > 30
    for alone, owner, function in named:
        name = alone or owner
        assert re.search(rf"\b(?:struct|enum|trait|type) {name}\b", code), name
        assert not function or re.search(rf"\bfn {function}\b", code), f"{owner}::{function}"


def test_every_dependency_has_its_reason() -> None:
    """Each crate in a table of dependencies of ours is in that of the document, and no other."""
    used: set[str] = set()
    for manifest in ("Cargo.toml", "loadgen/Cargo.toml", "connector_py/Cargo.toml"):
        text = (REPOSITORY / manifest).read_text(encoding="utf-8")
        for table in re.findall(r"^\[(?:dev-)?dependencies\]\n(.*?)(?=^\[|\Z)", text, re.M | re.S):
            used |= set(re.findall(r"^([\w-]+)(?:\.workspace)? = ", table, re.M))
    decisions = (DOCS / "explanation" / "decisions.md").read_text(encoding="utf-8")
    rows = section(decisions, "## Dependencies").splitlines()
    listed = {
        crate
        for row in rows
        if row.startswith("| ") and "(Python)" not in row.split("|")[1]
        for crate in re.sub(r"\(.*\)", "", row.split("|")[1]).replace(",", " ").split()
    }
    assert listed - {"crate"} == used - {"kvring", "kvring-loadgen"}


def test_decisions_are_numbered_records_of_twenty_lines() -> None:
    text = (DOCS / "explanation" / "decisions.md").read_text(encoding="utf-8")
    records = re.split(r"^## ", text, flags=re.M)[1:-1]
    assert [int(record.split(".")[0]) for record in records] == [*range(1, len(records) + 1)]
    for record in records:
        title, *lines = record.strip().splitlines()
        assert len(lines) < 20, title
        parts = re.findall(r"\*\*(\w+)\.\*\*", record)
        assert parts == ["Context", "Decision", "Consequences", "Rejected"], title


def test_pages_keep_their_length() -> None:
    def words(page: Path) -> int:
        return len(page.read_text(encoding="utf-8").split())

    assert words(REPOSITORY / "README.md") <= 700
    assert sum(words(page) for page in DOCS.rglob("*.md")) <= 20_000


def test_every_result_is_linked_once_and_every_picture_is_shown() -> None:
    linked = Counter(
        (page.parent / link).resolve()
        for page in pages()
        for link in re.findall(r"\]\(([\w./-]+)", page.read_text(encoding="utf-8"))
    )
    kept = (REPOSITORY / "results").glob("*.md")
    results = {path for path in kept if path.name != "README.md"}
    assert results
    assert {path: linked[path] for path in results} == dict.fromkeys(results, 1)
    pictures = [path for path in (DOCS / "images").iterdir() if path.suffix in (".png", ".svg")]
    assert [path.name for path in pictures if not linked[path]] == []


def pages() -> list[Path]:
    """Return all pages that people read."""
    found = [*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md")]
    for directory in ("results", "tests", "tools"):
        found += (REPOSITORY / directory).glob("*.md")
    assert len(found) > 20
    return found


def headings(page: Path) -> set[str]:
    """Return the names by which links lead to the headings of a page."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_in_the_book() -> None:
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    book = re.findall(r"[\w/-]+\.md", (REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))
    assert set(book) == pages


def test_the_support_policy_names_the_versions_that_are_tested() -> None:
    text = (DOCS / "reference" / "support.md").read_text(encoding="utf-8")
    pages = sorted((REPOSITORY / "requirements").glob("*.txt"))
    requirements = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    for name in ("LMCache", "vLLM", "SGLang"):
        tested = set(re.findall(rf"^{name.lower()}==(\S+)$", requirements, re.M))
        (row,) = re.findall(rf"^\| {name} \| ([^|]+) \|", text, re.M)
        assert set(row.split(", ")) == tested, name
        if name == "LMCache":
            assert set(_TESTED_LMCACHE) == tested
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    pythons = re.findall(r"Python :: (3\.\d+)", project)
    assert f"| CPython | {pythons[0]} to {pythons[-1]} |" in text
