"""`kvring config` with several paths, with paths that cannot be, and with contradictions."""

import json
import shlex
from pathlib import Path

import pytest

from kvring.cli import main
from tests.python.test_config_command import PLACE, printed

SEVERAL = ("/mnt/a", "/mnt/b c", "/dev/nvme77n1", "1GiB,2GiB,all")
ON_DEVICE = ("/dev/nvme77n1", "all", "--option", "index_path=/mnt/index")


@pytest.mark.parametrize("is_option", [False, True])
def test_all_paths_are_in_the_json(capsys: pytest.CaptureFixture[str], is_option: bool) -> None:
    *paths, capacity = SEVERAL
    option = ("--option", f"path={json.dumps(paths)}")
    arguments = (paths[1], capacity, *option) if is_option else SEVERAL
    parameters = json.loads(printed(capsys, "config", *arguments, "--json"))["adapter_params"]
    expected = {"path": paths, "capacity": ["1GiB", "2GiB", "all"]}
    assert parameters == expected


def words_of_unit(line: str) -> list[str]:
    """Split a line as systemd does: systemd.syntax(7), and $$ and %% of systemd.service(5)."""
    words: list[str] = []
    quote, has_word, escaped = "", False, False
    for one in line:
        if escaped or not (one == "\\" or one in (quote or " '\"")):
            words = words if has_word else [*words, ""]
            words[-1] += one
            has_word, escaped = True, False
        elif one == "\\":
            escaped = True
        elif one == " ":
            has_word = False
        else:
            words = words if has_word else [*words, ""]
            quote, has_word = ("" if quote else one), True
    return [word.replace("%%", "%").replace("$$", "$") for word in words]


@pytest.mark.parametrize("letter", list("'\"\\% $;#"))
def test_a_unit_has_paths_of_any_letters(capsys: pytest.CaptureFixture[str], letter: str) -> None:
    path = f"/mnt/a{letter}b"
    unit = printed(capsys, "config", path, "1GiB", "--systemd")
    lines = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)
    assert words_of_unit(lines["RequiresMountsFor"]) == [path]
    words = words_of_unit(lines["ExecStart"])
    assert json.loads(words[words.index("--l2-adapter") + 1])["adapter_params"]["path"] == path


def test_an_option_of_vllm_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--option", "promote=true", "--option", "locality=REMOTE")
    printed_json = printed(capsys, "config", *PLACE.split(), "--for", "vllm", *options, "--json")
    assert '"promote": true' in printed_json
    assert '"locality": "REMOTE"' in printed_json
    assert main(["config", *PLACE.split(), *options]) == 2


@pytest.mark.parametrize(
    ("arguments", "form", "told"),
    [
        (SEVERAL, "systemd", 'RequiresMountsFor=/mnt/a "/mnt/b c"\n'),
        (SEVERAL, "systemd", "\nSupplementaryGroups=disk\n"),
        (
            SEVERAL,
            "docker",
            " --mount type=bind,source=/mnt/a,target=/mnt/a --mount 'type=bind,source=/mnt/b c,",
        ),
        (("/mnt/a\nb", "1GiB"), "docker", '\'type=bind,"source=/mnt/a\nb","target=/mnt/a\nb"\''),
        # Where its index is has to be there as well.
        (ON_DEVICE, "systemd", "RequiresMountsFor=/mnt/index\n"),
        (
            ON_DEVICE,
            "docker",
            " --device /dev/nvme77n1 --mount type=bind,source=/mnt/index,target=/mnt/index --stop",
        ),
        (("/dev/nvme77n1", "all"), "systemd", "After=local-fs.target\n"),
    ],
)
def test_a_service_has_all_paths(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], form: str, told: str
) -> None:
    assert told in printed(capsys, "config", *arguments, f"--{form}")


