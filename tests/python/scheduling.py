"""How the tests are spread over processes."""

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


class OnceByFile(LoadFileScheduling):
    """Tests by file, of which one that ends its process is not begun again.

    pytest-xdist gives it to the next process, and so on: a test that hangs takes its timeout
    sixteen times.
    """

    def remove_node(self, node: WorkerController) -> str | None:
        """Forget a process; return the test that it ended in."""
        begun: str | None = None
        for tests in self.assigned_work[node].values():
            begun = next((test for test, is_done in tests.items() if not is_done), None)
            if begun:
                del tests[begun]
                break
        super().remove_node(node)
        return begun


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OnceByFile | None:
    """Take that scheduler for `--dist loadfile`."""
    return OnceByFile(config, log) if config.getoption("dist") == "loadfile" else None
