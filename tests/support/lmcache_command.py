"""How LMCache's own command line program is started."""

import os
import shutil
import sys
from pathlib import Path

DEADLINE_S = 300.0
REPOSITORY = Path(__file__).resolve().parents[2]


class DeploymentError(Exception):
    """A process of the deployment failed; the message ends with what it printed last."""


def lmcache_command(*arguments: str) -> list[str]:
    """Return the command line of LMCache's console script in this Python's environment."""
    script = Path(sys.executable).with_name("lmcache")
    found = str(script) if script.exists() else shutil.which("lmcache")
    if found is None:
        raise DeploymentError("there is no `lmcache` command beside this Python: install lmcache")
    return [found, *arguments]


def lmcache_environment() -> dict[str, str]:
    """Return this process's environment, with LMCache told to be quiet and to call nobody.

    Programs started in it can import the packages of this repository.
    """
    search_path = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(search_path),
        "LMCACHE_DISABLE_BANNER": "1",
        "LMCACHE_TRACK_USAGE": "false",
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": "ignore::FutureWarning",
    }
