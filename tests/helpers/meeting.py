"""Where processes that share the work find each other, without torchrun."""

from __future__ import annotations

from torch.distributed import TCPStore


class Meeting:
    """A store for `count` processes on a port that was free, as torchrun has one, while this object is there.

    It listens from the beginning, so that nobody else can take the port before the processes are there.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def environments(self) -> list[dict[str, str]]:
        """Return the variables that torchrun would give to each process."""
        common = {
            "WORLD_SIZE": str(self.count),
            "LOCAL_WORLD_SIZE": str(self.count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is there already
        }
        return [{**common, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(self.count)]
