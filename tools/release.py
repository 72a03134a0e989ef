"""`make release`: the files of a release in dist, checked, and the commands that publish them.

It makes no tag and publishes nothing. The version is that of Cargo.toml.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shlex
import subprocess
import sys
import tarfile
from datetime import datetime, timezone
from pathlib import Path
from zipfile import ZipFile

import click

from tools.tool import REPOSITORY

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

DIST = REPOSITORY / "dist"
WHEELS = [
    f"{python}-manylinux_2_28_{machine}"
    for python in ("cp310-cp310", "cp311-abi3")
    for machine in ("x86_64", "aarch64")
]
# The well-known labels of PyPI that a release should have.
URLS = ("Homepage", "Documentation", "Issues", "Source", "Changelog")


def version_of(root: Path) -> str:
    """Return the version of the workspace."""
    manifest = tomllib.loads((root / "Cargo.toml").read_text(encoding="utf-8"))
    return str(manifest["workspace"]["package"]["version"])


def refusals(root: Path) -> list[str]:
    """Return why no release can be made of a tree, one line per reason."""
    version = version_of(root)
    found = []
    if changed := _git(root, "status", "--porcelain").splitlines():
        found.append(f"the tree has {len(changed)} uncommitted changes: commit or stash them")
    tags = [_git(root, "tag", *which).split() for which in (["--list"], ["--points-at", "HEAD"])]
    if f"v{version}" in tags[0] and f"v{version}" not in tags[1]:
        found.append(f"v{version} is the tag of another commit: raise the version in Cargo.toml")
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## \[([^]]+)\](?: - (\S+))?$", changelog, re.M)
    released = [(name, day) for name, day in headings if name != "Unreleased"]
    if not released or released[0][0] != version:
        newest = released[0][0] if released else "none"
        found.append(
            f"the newest version in CHANGELOG.md is {newest}, Cargo.toml has {version}: "
            f"add `## [{version}] - {datetime.now(timezone.utc):%Y-%m-%d}`"
        )
    elif not _is_date(released[0][1]):
        found.append(f"CHANGELOG.md gives no date for {version}: write YYYY-MM-DD")
    if re.search(r"^## \[Unreleased\]\n+(?!## )\S", changelog, re.M):
        found.append(f"CHANGELOG.md has entries in Unreleased: move them to {version}")
    lock = tomllib.loads((root / "Cargo.lock").read_text(encoding="utf-8"))
    found += [
        f"Cargo.lock has {package['name']} {package['version']}, Cargo.toml {version}: "
        "run cargo update --workspace"
        for package in lock["package"]
        if "source" not in package and package["version"] != version
    ]
    found += [
        f"{page.relative_to(root)} installs kvring {named}, Cargo.toml has {version}"
        for page in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
        for named in re.findall(r"\bkvring==([\w.]*\w)", page.read_text(encoding="utf-8"))
        if named != version
    ]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if "version" in project:
        found.append("pyproject.toml has a version of its own: remove it")
    return found


def _is_date(text: str) -> bool:
    try:
        return (
            f"{datetime.strptime(text, '%Y-%m-%d').replace(tzinfo=timezone.utc):%Y-%m-%d}" == text
        )
    except ValueError:
        return False


def missing_urls(root: Path) -> list[str]:
    """Return the labels that `[project.urls]` of pyproject.toml leaves out."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [label for label in URLS if label not in project.get("urls", {})]


def archive(directory: Path, target: Path, epoch: int) -> None:
    """Write a tar.gz that depends on names and contents alone."""

    def normal(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
        member.mode = 0o755 if member.isdir() else 0o644
        return member

    with (
        target.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        # tarfile adds the names of a directory in order.
        tar.add(directory, arcname=target.name.removesuffix(".tar.gz"), filter=normal)


def extract_sboms(wheel: Path) -> None:
    """Put the lists of the crates that are linked into a wheel beside it."""
    with ZipFile(wheel) as contents:
        names = [name for name in contents.namelist() if "/sboms/" in name]
        if len(names) != 1:
            raise click.ClickException(f"{wheel.name} has {len(names)} SBOMs, not one")
        wheel.with_suffix(".cdx.json").write_bytes(contents.read(names[0]))


@click.command(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--no-tests", is_flag=True, help="Leave out make lint and make test.")
def main(*, no_tests: bool) -> None:
    """Check, build, try and list."""
    if reasons := refusals(REPOSITORY):
        raise click.ClickException("\n  ".join(["no release of this tree:", *reasons]))
    version = version_of(REPOSITORY)
    commit = _git(REPOSITORY, "rev-parse", "HEAD").strip()
    epoch = _git(REPOSITORY, "log", "-1", "--format=%ct").strip()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": epoch}
    targets = [*([] if no_tests else ["lint", "test"]), "wheels", "docs"]
    for target in targets:
        _run(["make", target], environment)
    wheels = sorted(DIST.glob(f"kvring-{version}-*.whl"))
    for wheel in wheels:
        extract_sboms(wheel)
    archive(REPOSITORY / "target" / "book", DIST / f"kvring-{version}-docs.tar.gz", int(epoch))
    trial = [sys.executable, "-m", "pytest", "-rs", "tests/python/test_release.py"]
    _run(trial, {**environment, "KVRING_TEST_WHEELS": str(DIST)})
    if changed := _git(REPOSITORY, "status", "--porcelain"):
        raise click.ClickException(f"the build has changed the tree:\n{changed}")
    files = sorted(path for path in DIST.iterdir() if path.name != "SHA256SUMS")
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (DIST / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    _report(version, commit, files)


def _report(version: str, commit: str, files: list[Path]) -> None:
    """Print what was made, what is missing, and what publishes it."""
    click.echo(f"\nkvring {version} of commit {commit[:12]}, in dist with SHA256SUMS:")
    for path in files:
        click.echo(f"  {path.stat().st_size:>11,}  {path.name}")
    built = [path.name for path in files]
    absent = [tag for tag in WHEELS if f"kvring-{version}-{tag}.whl" not in built]
    if absent:
        click.echo("Not built here; `make wheels` says above what is missing, CI builds them:")
        click.echo("".join(f"  wheel {tag}\n" for tag in absent), nl=False)
    if unset := missing_urls(REPOSITORY):
        click.echo(f"Not set in [project.urls] of pyproject.toml: {', '.join(unset)}")
    packages = [path.name for path in files if path.suffix == ".whl"]
    packages.append(f"kvring-{version}.tar.gz")
    upload = ["uv", "publish", *(f"dist/{name}" for name in packages)]
    click.echo(f"""Nothing is published. To publish:
  git tag --annotate v{version} --message 'kvring {version}' {commit[:12]}
  git push REMOTE v{version}
  {shlex.join(upload)}
Attach all of dist to the release page, with the section of CHANGELOG.md as its text.""")


def _git(root: Path, *arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True).stdout


def _run(command: list[str], environment: dict[str, str]) -> None:
    click.echo(f"release: {shlex.join(command)}", err=True)
    code = subprocess.run(command, cwd=REPOSITORY, env=environment, check=False).returncode
    if code != 0:
        raise click.ClickException(f"{shlex.join(command)} failed with status {code}")


if __name__ == "__main__":
    main()
