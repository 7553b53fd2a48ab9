"""Judges models for another process: `python -m frameworks.torch.stacks.heads.worker`.

It reads one request for each line of standard input, and answers each with one line of JSON on standard output:

    {"classes": true}                                         the names of transformers' head classes
    {"model": "transformers:CLASS", "formats": [...]}         the checks of a head
    {"model": "PACKAGE.MODULE:FACTORY", "formats": [...]}     the checks of what the factory makes

Its first line has the versions of the libraries.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from importlib import import_module
from typing import Any

import torch

from frameworks.torch.stacks.heads.building import NotBuilt, head_class, head_names
from frameworks.torch.stacks.heads.checks import HeadCheck

LIBRARY = "transformers"
HEADS = "frameworks.torch.stacks.heads.library_heads"


def main() -> int:
    """Answers until standard input ends; what libraries print goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(json.dumps({"versions": _versions()}), file=answers, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        content = {"classes": head_names()} if "classes" in request else _judged(request["model"], request["formats"])
        print(json.dumps(content), file=answers, flush=True)
    return 0


def _versions() -> dict[str, str]:
    versions = {"torch": torch.__version__}
    for name in (LIBRARY, "accelerate"):
        try:
            versions[name] = import_module(name).__version__
        except ImportError:
            continue
    if {LIBRARY, "accelerate"} <= versions.keys():
        logs = import_module("transformers.utils.logging")
        logs.disable_progress_bar()
        logs.set_verbosity_error()
        import_module(HEADS)  # takes seconds, which no model's limit has to include
    return versions


def _judged(model: str, formats: list[str]) -> dict[str, Any]:
    clock = time.process_time()
    result: list[dict[str, str]] = []
    answer: dict[str, Any] = {"model": model, "checks": result}
    try:
        result.extend(asdict(check) for check in _checks(model, tuple(formats)))
    except NotBuilt as error:
        answer["not_run"] = str(error)
    except Exception as error:
        answer["not_run"] = f"raises {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return {**answer, "seconds": round(time.process_time() - clock, 3)}


def _checks(model: str, formats: tuple[str, ...]) -> Iterator[HeadCheck]:
    module, _, name = model.partition(":")
    if module == LIBRARY:
        heads = import_module(HEADS)
        kind = head_class(name)
        gc.freeze()
        yield from heads.checks(kind, formats)
    else:
        plain = import_module("frameworks.torch.stacks.heads.plain")
        yield from plain.checks(plain.made(module, name), formats)


if __name__ == "__main__":
    sys.exit(main())
