"""What kvring is made of: licences, advisories, locks, the list of parts in the wheel, unsafe code.

cargo-deny is that of PATH, or one below target/tools/programs (`cargo install --locked cargo-deny
--root target/tools/programs`). Advisories are those that it has fetched before (`cargo deny fetch
db`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from collections import Counter
from importlib import metadata
from pathlib import Path

from tools.planted import patches_of, tree_with
from tools.tool import OUTPUT, REPOSITORY, Options, Report, call

TOOLS = OUTPUT / "programs" / "bin"

# Where unsafe code may be, and below. The compiler refuses it elsewhere in the core.
UNSAFE_IN = (
    *("src/buffer.rs", "src/engine/", "src/system/", "src/index/file/mapping/"),
    *("src/index/file/records.rs", "connector_py/src/", "loadgen/src/memory.rs"),
)
# Of what users install with the wheel. The rest of requirements/ is for developers and tests.
LICENSES = re.compile(r"Apache|BSD|ISC|MIT|MPL|Mozilla|PSF|Python Software Foundation|Unlicense")


def run(options: Options) -> Report:
    """Look at all of it, or find a known fault in each part."""
    if not options.planted:
        return _look(REPOSITORY)
    found, findings = 0, []
    patches = patches_of("supply-chain")
    for patch in patches:
        words = re.findall(r"^As: (.*)$", patch.read_text(), re.M)[0]
        with tree_with(patch) as tree:
            report = _look(tree)
        if any(words in finding for finding in report.findings):
            found += 1
        else:
            findings.append(f"{patch.name}: not found: {report}")
    return Report(ran=f"{found} of {len(patches)} planted faults found", findings=findings)


def _look(tree: Path) -> Report:
    report = Report()
    parts = (_crates, _python_licenses, _locks, _wheel, _unsafe)
    report.ran = "; ".join(part(tree, report.findings) for part in parts)
    return report


def _crates(tree: Path, findings: list[str]) -> str:
    """Have cargo-deny compare licences, sources and advisories with deny.toml."""
    path = f"{TOOLS}{os.pathsep}{os.environ['PATH']}"
    if shutil.which("cargo-deny", path=path) is None:
        return "licences and advisories not compared: no cargo-deny"
    # Where cargo-deny puts what it fetches.
    home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    has_advisories = any((home / "advisory-dbs").glob("*"))
    checks = ["bans", "licenses", "sources", *(["advisories"] if has_advisories else [])]
    for place in (tree, tree / "fuzz"):
        where = ("--manifest-path", str(place / "Cargo.toml"), "--config", str(tree / "deny.toml"))
        command = ("cargo", "deny", *where, "--offline", "check", *checks)
        done = call(command, directory=tree, environment={"PATH": path})
        if done.returncode != 0:
            errors = re.findall(r"^error.*$", done.stdout, re.M)
            findings += [f"cargo deny: {error}" for error in errors or [done.stdout[-300:]]]
    advisories = "advisories too" if has_advisories else "no data on advisories (cargo deny fetch)"
    return f"{len(_locked(tree))} crates, {advisories}"


def _locked(tree: Path) -> set[str]:
    """Return the packages of both workspaces, that of the fuzz targets too."""
    locks = ((place / "Cargo.lock").read_text() for place in (tree, tree / "fuzz"))
    return {package.strip() for lock in locks for package in lock.split("[[package]]\n")[1:]}


def _python_licenses(_tree: Path, findings: list[str]) -> str:
    """Look at the licences of what a user's environment gets."""
    names, todo = set(), ["kvring"]
    while todo:
        name = todo.pop()
        for wanted in metadata.requires(name) or []:
            other = re.split(r"[^\w.-]", wanted)[0]
            # What is wanted elsewhere, by a marker, is not installed here.
            if other not in names and any(metadata.distributions(name=other)):
                names.add(other)
                todo.append(other)
    for name in sorted(names):
        about = metadata.metadata(name)
        classifiers = about.get_all("Classifier") or []
        told = [about["License-Expression"], about["License"], *classifiers]
        if not any(LICENSES.search(text) for text in told if text):
            findings.append(f"{name}: a licence that is not listed: {told[:2]}")
    return f"{len(names)} Python packages of users"


