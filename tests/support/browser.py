"""A Chromium that tests steer, by its DevTools protocol over two pipes."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

_DEADLINE_S = 60.0
# Nothing of it leaves the machine.
_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)


class Tab:
    """A page in the browser."""

    def __init__(self, commands: int, answers: int) -> None:
        """Open a tab; what the browser says comes from `answers`."""
        self._commands, self._answers = commands, answers
        self._received = b""
        self._number = 0
        self._session: str | None = None
        # What scripts of the page have thrown.
        self.errors: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.call("Runtime.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("method") == "Runtime.exceptionThrown":
                self.errors.append(str(found["params"]["exceptionDetails"]))
            if found.get("id") == self._number:
                assert "error" not in found, found
                return dict(found["result"])

    def open(self, url: str, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """Go to an address, with a window of that size in pixels."""
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=url)

    def resize(self, width: int, height: int) -> None:
        """Give the window another size in pixels."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def value(self, expression: str) -> Any:
        """Return what an expression of JavaScript is in the page."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self) -> bytes:
        """Return the whole page as PNG."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(found["data"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            part = os.read(self._answers, 1 << 20)
            assert part, "the browser has ended"
            self._received += part
        message, _, self._received = self._received.partition(b"\0")
        return dict(json.loads(message))


@contextmanager
def chromium() -> Iterator[Tab]:
    """Run Chromium, and lend a tab of it."""
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed (Debian: apt-get install chromium)")
    # Which it has as 3 and 4.
    (its_commands, commands), (answers, its_answers) = os.pipe(), os.pipe()
    script = f'exec "$0" "$@" 3<&{its_commands} 4>&{its_answers}'
    # A place of a test has too long a name for the socket that it makes there.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        command = ["bash", "-c", script, program, *_OPTIONS, f"--user-data-dir={directory}/user"]
        with subprocess.Popen(
            command,
            pass_fds=(its_commands, its_answers),
            env=os.environ | {"TMPDIR": directory},
            stderr=subprocess.DEVNULL,
        ) as process:
            os.close(its_commands)
            os.close(its_answers)
            try:
                yield Tab(commands, answers)
            finally:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_DEADLINE_S)
                process.kill()
                os.close(commands)
                os.close(answers)
