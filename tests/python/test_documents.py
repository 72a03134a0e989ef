"""The documents list what runs: errors of an open, what a store tells of itself, source files."""

import ast
import re
from collections import Counter
from pathlib import Path

from tests.python.conftest import REPOSITORY, Client

DOCS = REPOSITORY / "docs"
ERRORS = (DOCS / "reference" / "errors.md").read_text(encoding="utf-8")
METRICS = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """Return what is below a heading, up to the next one."""
    _, found, rest = text.partition(f"\n{heading}\n")
    assert found, heading
    return re.split(r"^#", rest, maxsplit=1, flags=re.M)[0]


def names(text: str, column: int = 0) -> set[str]:
    """Return the quoted names in a column of the tables of a section."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row[column])}


def test_every_reason_for_which_an_open_fails_is_listed() -> None:
    source = (REPOSITORY / "src" / "error.rs").read_text(encoding="utf-8")
    body = source.split("pub enum OpenError {")[1].split("\n}\n")[0]
    variants = set(re.findall(r"^    (\w+)(?:\(| \{|,)", body, re.M))
    assert len(variants) > 10
    arms = (REPOSITORY / "connector_py" / "src" / "errors.rs").read_text(encoding="utf-8")
    arms = arms.split("fn from_open")[1].split("\n}\n")[0]
    listed = section(ERRORS, "## Why an open fails")
    rows = [line.strip("|").split("|") for line in listed.splitlines() if line.startswith("| ")]
    classes = {
        variant: set(re.findall(r"`(\w+Error)`", row[2]))
        for row in rows
        for variant in re.findall(r"`(\w+)`", row[1])
        if variant != "OpenError"
    }
    assert classes.keys() == variants
    for variant, told in classes.items():
        raised = set(re.findall(r"(\w+Error)::new_err", arms[arms.index(f"::{variant}") :])[:1])
        raised = {name.removeprefix("Py") for name in raised}
        assert raised <= told, variant
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    promise = readme.split("\n5. ")[1].split("\n\n")[0]
    assert "(docs/reference/errors.md#why-an-open-fails)" in promise


def test_stats_are_those_that_are_listed(client: Client) -> None:
    """No name is missing, none is listed that is not there, and counters are with counters."""
    stats = client.connector.stats()
    latencies = {name for name in stats if re.fullmatch(r"\w+_(wait|device|total)_us_\w+", name)}
    source = (REPOSITORY / "src" / "stats.rs").read_text(encoding="utf-8")
    counters = source.split("\ncounters! {")[1].split("\n}\n")[0]
    counted = set(re.findall(r"^    (\w+),$", counters, re.M))
    assert names(section(METRICS, "### Counters in stats()")) == counted
    listed = names(section(METRICS, "### State in stats()"))
    assert listed == stats.keys() - latencies - counted
    (path,) = stats["paths"]
    assert names(section(METRICS, "### Of each path")) == path.keys()
    assert names(section(METRICS, "### Geometry")) == path["geometry"].keys()


def test_messages_that_are_explained_are_those_of_the_code() -> None:
    """A line that nobody writes any more, or that reads otherwise by now, is found by nobody."""
    sources = [path.read_text(encoding="utf-8") for path in (REPOSITORY / "src").rglob("*.rs")]
    # A long message goes on in the next line of the source.
    code = re.sub(r"\\\n\s*", "", "\n".join(sources))
    package = (REPOSITORY / "connector_py" / "kvring").rglob("*.py")
    code += re.sub(r'"\n\s*"', "", "\n".join(path.read_text(encoding="utf-8") for path in package))
    chapters = [
        ERRORS.split(f"\n{heading}\n")[1].split("\n## ")[0]
        for heading in ("## A line in the log", "## An error of a SET")
    ]
    rows = [line.strip("|").split("|")[0] for line in "\n".join(chapters).splitlines()]
    messages = [message for row in rows for message in re.findall(r"`([^`]+)`", row)]
    assert len(messages) > 40
    for message in messages:
        for part in filter(None, (part.strip() for part in message.split("..."))):
            assert part in code, message


def test_recovery_is_what_is_listed(client: Client) -> None:
    recovery = client.connector.recovery.keys()
    assert names(section(METRICS, "### After a crash")) - {"ttl"} == recovery
    assert set(re.findall(r"`(\w+)`", docstring("recovery"))) == recovery


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
        for name in re.findall(r"`((?:src|load|tests|connector_py|benches)/[\w/]+\.\w+)`", text):
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