def _locks(tree: Path, findings: list[str]) -> str:
    """See that each version is exact."""
    locked = call(
        ["cargo", "metadata", "--locked", "--offline", "--format-version=1"], directory=tree
    )
    if locked.returncode != 0:
        findings.append("Cargo.lock does not fit Cargo.toml")
    packages = _locked(tree)
    findings += [
        f"no checksum in Cargo.lock: {package.splitlines()[0]}"
        for package in sorted(packages)
        if "\nsource = " in package and "\nchecksum = " not in package
    ]
    files = sorted((tree / "requirements").glob("*.txt"))
    lines = {line for file in files for line in file.read_text().splitlines() if line}
    wanted = {line for line in lines if not line.startswith("#")}
    exact = {line for line in wanted if re.match(r"[\w.-]+(\[[\w,-]+\])?==\S+( ;.*)?$", line)}
    # The versions of one file hold for the names of another.
    names = {line.split("==")[0] for line in exact}
    findings += [
        f"requirements: no exact version: {line}" for line in sorted(wanted - exact - names)
    ]
    return f"{len(packages) + len(exact)} exact versions"


def _wheel(tree: Path, findings: list[str]) -> str:
    """See that the newest wheel lists every crate that is linked into it."""
    places = (tree / "target" / "wheel", tree / "dist")
    wheels = sorted((path for place in places for path in place.glob("*.whl")), key=_age)
    if not wheels:
        return "no wheel (make engines, or make wheels)"
    with zipfile.ZipFile(wheels[-1]) as wheel:
        lists = [name for name in wheel.namelist() if "/sboms/" in name]
        listed = {
            f"{part['name']} v{part['version']}"
            for name in lists
            for part in json.loads(wheel.read(name)).get("components", [])
        }
    command = ["cargo", "tree", "--offline", "--package", "kvring-python", "--edges", "normal"]
    tree_of = call([*command, "--prefix", "none", "--format", "{p}"], directory=tree)
    linked = set(re.findall(r"^(\S+ v[^\s+]+)", tree_of.stdout, re.M))
    own = {part for part in linked if part.startswith("kvring")}
    missing = {part for part in linked - own if part not in listed}
    findings += [f"{wheels[-1].name}: {part} is not in its SBOM" for part in sorted(missing)]
    return f"SBOM of {wheels[-1].name}: {len(listed)} parts"


def _age(path: Path) -> float:
    return path.stat().st_mtime


def _unsafe(tree: Path, findings: list[str]) -> str:
    """Count `unsafe` by module, tests aside, and see where it is."""
    counts: Counter[str] = Counter()
    for folder in ("src", "connector_py/src", "loadgen/src"):
        for file in sorted((tree / folder).rglob("*.rs")):
            name = str(file.relative_to(tree))
            if "/tests" not in name and not name.startswith("src/models/"):
                counts[name] += len(re.findall(r"\bunsafe\b(?!_)", _code_of(file)))
    counts = +counts
    findings += [
        f"{name}: unsafe code, {count} times"
        for name, count in counts.items()
        if not name.startswith(UNSAFE_IN)
    ]
    if "deny(unsafe_code)" not in (tree / "src" / "lib.rs").read_text():
        findings.append("src/lib.rs: the compiler does not refuse unsafe code")
    places: Counter[str] = Counter()
    for name, count in counts.items():
        places[next((place for place in UNSAFE_IN if name.startswith(place)), "elsewhere")] += count
    told = ", ".join(f"{place} {count}" for place, count in sorted(places.items()))
    return f"unsafe {counts.total()} times: {told}"


def _code_of(file: Path) -> str:
    """Return a file without comments, strings and tests at its end."""
    code = file.read_text().split("#[cfg(test)]\nmod tests {")[0]
    return re.sub(r"//.*|\"(?:[^\"\\\n]|\\.)*\"", "", code)
