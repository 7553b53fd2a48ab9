"""Runs attempts, each in a process forked from this one, which has imported Paddle.

    python -m frameworks.paddle.static.attempts DEVICE

Reads MODULE:FUNCTION, a space and the arguments as JSON from each line, and answers with a line: the status for which
it waited, that of SIGALRM after LIMIT_S.
"""

import json
import os
import signal
import sys
from pkgutil import resolve_name

from frameworks.paddle.static.attempts.program import StaticProgram

LIMIT_S = 120

if __name__ == "__main__":
    for line in sys.stdin:
        child = os.fork()
        if not child:
            signal.alarm(LIMIT_S)
            function, _, arguments = line.partition(" ")
            status = 1
            try:
                os.dup2(os.open(os.devnull, os.O_RDWR), 1)
                resolve_name(function)(StaticProgram(sys.argv[1]), *json.loads(arguments))
                status = 0
            finally:
                os._exit(status)
        print(os.waitpid(child, 0)[1], flush=True)
