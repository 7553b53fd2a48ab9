"""The contract between the suite and a framework: NumPy in, NumPy out, no framework object crosses it.

A `Framework` is bound to one device and one mode when it is made. It reports its declarations and the results of
attempts (`probe`), and creates `Trainer`s, each of which is one training run. An unsupported request raises
`Unsupported` with the capability's name; it is recorded and never counts as a pass.
"""

from frameworks.contract.capabilities import (
    NOT_OFFERED,
    SUPPORTED,
    Attempt,
    Capability,
    Declaration,
    MissingDevice,
    Unsupported,
    model_needs,
    needs,
)
from frameworks.contract.conventions import Conventions, ScalerRule
from frameworks.contract.delayed_scaling import (
    AmaxHistories,
    AmaxHistory,
    DelayedProduct,
    DelayedProducts,
    DelayedRule,
    Float8Rule,
    Operand,
    PassResult,
)
from frameworks.contract.eight_bit_state import EightBitRule
from frameworks.contract.framework import Framework
from frameworks.contract.post_training import Calibrated, CodeRange, LinearRule, PostTraining, QuantizedModel
from frameworks.contract.qat import CalibratedRanges, QatRule
from frameworks.contract.quantization import CastRule, FakeRule, NumberFormats, Quantized, Quantizers, QuantRule
from frameworks.contract.rank_group import RankFailed, RankGroup, Stop
from frameworks.contract.shipped import SHIPPED, Part, Shipped, Values
from frameworks.contract.trainer import Trainer
from frameworks.contract.values import (
    DataRun,
    FormatRequest,
    FunctionFormat,
    FunctionResult,
    Gradients,
    LayerTrace,
    LoadedRun,
    LoadOrder,
    OpResult,
    RecomputeCase,
    RecomputeResult,
    RowOrder,
    State,
    Update,
)

CONTRACT_VERSION = 3
"""Increased by changes that break existing adapters; see docs/design.md."""

__all__ = [
    "CONTRACT_VERSION",
    "NOT_OFFERED",
    "SHIPPED",
    "SUPPORTED",
    "AmaxHistories",
    "AmaxHistory",
    "Attempt",
    "Calibrated",
    "CalibratedRanges",
    "Capability",
    "CastRule",
    "CodeRange",
    "Conventions",
    "DataRun",
    "Declaration",
    "DelayedProduct",
    "DelayedProducts",
    "DelayedRule",
    "EightBitRule",
    "FakeRule",
    "Float8Rule",
    "FormatRequest",
    "Framework",
    "FunctionFormat",
    "FunctionResult",
    "Gradients",
    "LayerTrace",
    "LinearRule",
    "LoadOrder",
    "LoadedRun",
    "MissingDevice",
    "NumberFormats",
    "OpResult",
    "Operand",
    "Part",
    "PassResult",
    "PostTraining",
    "QatRule",
    "QuantRule",
    "Quantized",
    "QuantizedModel",
    "Quantizers",
    "RankFailed",
    "RankGroup",
    "RecomputeCase",
    "RecomputeResult",
    "RowOrder",
    "ScalerRule",
    "Shipped",
    "State",
    "Stop",
    "Trainer",
    "Unsupported",
    "Update",
    "Values",
    "model_needs",
    "needs",
]
