"""The commands of docs/getting-started.md run as printed, and print what the page shows.

Variables that the page itself defines have other values here: a small store, little memory, a
small model with random weights, and the options with which vLLM and LMCache run on processors.
The environment has all that the page presupposes. It has no network.
"""

import os
import re
import subprocess
import sysconfig
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.python.conftest import REPOSITORY
from tests.support.documents import Step, matches, steps
from tests.support.engine_environment import make_environment
from tests.support.machines import KILLED_WITH_PARENT

PAGE = REPOSITORY / "docs" / "getting-started.md"
WHEELS = REPOSITORY / "target" / "wheel"
# Ports, processes and shared memory of the page's servers are seen by nobody else, and end with it.
ALONE = ["unshare", "--net", "--pid", "--mount", "--mount-proc", "--fork", "--kill-child"]
ALONE += [] if os.geteuid() == 0 else ["--map-root-user"]
PREPARATION = "ip link set lo up && mount -t tmpfs tmpfs /dev/shm"
WRITE_MODEL = """
import sys
from pathlib import Path
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from tests.support.random_llama import write_llama

directory = Path(sys.argv[1])
write_llama(directory, seed=1, layers=4, hidden_size=256)
names = {f"word{number}": number for number in range(4096)}
tokenizer = Tokenizer(models.WordLevel(names, unk_token="word0"))
tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="word0").save_pretrained(directory)
"""

Run = Callable[[str, list[Step]], list[str]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def packages() -> list[Path]:
    """Those of vLLM and SGLang, if there are any, and of LMCache."""
    engines = sorted((REPOSITORY / ".venv-engines").glob("lib/python3*/site-packages"))
    return [*engines, Path(sysconfig.get_path("purelib"))]


@pytest.fixture
def run(tmp_path: Path, packages: list[Path]) -> Run:
    """Run blocks of a tab in one shell and an environment of its own, and return what each prints.

    Several tabs can run at once.
    """
    if not list(WHEELS.glob("*.whl")):
        pytest.skip(f"there is no wheel in {WHEELS} (make engines)")
    if subprocess.run([*ALONE, "sh", "-c", PREPARATION], capture_output=True).returncode:
        pytest.skip(f"`{' '.join(ALONE)}` is not allowed here, or there is no `ip`")
    model = tmp_path / "model"

    def run(tab: str, page_steps: list[Step]) -> list[str]:
        directory = tmp_path / tab
        directory.mkdir()
        programs = make_environment(directory / "environment", packages)
        blocks = [
            # `kvring doctor` exits with 3 where it has warnings, as the page says.
            f"{{ {step.script}}} > {number}.out 2> {number}.err || [ $? = 3 ] || exit {number + 1}"
            for number, step in enumerate(page_steps)
        ]
        script = directory / "page.sh"
        script.write_text("\n".join([PREPARATION, *blocks]))
        # vLLM makes sockets in it, whose paths have 107 characters at most.
        with tempfile.TemporaryDirectory(prefix="kvring-") as temporary:
            status = subprocess.run(
                [*KILLED_WITH_PARENT, *ALONE, "bash", script],
                cwd=directory,
                env=environment_of(directory, programs, model) | {"TMPDIR": temporary},
                check=False,
            ).returncode
        if status:
            print((directory / f"{status - 1}.out").read_text())
            print((directory / f"{status - 1}.err").read_text())
            for log in directory.glob("*.log"):
                print(f"--- {log.name}", log.read_text(errors="replace")[-4000:], sep="\n")
            pytest.fail(f"{tab}: block {status} failed:\n{page_steps[status - 1].script}")
        return [(directory / f"{number}.out").read_text() for number in range(len(page_steps))]

    return run


def environment_of(directory: Path, programs: Path, model: Path) -> dict[str, str]:
    """Return the variables of a page's shell."""
    environment = os.environ | {
        # The page's.
        "STORE": str(directory / "store"),
        "CAPACITY": "1GiB",
        "MEMORY_GB": "1",
        "MODEL": str(model),
        "OPTIONS": "--dtype float32 --enforce-eager --max-model-len 2048 --block-size 32",
        "SERVER_OPTIONS": "--supported-transfer-mode auto",
        "WHEELS": str(WHEELS),
        # This machine's.
        "HF_HUB_OFFLINE": "1",
        "LMCACHE_TRACK_USAGE": "false",
        "OMP_NUM_THREADS": "1",
        "PATH": os.pathsep.join([str(programs), "/usr/bin", "/bin", "/usr/sbin", "/sbin"]),
        "PIP_NO_INDEX": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_CACHE_ROOT": str(directory / "cache"),
        "VLLM_CONFIG_ROOT": str(directory / "config"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_TARGET_DEVICE": "cpu",
    }
    for name in ("PYTHONPATH", "VIRTUAL_ENV"):
        environment.pop(name, None)
    return environment


def assert_as_shown(page_steps: list[Step], outputs: list[str]) -> None:
    assert any(step.expected for step in page_steps)
    for step, output in zip(page_steps, outputs, strict=True):
        assert step.expected is None or matches(step.expected, output), (step, output)


def test_a_program(run: Run) -> None:
    page_steps = steps(PAGE, "Python")
    assert_as_shown(page_steps, run("Python", page_steps))


@pytest.mark.lmcache
def test_engines_that_run_on_processors(run: Run, packages: list[Path], tmp_path: Path) -> None:
    """Both at once: most of the time one core imports what an engine needs."""
    if not list(packages[0].glob("vllm/_C*.so")):
        pytest.skip("vLLM has no kernels for processors (make engines)")
    tabs = {tab: steps(PAGE, tab) for tab in ("LMCache", "vLLM")}
    if find_spec("lmcache") is None:
        print("LMCache is not installed (make lmcache): its tab did not run")
        del tabs["LMCache"]
    python = packages[0].parents[2] / "bin" / "python"
    writer = [str(python), "-c", WRITE_MODEL, str(tmp_path / "model")]
    with_repository = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    subprocess.run(writer, check=True, env=with_repository, capture_output=True)
    with ThreadPoolExecutor() as pool:
        outputs = pool.map(run, tabs, tabs.values())
        for page_steps, printed in zip(tabs.values(), outputs, strict=True):
            assert_as_shown(page_steps, printed)
            loaded = re.search(r"^loaded .* in ([\d,]+) chunks", printed[-2], re.M)
            assert loaded is not None
            assert loaded[1] != "0"


def test_what_runs_of_sglang_without_a_gpu(run: Run, packages: list[Path]) -> None:
    """Its server needs a GPU: what the page does before it starts one."""
    if not (packages[0] / "sglang").exists():
        pytest.skip("SGLang is not installed (make engines)")
    page_steps = steps(PAGE, "SGLang")
    start = next(number for number, step in enumerate(page_steps) if "launch_server" in step.script)
    print(f"SGLang's server needs a GPU: blocks {start + 1} to {len(page_steps)} did not run")
    assert_as_shown(page_steps[:start], run("SGLang", page_steps[:start]))


def test_every_block_is_in_a_language_that_the_tests_read() -> None:
    fences = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if "```" in line]
    assert set(fences) == {"```bash", "```text", "```"}


def test_expected_output_is_compared() -> None:
    assert matches("a ... c\n", "  a  b b\n c")
    assert matches("first\n...\nlast", "first\nlast\n")
    assert not matches("a ... c", "a b")
    assert not matches("1 hit", "0 hit")
