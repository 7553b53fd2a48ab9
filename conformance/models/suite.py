"""The test of each model that `conformance judge-model` names: its results are properties of the test's report."""

import faulthandler
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

REQUEST = "CONFORMANCE_MODELS"
"""Environment variable: a `ModelRequest` as JSON."""
LATE = "CONFORMANCE_MODELS_LATE"
"""Environment variable: folder of files by model, of which that of a model that takes too long is not empty."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each model."""
    request = json.loads(os.environ[REQUEST])
    names = import_module(request["judge"]).names() if request["only"] else []
    chosen = [name for name in names if any(part in name for part in request["only"])]
    metafunc.parametrize("model", [request["model"]] if request["model"] else chosen)


def test_model(model: str, record_property: Callable[[str, Any], None]) -> None:
    """Every check of a model, as soon as it is judged, or why the model cannot be trained to the end.

    At the limit the process ends, whatever holds the interpreter.
    """
    request = json.loads(os.environ[REQUEST])
    with open(Path(os.environ[LATE], model), "w", encoding="utf-8") as late:
        faulthandler.dump_traceback_later(request["limit_s"], exit=True, file=late)
        try:
            for check in import_module(request["judge"]).checks(model, request["formats"]):
                record_property("check", asdict(check))
        except Exception as error:  # whatever ends the training of a model is its result
            record_property("problem", str(error))
        finally:
            faulthandler.cancel_dump_traceback_later()