def test_a_manifest_has_all_paths(capsys: pytest.CaptureFixture[str]) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML comes with LMCache")
    arguments = (*SEVERAL, "--shared", "file:///mnt/shared", "--kubernetes")
    spec = yaml.safe_load(printed(capsys, "config", *arguments))["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert container["securityContext"] == {"privileged": True}
    volumes = {one["name"]: one["hostPath"] for one in spec["volumes"]}
    found = [
        (one["mountPath"], volumes[one["name"]]["path"], volumes[one["name"]]["type"])
        for one in container["volumeMounts"]
    ]
    kinds = {
        "/mnt/a": "Directory",
        "/mnt/b c": "Directory",
        "/dev/nvme77n1": "BlockDevice",
        "/mnt/shared": "Directory",
    }
    assert found == [(path, path, kind) for path, kind in kinds.items()]


REFUSED = {
    # Paths that no store can have, or not these options.
    "'' 500GiB": "option 'path' = '' is not valid: it is empty",
    "/dev/null 500GiB": "/dev/null cannot hold a store: it is a character device",
    f"{__file__} 500GiB": "it is a file; give a directory",
    "/mnt/nvme/kvring all": "/mnt/nvme/kvring is a directory, no block device; give a size",
    f"{PLACE} --option index_path=/mnt/index": "its index lies beside the data",
    "/dev/nvme77n1 all --option layout=files": "is a block device, which has no files",
    "/mnt/a /mnt/a 1GiB": "are the same store; name each once",
    "/mnt/a /mnt/a/b 1GiB": "/mnt/a/b is inside /mnt/a",
    "/mnt/a /mnt/b 1GiB,2GiB,3GiB": "2 paths but 3 capacities",
    "/proc/kvring 500GiB": "the kernel keeps no files there; give a directory of a drive",
    "/sys 500GiB": "the kernel keeps no files there",
    f"{PLACE} --option require_mount=/srv": "neither a path nor index_path is there or below it",
    "/mnt/a /mnt/b /mnt/c 1GiB,2GiB": "3 paths but 2 capacities",
    "/mnt/a 1GiB,2GiB": "1 path but 2 capacities",
    "'/mnt/a\nb' 1GiB --systemd": "has a character that no unit can have; name another",
    "/mnt/a:b 1GiB --kubernetes": "'/mnt/a:b' has a ':', which ends a path there; name another",
    "/mnt/a 1GiB --shared file:///mnt/a": "/mnt/a is in the store's own /mnt/a; name a directory",
    "/mnt/b /mnt/a 1GiB --shared file:///mnt/a/s": "/mnt/a/s is in the store's own /mnt/a",
    "/dev/pci-0:1 all --docker": "'/dev/pci-0:1' has a ':', which ends a path there; name a link",
    # What contradicts something else.
    f"{PLACE} --option path=/b": "--option path is not what stands before CAPACITY",
    f"{PLACE} --option path=7": "--option path is not what stands before CAPACITY",
    """~no-user 1GiB --option 'path=["~no-user"]'""": "'~no-user' is no user with a home",
    f"{PLACE} --option path=null": "--option path is not what stands before CAPACITY",
    f"{PLACE} --option paths=/b": "these are arguments, such as",
    f"{PLACE} --option capacity=1GiB": "these are arguments, such as",
    f"{PLACE} --option ttl=1d --option ttl=2d": "--option ttl is given twice",
    f"{PLACE} --option shared_buffer=1GiB": "name that by --shared",
    f"{PLACE} --docker --kubernetes": "--docker and --kubernetes exclude each other",
    f"{PLACE} --json --systemd": "--json and --systemd exclude each other",
    f"--seccomp {PLACE}": "leave out PATH",
    "--seccomp --for vllm --huge-pages": "leave out --for, --huge-pages",
    f"--seccomp-base {__file__} --docker": "leave out --docker",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_what_cannot_be_is_refused(capsys: pytest.CaptureFixture[str], arguments: str) -> None:
    assert main(["config", *shlex.split(arguments)]) == 2
    ended = capsys.readouterr()
    assert REFUSED[arguments] in ended.err
    assert ended.out == ""


@pytest.mark.parametrize("options", ["", "--docker", "--kubernetes", "--systemd"])
def test_a_circle_of_links_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str
) -> None:
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    for path in (circle, circle / "kvring"):
        assert main(["config", str(path), "1GiB", *options.split()]) == 2
        assert f"{path} leads nowhere: Too many levels of symbolic" in capsys.readouterr().err
