"""Casts to integers in a program; those to float8 show no codes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import paddle

from fixtures.arrays import Array
from frameworks.base import BaseFormats
from frameworks.contract import CastRule
from frameworks.paddle.static.programs import run_operation


class StaticFormats(BaseFormats):
    """`paddle.cast`, whose result an executor fetches."""

    def casts(self) -> Mapping[str, CastRule]:
        return {}

    def encode(self, values: Array, format_name: str) -> Array:
        return run_operation(lambda x: paddle.cast(x, format_name), [values]).value.view(np.uint8)

    def decode(self, codes: Array, format_name: str) -> Array:
        return run_operation(lambda x: paddle.cast(x, "float32"), [codes.view(format_name)]).value
