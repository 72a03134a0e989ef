"""README's table of options says what the code says."""

from pathlib import Path

import kvring

README = Path(__file__).parents[2] / "README.md"


def test_the_table_of_options_is_that_of_the_code() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    first = lines.index("| option | default | takes | meaning |") + 2
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    expected = [
        [f"`{name}`", option["default"] or "required", option["range"], option["meaning"]]
        for name, option in kvring.options().items()
    ]
    assert rows == expected
