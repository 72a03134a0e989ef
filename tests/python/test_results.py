"""Results that are kept: a file says what it depends on, and is a table of Markdown."""

from pathlib import Path

from benches.results import Section, commit, write_results
from benches.tables import make_table


def test_a_results_file_has_its_conditions_and_its_table(tmp_path: Path) -> None:
    path = tmp_path / "results" / "name.md"
    table = make_table("Chunks", ["policy", "hits"], [["lfu", "1"], ["lru", "22"]])
    write_results(path, "Title", "make it", ["Of a model."], [Section(table, ["Of five rounds."])])
    title, _, made, machine, condition, *rest = path.read_text(encoding="utf-8").splitlines()
    assert title == "# Title"
    assert made.startswith("- Written by `make it` on 20")
    assert made.endswith(f"commit {commit()}.")
    assert "GiB of memory, Linux" in machine
    assert condition == "- Of a model."
    assert rest == [
        "",
        "## Chunks",
        "",
        "| policy | hits |",
        "| --- | ---: |",
        "| lfu | 1 |",
        "| lru | 22 |",
        "",
        "- Of five rounds.",
    ]
