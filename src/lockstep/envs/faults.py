"""Limit of the faults after which environments are replaced (`env.on_fault: replace`)."""

import logging
import time
from collections import deque
from collections.abc import Callable

from lockstep.envs.engine import EnvironmentFailed

__all__ = ["FaultLimit"]

_HOUR = 3600.0


class FaultLimit:
    """Count of the faults within the last hour in the environments of one shard, so that it does not depend on the ranks."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Accept `most` faults within an hour. `clock` returns seconds."""
        self._most = most
        self._clock = clock
        self._times: deque[float] = deque()

    def add(self, message: str, trace: str) -> None:
        """Count a fault and log a warning with its message and traceback. Raises EnvironmentFailed if the limit is exceeded."""
        now = self._clock()
        while self._times and now - self._times[0] >= _HOUR:
            self._times.popleft()
        self._times.append(now)
        count = len(self._times)
        if count > self._most:
            error = EnvironmentFailed(
                f"{message}; this is fault {count} within an hour, and env.max_faults is {self._most}"
            )
            if trace:
                error.add_note(trace)
            raise error
        text = f"{message}: the environment is replaced (fault {count} of at most {self._most} within an hour, see env.max_faults)"
        logging.getLogger("lockstep.envs").warning(f"{trace}{text}")
