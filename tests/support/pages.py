"""Pages of an endpoint on this machine."""

import http.client

_DEADLINE_S = 60.0


def fetched(port: int, path: str) -> tuple[int, str]:
    """Return status and content of a page of the endpoint."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_DEADLINE_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()
