"""A running vLLM, as its users and its operator meet it."""

import json
import random
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any, Final, NamedTuple

from kvring.cli.failure import Failure

__all__ = ["Answer", "VllmServer", "new_prompt"]

# A prompt is computed meanwhile.
_TIMEOUT_S: Final = 300.0
_DEADLINE_S: Final = 30.0
_LOOK_EVERY_S: Final = 0.05
_ANSWER_TOKENS: Final = 8
# All vocabularies have these.
_TOKEN_IDS: Final = range(100, 1000)


class Answer(NamedTuple):
    """What vLLM answered."""

    first_token_ms: float
    text: str


class VllmServer:
    """The HTTP server of vLLM."""

    def __init__(self, url: str) -> None:
        """Take its address, such as http://localhost:8000."""
        self._url = url.rstrip("/")

    def model(self) -> tuple[str, int]:
        """Return the name of its model, and the most tokens of a request.

        Raises:
            Failure: No vLLM answers there.
        """
        with self._open("GET", "/v1/models") as answer:
            try:
                first = json.load(answer)["data"][0]
                return first["id"], int(first["max_model_len"])
            except (ValueError, LookupError, TypeError) as error:
                message = f"{self._url}/v1/models is no vLLM's: --vllm says where it is"
                raise Failure(message) from error

    def ask(self, model: str, prompt: list[int]) -> Answer:
        """Return how long the first token takes, and the answer.

        Raises:
            Failure: There is none.
        """
        body = {"model": model, "prompt": prompt, "max_tokens": _ANSWER_TOKENS}
        body |= {"temperature": 0, "ignore_eos": True, "stream": True}
        began_s = time.perf_counter()
        first_s, text = None, ""
        with self._open("POST", "/v1/completions", body) as lines:
            for line in lines:
                if line.startswith(b"data: {"):
                    first_s = first_s or time.perf_counter()
                    told = json.loads(line.removeprefix(b"data: "))
                    text += "".join(one["text"] for one in told.get("choices", []))
        if first_s is None:
            raise Failure(f"{self._url} answered nothing to a prompt: its log tells why")
        return Answer((first_s - began_s) * 1000, text)

    def forget(self) -> None:
        """Have it drop all prefixes from GPU and host memory.

        Raises:
            Failure: It does not.
        """
        deadline_s = time.monotonic() + _DEADLINE_S
        while True:
            with self._open("POST", "/reset_prefix_cache?reset_external=true") as answer:
                if json.load(answer)["success"]:
                    return
            if time.monotonic() > deadline_s:
                raise Failure(
                    f"vLLM still uses its prefix cache after {_DEADLINE_S:g} s: try later"
                )
            time.sleep(_LOOK_EVERY_S)

    def _open(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        try:
            request = urllib.request.Request(
                self._url + path, data=content, method=method, headers=headers
            )
            return urllib.request.urlopen(request, timeout=_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            if error.code == 404 and path.startswith("/reset"):
                message = (
                    "vLLM cannot be told to forget the prompt, so that kvring is asked: start it "
                    "with VLLM_SERVER_DEV_MODE=1 in its environment for this test"
                )
                raise Failure(message) from error
            told = error.read(500).decode(errors="replace")
            raise Failure(f"{self._url}{path} answers {error.code}: {told}") from error
        except (OSError, ValueError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            message = f"no vLLM answers at {self._url}: {reason}; --vllm says where it is"
            raise Failure(message) from error


def new_prompt(tokens: int) -> list[int]:
    """Return a prompt that nobody has asked, most likely."""
    return random.SystemRandom().choices(_TOKEN_IDS, k=tokens)
