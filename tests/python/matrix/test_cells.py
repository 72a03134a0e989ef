"""The matrix has every cell that there can be, and each value of each dimension in full."""

from tests.python.matrix.cells import (
    CELLS,
    ENGINES,
    FILE_SYSTEMS,
    FORMS,
    LAYOUTS,
    LOGICAL_BLOCKS_BYTES,
    Form,
    all_combinations,
)


def test_no_cell_is_left_out() -> None:
    raw = [(*cell[:3], str(cell.block_bytes)) for cell in CELLS if cell.medium == "raw"]
    mounted = [cell[:3] for cell in CELLS if cell.medium != "raw"]
    assert len(CELLS) == len(all_combinations()) == 16
    assert {*raw, *mounted} == all_combinations()
    assert all(forms.keys() == CELLS.keys() for forms in FORMS.values())


def test_file_systems_lie_on_blocks_of_both_lengths() -> None:
    found = {(cell.medium, cell.engine, cell.block_bytes) for cell in CELLS}
    assert found >= {
        (medium, engine, block_bytes)
        for medium in ("ext4", "xfs")
        for engine in ENGINES
        for block_bytes in LOGICAL_BLOCKS_BYTES
    }


def test_each_value_runs_in_full_in_every_make_test() -> None:
    full = [cell for cell, form in FORMS["default"].items() if form is Form.FULL]
    values = {value for cell in full for value in cell}
    assert values >= {*LAYOUTS, *ENGINES, *FILE_SYSTEMS, "raw", *LOGICAL_BLOCKS_BYTES}
