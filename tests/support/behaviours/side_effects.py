"""Changes of the process that outlast the test: streams, handlers, threads, variables."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings

import numpy as np

from results.record.outcomes import Outcome
from tests.support.behaviours.registry import BIG, LATER_S, behaves


@behaves(Outcome.PASS)
def fork_that_goes_on() -> object:
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    return 1.0


@behaves(Outcome.PASS)
def fork_that_raises() -> object:
    child = os.fork()
    if not child:
        raise ValueError("in the child")
    os.waitpid(child, 0)
    return 1.0


@behaves(Outcome.PASS)
def another_folder() -> object:
    os.makedirs("gone", exist_ok=True)
    os.chdir("gone")
    os.rmdir(os.getcwd())
    return 1.0


@behaves(Outcome.PASS)
def closed_streams() -> object:
    for stream in (sys.stdout, sys.stderr):
        stream.buffer.close()
        stream.close()
    return 1.0


@behaves(Outcome.PASS)
def closed_descriptors() -> object:
    numbers = {1, 2, sys.stdout.fileno(), sys.stderr.fileno()}
    for number in numbers:
        os.close(number)
    return 1.0


@behaves(Outcome.PASS)
def replaced_streams() -> object:
    sys.stdout = sys.stderr = None  # type: ignore[assignment]
    return 1.0


@behaves(Outcome.PASS)
def handlers_replaced() -> object:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: os._exit(7))
    return 1.0


@behaves(Outcome.PASS)
def alarm_left_ticking() -> object:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, LATER_S)
    return 1.0


@behaves(Outcome.PASS)
def threads_left_running() -> object:
    threading.Thread(target=time.sleep, args=(3600.0,), daemon=False).start()
    return 1.0


@behaves(Outcome.PASS)
def warnings_are_errors() -> object:
    warnings.simplefilter("error")
    warnings.showwarning = None  # type: ignore[assignment]
    return 1.0


@behaves(Outcome.PASS)
def variables_changed() -> object:
    os.environ.clear()
    os.environ["OMP_NUM_THREADS"] = "77"
    return 1.0


@behaves(Outcome.PASS)
def floating_point_errors_raise() -> object:
    np.seterr(all="raise")
    return 1.0


@behaves(Outcome.PASS)
def prints_100_megabytes() -> object:
    for _ in range(100):
        sys.stdout.write("x" * (BIG // 100))
    return 1.0
