"""What the core has to say arrives in Python's logging, under the logger "kvring"."""

import hashlib
import logging
import re
import signal
import sys
import types
from pathlib import Path

import pytest

import kvring
from tests.python.conftest import (
    CAPACITY_BYTES,
    MIB,
    SMALL_CAPACITY_BYTES,
    Client,
    bare_loop_device,
    make_memory,
    pattern,
    run_child,
)
from tests.support.damage import damage

# Its salt is not to be in any log.
SECRET_KEY = "model@00000000@0@" + 64 * "a" + "@salt-of-a-tenant"

LINE = "%(name)s %(levelname)s %(message)s"


def lines_of(text: str, level: str) -> list[str]:
    """Return the lines of one level; each must come from the logger "kvring"."""
    lines = [line for line in text.splitlines() if line.split()[1] == level]
    assert all(line.startswith("kvring ") for line in lines)
    return lines


def open_twice_at(directory: str, level: int) -> None:
    logging.basicConfig(level=level, format=LINE)
    for _ in range(2):
        with kvring.Connector(directory, CAPACITY_BYTES) as connector:
            Client(connector).store({"key": b"content"})


def test_opening_is_told_at_info(store_directory: Path) -> None:
    told = run_child(open_twice_at, str(store_directory), logging.INFO)
    assert told.returncode == 0, told.stderr
    assert told.stdout == ""
    lines = lines_of(told.stderr, "INFO")
    assert lines == told.stderr.splitlines()
    place = rf"kvring INFO {re.escape(str(store_directory))}: "
    facts = rf"kvring {re.escape(kvring.__version__)}, (io_uring|posix), \w+ on \S+, "
    sizes = r"capacity 256\.0 MiB, chunks up to [\d.]+ MiB, "
    ends = ["new", "1 chunk recovered after clean shutdown; lost: nothing"]
    closed = f"{place}closed in order, 0 operations abandoned"
    opened = [f"{place}{facts}{sizes}{end}" for end in ends]
    expected = [opened[0], closed, opened[1], closed]
    assert len(lines) == 4
    assert [one for one in zip(expected, lines, strict=True) if not re.fullmatch(*one)] == []


def opening_lines(caplog: pytest.LogCaptureFixture, paths: list[Path]) -> list[str]:
    """Open and close a store; return what the open logged, with the level of each line."""
    caplog.clear()
    names = [str(path) for path in paths]
    with kvring.Connector(names, "64MiB", min_free=0):
        return [f"{one.levelname} {one.getMessage()}" for one in caplog.records]


def test_each_path_is_told_of_in_one_line_with_what_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kvring")
    paths = [tmp_path / "first", tmp_path / "second"]
    lines = opening_lines(caplog, paths)
    assert [line.endswith(", new") for line in lines] == [True, True]
    assert [f"INFO {path}: kvring " in line for path, line in zip(paths, lines, strict=True)]
    with (paths[0] / "index.kvring").open("r+b") as file:
        file.write(bytes(4096))
    (path,) = paths[:1]
    (line,) = opening_lines(caplog, [path])
    assert line.startswith(f"WARNING {path}: kvring ")
    assert "0 chunks recovered after unclean shutdown; lost: the index (" in line


@pytest.mark.root
def test_a_device_is_told_of_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvring")
    with bare_loop_device(tmp_path, 96 * MIB) as device:
        (first,) = opening_lines(caplog, [device.path])
        (again,) = opening_lines(caplog, [device.path])
    assert first.startswith(f"INFO {device.path}: kvring ")
    assert ", block device of 96.0 MiB, capacity 64.0 MiB, " in first
    assert (first.endswith(", new"), again.endswith("shutdown; lost: nothing")) == (True, True)


def test_nothing_is_told_at_warning_when_all_is_well(store_directory: Path) -> None:
    told = run_child(open_twice_at, str(store_directory), logging.WARNING)
    assert (told.returncode, told.stdout, told.stderr) == (0, "", "")


def open_before_and_after_configuring(directory: str) -> None:
    logging.basicConfig(format=LINE)
    kvring.Connector(f"{directory}/first", CAPACITY_BYTES).close()
    logging.getLogger("kvring").setLevel(logging.INFO)
    kvring.Connector(f"{directory}/second", CAPACITY_BYTES).close()
    logging.getLogger("kvring").setLevel(logging.ERROR)
    kvring.Connector(f"{directory}/third", CAPACITY_BYTES).close()


def test_a_level_that_is_set_later_counts_from_then_on(store_directory: Path) -> None:
    told = run_child(open_before_and_after_configuring, str(store_directory))
    assert told.returncode == 0, told.stderr
    lines = lines_of(told.stderr, "INFO")
    assert lines
    assert all("/second" in line for line in lines)


def load_damaged(directory: str) -> None:
    logging.basicConfig(level=logging.WARNING, format=LINE)
    with kvring.Connector(directory, CAPACITY_BYTES) as connector:
        completion = Client(connector).get([SECRET_KEY], [bytearray(MIB)])
    assert completion[1:] == (True, "", [False])


