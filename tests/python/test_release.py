"""A release: its wheel where no compiler is, on each Python, and the trees that are no release.

The wheels are those of target/wheel, or of the directory in KVRING_TEST_WHEELS. The machine without
Rust is a virtual environment, an empty home, and a PATH without compilers.
"""

import os
import platform
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.python.conftest import REPOSITORY
from tests.support.documents import matches, steps
from tools.release import archive, missing_urls, refusals, version_of

WHEELS = Path(os.environ.get("KVRING_TEST_WHEELS", REPOSITORY / "target" / "wheel"))
COMPILERS = re.compile(r"(.*-)?(cargo|rustc|rustup|cc|c\+\+|gcc|g\+\+|clang|ld|maturin)([-.].*)?")

ROUND_TRIP = """
import sys, kvring
chunk = bytes(range(256)) * 4096
if sys.argv[2] == "store":
    with kvring.open(sys.argv[1], "64MiB") as store:
        store.put("model@0@0@1", chunk)
else:
    with kvring.open(sys.argv[1], "64MiB") as store:
        assert store.get("model@0@0@1") == chunk
print(kvring.__file__)
"""


def find_python(version: str) -> str:
    """Return an interpreter, from PATH or pyenv."""
    installed = (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python")
    for candidate in (shutil.which(f"python{version}"), *map(str, installed)):
        # pyenv has a python3.12 in PATH that fails where no 3.12 is chosen.
        if (
            candidate
            and subprocess.run([candidate, "-c", "import venv"], check=False).returncode == 0
        ):
            return candidate
    if "KVRING_TEST_WHEELS" in os.environ:
        pytest.fail(f"a release is tried on Python {version}: put it into PATH")
    pytest.skip(f"there is no Python {version}")


def find_wheel(version: str) -> Path:
    """Return the wheel that pip would take for a version."""
    tag = "cp310-cp310" if version == "3.10" else "cp311-abi3"
    wheels = sorted(WHEELS.glob(f"kvring-*-{tag}-*_{platform.machine()}.whl"))
    if not wheels:
        pytest.skip(f"{WHEELS} has no wheel of {tag}: make test builds one, make wheels both")
    return wheels[-1]


class Machine:
    """A place where commands find one Python, what pip has installed, and no compiler."""

    def __init__(self, python: str, wheel: Path, directory: Path) -> None:
        self.directory = directory
        self.wheel = wheel
        programs = directory / "programs"
        programs.mkdir()
        for place in ("/usr/sbin", "/usr/bin", "/sbin", "/bin"):
            for program in Path(place).iterdir():
                link = programs / program.name
                if not COMPILERS.fullmatch(program.name) and not link.is_symlink():
                    link.symlink_to(program)
        venv = directory / "venv"
        subprocess.run([python, "-m", "venv", venv], check=True)
        # Has `pip install kvring` take this wheel, and nothing else of the name.
        constraint = directory / "constraint.txt"
        constraint.write_text(f"kvring @ {wheel.resolve().as_uri()}\n", encoding="utf-8")
        # How this machine reaches a package index.
        reach = re.compile(r"PIP_.*|SSL_CERT_.*|.*_proxy|.*_PROXY")
        self.environment = {
            **{name: value for name, value in os.environ.items() if reach.fullmatch(name)},
            "HOME": str(directory / "home"),
            "LANG": "C.UTF-8",
            "PATH": f"{venv / 'bin'}:{programs}",
            "PIP_CONSTRAINT": str(constraint),
            "TMPDIR": str(directory),
        }
        (directory / "home").mkdir()

    def run(self, script: str, **variables: str) -> str:
        """Run a script of bash, and return what it printed."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.directory,
            env={**self.environment, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}"
        return done.stdout


@pytest.fixture(scope="module", params=["3.10", "3.11", "3.12", "3.13"])
def machine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A clean machine with kvring installed by pip."""
    wheel = find_wheel(request.param)
    one = Machine(find_python(request.param), wheel, tmp_path_factory.mktemp("machine"))
    for compiler in ("cargo", "rustc", "cc", "gcc", "ld"):
        assert shutil.which(compiler, path=one.environment["PATH"]) is None
    one.run("python -m pip install --quiet kvring")
    return one


@pytest.mark.slow
def test_the_commands_of_a_wheel_work(machine: Machine) -> None:
    version = version_of(REPOSITORY)
    assert machine.run("kvring --version").strip() == f"kvring {version}"
    assert "doctor" in machine.run("kvring --help")
    machine.run("mkdir doctor; kvring doctor doctor || [ $? = 3 ]")
    machine.run("pip check")


@pytest.mark.slow
def test_a_chunk_comes_back_in_another_process(machine: Machine) -> None:
    machine.run('python -c "$SCRIPT" store store', SCRIPT=ROUND_TRIP)
    place = machine.run('python -c "$SCRIPT" store load', SCRIPT=ROUND_TRIP)
    assert place.startswith(str(machine.directory / "venv"))
    assert "1 as they were stored" in machine.run("kvring verify store")


@pytest.mark.slow
def test_getting_started_works_without_an_engine(machine: Machine) -> None:
    """The page installs the wheel itself, stores a chunk and loads it; tabs of engines need one."""
    page = steps(REPOSITORY / "docs" / "getting-started.md", "Python")
    assert any("pip install" in step.script for step in page)
    machine.run("pip uninstall --quiet --yes kvring && mkdir outputs")
    # `kvring doctor` exits with 3 where it has warnings, as the page says.
    blocks = [
        f"{{ {step.script}\n}} > outputs/{number} || [ $? = 3 ] || exit 1\n"
        for number, step in enumerate(page)
    ]
    store = machine.directory / "started"
    machine.run("".join(blocks), STORE=str(store), WHEELS=str(machine.wheel.parent))
    for number, step in enumerate(page):
        output = (machine.directory / "outputs" / str(number)).read_text(encoding="utf-8")
        assert step.expected is None or matches(step.expected, output), (step, output)
    assert "1 as they were stored" in machine.run(f"kvring verify {store}")


@pytest.mark.slow
def test_the_oldest_dependencies_suffice(machine: Machine) -> None:
    oldest = re.findall(r'"(click|rich)>=([\d.]+)"', (REPOSITORY / "pyproject.toml").read_text())
    assert len(oldest) == 2
    machine.run(f"pip install --quiet {' '.join(f'{name}=={least}' for name, least in oldest)}")
    machine.run("kvring --help; mkdir old; kvring doctor old || [ $? = 3 ]")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A committed tree with what a release looks at."""
    root = tmp_path / "tree"
    root.mkdir()
    for name in ("Cargo.toml", "Cargo.lock", "CHANGELOG.md", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, root)
    (root / "README.md").write_text(f"pip install kvring=={VERSION}\n", encoding="utf-8")
    commit(root)
    return root


def commit(root: Path) -> None:
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    for command in (["init", "--quiet"], ["add", "."], [*identity, "commit", "--quiet", "-mx"]):
        subprocess.run(["git", *command], cwd=root, check=True)


def replace(name: str, old: str, new: str) -> Callable[[Path], None]:
    """Return what changes a file of a tree, and commits it."""

    def change(root: Path) -> None:
        text = (root / name).read_text(encoding="utf-8")
        assert old in text
        (root / name).write_text(text.replace(old, new, 1), encoding="utf-8")
        commit(root)

    return change


VERSION = version_of(REPOSITORY)
DATED = f"## [{VERSION}] - 20"


def tag_and_go_on(root: Path) -> None:
    subprocess.run(["git", "tag", f"v{VERSION}"], cwd=root, check=True)
    # The tagged commit may be built again.
    assert refusals(root) == []
    (root / "new").touch()
    commit(root)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda root: (root / "new").touch(), "1 uncommitted changes"),
        (tag_and_go_on, f"v{VERSION} is the tag of another commit"),
        (replace("CHANGELOG.md", f"## [{VERSION}]", "## [0.0.9]"), "in CHANGELOG.md is 0.0.9"),
        (
            replace("CHANGELOG.md", "## [Unreleased]\n", "## [Unreleased]\n### Added\n- x\n"),
            "CHANGELOG.md has entries in Unreleased",
        ),
        (replace("CHANGELOG.md", DATED, f"## [{VERSION}] - soon"), "gives no date"),
        (
            replace("CHANGELOG.md", DATED, f"## [{VERSION}] - 2026-02-30\n## [0] - 20"),
            "gives no date",
        ),
        (
            replace("Cargo.toml", f'version = "{VERSION}"', 'version = "9.9.9"'),
            f"Cargo.lock has kvring {VERSION}, Cargo.toml 9.9.9: run cargo update --workspace",
        ),
        (
            replace("README.md", f"kvring=={VERSION}", "kvring==0.0.9"),
            f"README.md installs kvring 0.0.9, Cargo.toml has {VERSION}",
        ),
        (
            replace("pyproject.toml", 'name = "kvring"', 'name = "kvring"\nversion = "9.9.9"'),
            "pyproject.toml has a version of its own",
        ),
    ],
    ids=[
        "dirty",
        "tagged",
        "no section",
        "unreleased",
        "no date",
        "no day of a month",
        "lock",
        "page",
        "second version",
    ],
)
def test_what_is_no_release_is_refused(
    tree: Path, change: Callable[[Path], None], reason: str
) -> None:
    assert refusals(tree) == []
    change(tree)
    assert any(reason in line for line in refusals(tree)), refusals(tree)


def test_a_version_may_end_a_sentence(tree: Path) -> None:
    replace("README.md", f"kvring=={VERSION}", f"kvring=={VERSION}.")(tree)
    assert refusals(tree) == []


def test_addresses_that_the_owner_has_not_set_are_named(tree: Path) -> None:
    unset = missing_urls(tree)
    replace("pyproject.toml", "[project.urls]", '[project.urls]\nIssues = "https://x.test"')(tree)
    assert missing_urls(tree) == [label for label in unset if label != "Issues"]


def test_an_archive_depends_on_names_and_contents_alone(tmp_path: Path) -> None:
    archives: list[bytes] = []
    for copy in ("first", "second"):
        book = tmp_path / copy / "book"
        book.mkdir(parents=True)
        # Another order of creation, other times, another mode.
        for name in sorted(("a.html", "b.html"), reverse=copy == "second"):
            (book / name).write_text(name, encoding="utf-8")
            os.utime(book / name, (len(archives), len(archives)))
        book.chmod(0o700 if archives else 0o755)
        target = tmp_path / copy / "kvring-docs.tar.gz"
        archive(book, target, 1_700_000_000)
        archives.append(target.read_bytes())
    assert archives[0] == archives[1]
    with tarfile.open(tmp_path / "first" / "kvring-docs.tar.gz") as tar:
        assert tar.getnames() == ["kvring-docs", "kvring-docs/a.html", "kvring-docs/b.html"]
