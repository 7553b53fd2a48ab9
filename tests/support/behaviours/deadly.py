"""What ends the process, or never returns."""

from __future__ import annotations

import collections
import ctypes
import itertools
import os
import signal
import time

from results.record.outcomes import Outcome
from tests.support.behaviours.registry import DEADLY, behaves


@behaves(Outcome.CRASH, DEADLY)
def ends_the_process() -> object:
    os._exit(0)


@behaves(Outcome.CRASH, DEADLY)
def aborts() -> object:
    os.abort()


@behaves(Outcome.CRASH, DEADLY)
def is_killed() -> object:
    os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


@behaves(Outcome.CRASH, DEADLY)
def reads_address_zero() -> object:
    return ctypes.string_at(0)


@behaves(Outcome.CRASH, DEADLY)
def closes_every_file() -> object:
    os.closerange(3, 1024)
    os._exit(0)


@behaves(Outcome.TIMEOUT, DEADLY)
def sleeps() -> object:
    time.sleep(3600.0)
    return 1.0


@behaves(Outcome.TIMEOUT, DEADLY)
def swallows_every_exception() -> object:
    while True:
        try:
            time.sleep(3600.0)
        except BaseException:
            continue


@behaves(Outcome.TIMEOUT, DEADLY)
def loops_in_c() -> object:
    collections.deque(itertools.repeat(1), maxlen=0)
    return 1.0