def test_damage_is_told(store_directory: Path) -> None:
    """A message from a thread that Python does not know arrives with the completion.

    It names the key by its digest alone.
    """
    with kvring.Connector(store_directory, CAPACITY_BYTES) as connector:
        Client(connector).store({SECRET_KEY: pattern(MIB, 1)})
    damage(store_directory)
    told = run_child(load_damaged, str(store_directory))
    assert told.returncode == 0, told.stderr
    lines = lines_of(told.stderr, "ERROR")
    assert len(lines) == 1
    digest = hashlib.blake2b(SECRET_KEY.encode(), digest_size=16).hexdigest()
    assert f"a chunk (digest {digest}, " in lines[0]
    assert "does not match its checksum" in lines[0]
    assert "salt" not in told.stderr


def log_into_the_connector(directory: str) -> None:
    """Handle messages with code that uses the connector itself."""
    connectors: list[kvring.Connector] = []
    seen: list[str] = []

    class Handler(logging.Handler):
        """Asks the connector for its state at each message."""

        def emit(self, record: logging.LogRecord) -> None:
            seen.extend(repr(connector) for connector in connectors)
            seen.append(record.getMessage())

    logging.getLogger("kvring").addHandler(Handler())
    logging.getLogger("kvring").setLevel(logging.INFO)
    with kvring.Connector(directory, CAPACITY_BYTES) as connector:
        connectors.append(connector)
        Client(connector).get([SECRET_KEY], [bytearray(MIB)])
    assert any("does not match its checksum" in message for message in seen)
    assert any(message.startswith("kvring.Connector(") for message in seen)
    print("done")


def test_a_handler_may_use_the_connector(store_directory: Path) -> None:
    with kvring.Connector(store_directory, CAPACITY_BYTES) as connector:
        Client(connector).store({SECRET_KEY: pattern(MIB, 1)})
    damage(store_directory)
    told = run_child(log_into_the_connector, str(store_directory))
    assert (told.returncode, told.stdout, told.stderr) == (0, "done\n", "")


def log_while_a_completion_waits(directory: str) -> None:
    """Nothing of the application runs between taking completions and returning them."""
    seen: list[bool] = []
    with kvring.Connector(directory, SMALL_CAPACITY_BYTES) as connector:
        client = Client(connector)

        class Handler(logging.Handler):
            """Sees whether the completion is still to be taken."""

            def emit(self, record: logging.LogRecord) -> None:
                del record
                seen.append(client.is_readable())

        logging.getLogger("kvring").addHandler(Handler(logging.WARNING))
        client.set(["m@1@0@a"], [make_memory(2 * SMALL_CAPACITY_BYTES)])
    assert seen == [True]


def test_messages_are_told_before_completions_are_taken(store_directory: Path) -> None:
    told = run_child(log_while_a_completion_waits, str(store_directory))
    assert (told.returncode, told.stdout, told.stderr) == (0, "", "")


def open_beside(program: str, directory: str, configures_later: bool) -> None:
    sys.modules[program] = types.ModuleType(program)
    kvring.Connector(f"{directory}/first", CAPACITY_BYTES).close()
    if configures_later:
        logging.basicConfig(level=logging.WARNING, format=LINE)
        kvring.Connector(f"{directory}/second", CAPACITY_BYTES).close()
        assert logging.getLogger("kvring").handlers == []


@pytest.mark.parametrize("configures_later", [False, True])
@pytest.mark.parametrize("program", ["lmcache", "vllm"])
def test_beside_these_messages_have_time_level_and_store(
    store_directory: Path, program: str, configures_later: bool
) -> None:
    """They configure their own loggers alone; what is configured later takes over."""
    told = run_child(open_beside, program, str(store_directory), configures_later)
    assert (told.returncode, told.stdout) == (0, "")
    lines = told.stderr.splitlines()
    assert lines
    stamp = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\]"
    line = rf"{stamp} INFO kvring: {re.escape(str(store_directory))}/first: .*"
    assert [one for one in lines if not re.fullmatch(line, one)] == []


@pytest.mark.parametrize(("level", "is_told"), [("WARNING", False), ("info", True), ("LOUD", True)])
@pytest.mark.parametrize(
    ("program", "variable"), [("lmcache", "LMCACHE_LOG_LEVEL"), ("vllm", "VLLM_LOGGING_LEVEL")]
)
def test_the_level_of_the_program_counts(
    store_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    program: str,
    variable: str,
    level: str,
    is_told: bool,
) -> None:
    monkeypatch.setenv(variable, level)
    told = run_child(open_beside, program, str(store_directory), False)
    assert told.returncode == 0
    assert bool(told.stderr) == is_told


class _Interrupting(logging.Handler):
    """Is where Ctrl-C comes."""

    def emit(self, _: logging.LogRecord) -> None:
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_while_a_line_is_logged_is_not_lost(
    store_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kvring")
    handler = _Interrupting()
    # What a shell starts in the background ignores it.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    logger = logging.getLogger("kvring")
    logger.addHandler(handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            kvring.Connector(store_directory, "64MiB")
    finally:
        logger.removeHandler(handler)
        signal.signal(signal.SIGINT, former)
    with kvring.Connector(store_directory, "64MiB") as connector:
        assert connector.stats()["keys"] == 0
