"""What kvring is made of: licences, advisories, exact versions, unsafe code.

cargo-deny looks at the crates, where it is installed (`cargo install --locked cargo-deny`; `cargo
deny fetch db` brings the advisories). maturin lists the crates of a wheel in it.
"""

from __future__ import annotations

import os
import re
import shutil
from importlib import metadata
from pathlib import Path

from tools.tool import REPOSITORY, Options, Report, call

# Where unsafe code may be, and below. The compiler refuses it elsewhere in the core.
_UNSAFE_IN = (
    *("src/base/buffer.rs", "src/engine/", "src/base/system/", "src/index/file/mapping/"),
    *("src/index/file/records.rs", "connector_py/src/", "loadgen/src/memory.rs"),
)
# Of what users install with the wheel. The rest of requirements/ is for developers and tests.
_LICENSES = re.compile(r"Apache|BSD|ISC|MIT|MPL|Mozilla|PSF|Python Software Foundation|Unlicense")


def run(_options: Options) -> Report:
    """Look at all of it."""
    report = Report()
    parts = (_crates, _python_licenses, _versions, _unsafe)
    report.ran = "; ".join(part(report.findings) for part in parts)
    return report


def _crates(findings: list[str]) -> str:
    """Have cargo-deny compare licences, sources and advisories with deny.toml."""
    if shutil.which("cargo-deny") is None:
        return "licences and advisories of crates not compared: no cargo-deny"
    # Where cargo-deny puts what it fetches.
    home = Path(os.environ.get("CARGO_HOME", Path.home() / ".cargo"))
    has_advisories = any((home / "advisory-dbs").glob("*"))
    checks = ["bans", "licenses", "sources", *(["advisories"] if has_advisories else [])]
    for place in (REPOSITORY, REPOSITORY / "fuzz"):
        where: list[str | Path] = [
            "--manifest-path",
            place / "Cargo.toml",
            "--config",
            REPOSITORY / "deny.toml",
        ]
        done = call(["cargo", "deny", *where, "--offline", "check", *checks])
        if done.returncode != 0:
            errors = re.findall(r"^error.*$", done.stdout, re.M)
            findings += [f"cargo deny: {error}" for error in errors or [done.stdout[-300:]]]
    return "crates" + (" and advisories" if has_advisories else ", advisories not fetched")


def _python_licenses(findings: list[str]) -> str:
    """Look at the licences of what a user's environment gets."""
    names, todo = set(), ["kvring"]
    while todo:
        for wanted in metadata.requires(todo.pop()) or []:
            name = re.split(r"[^\w.-]", wanted)[0]
            # What is wanted elsewhere, by a marker, is not installed here.
            if name not in names and any(metadata.distributions(name=name)):
                names.add(name)
                todo.append(name)
    for name in sorted(names):
        about = metadata.metadata(name)
        classifiers = about.get_all("Classifier") or []
        told = [about["License-Expression"], about["License"], *classifiers]
        if not any(_LICENSES.search(text) for text in told if text):
            findings.append(f"{name}: a licence that is not listed: {told[:2]}")
    return f"{len(names)} Python packages of users"


def _versions(findings: list[str]) -> str:
    """See that each version is exact, and each crate is the registry's."""
    packages = {
        package.strip()
        for place in (REPOSITORY, REPOSITORY / "fuzz")
        for package in (place / "Cargo.lock").read_text().split("[[package]]\n")[1:]
    }
    findings += [
        f"no checksum in Cargo.lock: {package.splitlines()[0]}"
        for package in sorted(packages)
        if "\nsource = " in package and "\nchecksum = " not in package
    ]
    files = (REPOSITORY / "requirements").glob("*.txt")
    lines = {line for file in files for line in file.read_text().splitlines() if line}
    wanted = {line for line in lines if not line.startswith("#")}
    exact = {line for line in wanted if re.match(r"[\w.-]+(\[[\w,-]+\])?==\S+( ;.*)?$", line)}
    # The versions of one file hold for the names of another.
    names = {line.split("==")[0] for line in exact}
    findings += [f"no exact version: {line}" for line in sorted(wanted - exact - names)]
    return f"{len(packages) + len(exact)} exact versions"


def _unsafe(findings: list[str]) -> str:
    """Count `unsafe`, tests aside, and see that it is where it may be."""
    total = 0
    for folder in ("src", "connector_py/src", "loadgen/src"):
        for file in sorted((REPOSITORY / folder).rglob("*.rs")):
            name = str(file.relative_to(REPOSITORY))
            if "/tests" in name or name.startswith("src/models/"):
                continue
            code = file.read_text().split("#[cfg(test)]\nmod tests {")[0]
            code = re.sub(r"//.*|\"(?:[^\"\\\n]|\\.)*\"", "", code)
            count = len(re.findall(r"\bunsafe\b(?!_)", code))
            total += count
            if count and not name.startswith(_UNSAFE_IN):
                findings.append(f"{name}: unsafe code, {count} times")
    if "deny(unsafe_code)" not in (REPOSITORY / "src" / "lib.rs").read_text():
        findings.append("src/lib.rs: the compiler does not refuse unsafe code")
    return f"unsafe {total} times"
