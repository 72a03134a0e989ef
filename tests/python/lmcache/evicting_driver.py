"""An L2 adapter with LMCache's own eviction, whose passes the test starts."""

from lmcache.v1.distributed.storage_controllers.eviction_controller import (
    L2AdapterEvictionState,
    L2EvictionController,
)

from demo.adapter_spec import AdapterSpec
from tests.python.lmcache.adapter_driver import AdapterDriver


class EvictingDriver(AdapterDriver):
    """An adapter and its controller from one specification, as LMCache makes them."""

    def __init__(self, spec: AdapterSpec) -> None:
        """Create both."""
        super().__init__(spec)
        assert self.config.eviction_config is not None
        self.state = L2AdapterEvictionState(0, self.adapter, self.config.eviction_config)
        self.controller = L2EvictionController([self.state])

    def evict(self) -> None:
        """Let LMCache look once, as it does every second."""
        self.controller._check_and_evict(self.state)
