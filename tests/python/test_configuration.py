"""The document's table of options says what the code says."""

from pathlib import Path

import kvring

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"


def rows_below(head: str) -> list[list[str]]:
    """Return the cells of the table with this head."""
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    rows = []
    for line in lines[lines.index(head) + 2 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def test_the_table_of_options_is_that_of_the_code() -> None:
    expected = [
        [f"`{name}`", option["default"] or "required", option["range"], option["meaning"]]
        for name, option in kvring.options().items()
    ]
    assert rows_below("| option | default | takes | meaning |") == expected
