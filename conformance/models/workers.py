"""Worker processes that judge models: one model at a time each, with a limit, and a new process after a crash."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any
from zlib import crc32

import msgspec

from conformance.models.judgements import INTERRUPTED, NO_TIME, JudgedModel, Sweep

ROOT = Path(__file__).parent.parent.parent
MODULE = "frameworks.torch.stacks.heads.worker"
START_S = 120.0
"""Limit for importing the libraries."""

_SETTINGS = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1"}


class CannotJudge(Exception):
    """No worker can run; the message is one line that says what to do."""


class Worker:
    """One process.

    Raises:
        CannotJudge: it did not start.
    """

    def __init__(self) -> None:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE],
            env={**os.environ, "PYTHONPATH": path, **_SETTINGS},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        answer = self._answer(START_S)
        if not isinstance(answer, dict):
            raise CannotJudge(self._complaint())
        self.versions: dict[str, str] = answer["versions"]

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any] | str:
        """The answer to a request; if there is none within the limit, why, and the process has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return "the process had ended"
        answer = self._answer(limit_s)
        if isinstance(answer, str):
            self.end()
        return answer

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        self._errors.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def _answer(self, limit_s: float) -> dict[str, Any] | str:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(limit_s):
                return f"took more than {limit_s:.0f} s"
        line = self._process.stdout.readline()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        return f"the process ended with status {self._process.wait()}"

    def _complaint(self) -> str:
        self._process.kill()
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        said = lines[-1] if lines else f"the worker ended with status {self._process.returncode}"
        _, missing, name = said.partition("No module named ")
        if missing:
            return f"{name.strip(chr(39))} is not installed: pip install {name.strip(chr(39)).partition('.')[0]}"
        return said


def judge_one(model: str, formats: Sequence[str], limit_s: float) -> tuple[dict[str, str], JudgedModel]:
    """One model in a separate process, with the versions of the libraries.

    Raises:
        CannotJudge: PyTorch is not installed.
    """
    worker = Worker()
    try:
        return worker.versions, _asked(worker, model, formats, limit_s)
    finally:
        worker.end()


def _asked(worker: Worker, model: str, formats: Sequence[str], limit_s: float) -> JudgedModel:
    answer = worker.ask({"model": model, "formats": list(formats)}, limit_s)
    if isinstance(answer, str):
        return JudgedModel(model, not_run=answer, seconds=limit_s)
    return msgspec.convert(answer, JudgedModel, strict=False)


class Pool:
    """Workers that share a list of models.

    Args:
        workers: number of processes.
        limit_s: limit for one model.
        within_s: limit for all of them.
    """

    def __init__(self, workers: int, limit_s: float, within_s: float) -> None:
        self._count, self._limit_s = workers, limit_s
        self._started = time.monotonic()
        self._ends = self._started + within_s
        self._done: list[JudgedModel] = []
        self._stopped = threading.Event()

    def names(self) -> tuple[dict[str, str], list[str]]:
        """Versions of the libraries, and the names of transformers' heads.

        Raises:
            CannotJudge: PyTorch or transformers is not installed.
        """
        worker = Worker()
        try:
            if missing := [name for name in ("transformers", "accelerate") if name not in worker.versions]:
                raise CannotJudge(f"{' and '.join(missing)} not installed: pip install {' '.join(missing)}")
            answer = worker.ask({"classes": True}, START_S)
        finally:
            worker.end()
        if isinstance(answer, str):
            raise CannotJudge(f"the names of transformers' classes: {answer}")
        names: list[str] = answer["classes"]
        return worker.versions, names

    def sweep(self, versions: dict[str, str], models: Iterable[str], tell: Callable[[JudgedModel], object]) -> Sweep:
        """Judges all models, mixed, so that what is judged until an interruption or the time's end is a sample."""
        models = list(models)
        queue: SimpleQueue[str] = SimpleQueue()
        for model in sorted(models, key=lambda name: crc32(name.encode())):
            queue.put(model)
        threads = [threading.Thread(target=self._work, args=(queue, tell)) for _ in range(self._count)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.2)
        except KeyboardInterrupt:
            self._stopped.set()
            for thread in threads:
                thread.join()
        done = {each.model: each for each in self._done}
        late = INTERRUPTED if self._stopped.is_set() else NO_TIME
        every = tuple(done.get(model, JudgedModel(model, not_run=late)) for model in models)
        return Sweep(versions, every, len(done) == len(models), round(time.monotonic() - self._started, 1))

    def _work(self, queue: SimpleQueue[str], tell: Callable[[JudgedModel], object]) -> None:
        worker: Worker | None = None
        while not self._stopped.is_set() and (left := self._ends - time.monotonic()) > 0:
            try:
                model = queue.get_nowait()
            except Empty:
                break
            try:
                worker = worker or Worker()
                result = _asked(worker, model, ("bfloat16",), min(self._limit_s, max(left, 1.0)))
            except CannotJudge as error:
                result = JudgedModel(model, not_run=str(error))
            if result.not_run.startswith(("took more", "the process")):
                worker = None
            self._done.append(result)
            tell(result)
        if worker is not None:
            worker.end()
