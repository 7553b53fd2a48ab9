"""The contract between the suite and a framework: NumPy in, NumPy out, no framework object crosses it.

A `Framework` is created for one device and one mode. It reports its declarations and the results of attempts (`probe`),
and creates `Trainer`s; a `Trainer` is one training run. An unsupported request raises `Unsupported` with the
capability's name, which is recorded and never counts as a pass.
"""

from frameworks.contract.background import (
    NUMBERS,
    BackgroundRule,
    Gate,
    Kind,
    LiveValues,
    Point,
    SaveSeries,
    ValueSaver,
)
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
from frameworks.contract.framework import Framework
from frameworks.contract.low_rank import AdaptedNetwork, BaseFormat, LowRank, LowRankAdapters
from frameworks.contract.meshes import (
    DIVIDED,
    BlockSamples,
    BlockWeights,
    MeshCase,
    Meshes,
    MeshLayout,
    MeshUpdate,
    PipelineCase,
    Pipelines,
)
from frameworks.contract.quantization import (
    AmaxHistories,
    AmaxHistory,
    BlockScaleRule,
    BlockScales,
    Calibrated,
    CalibratedRanges,
    CastRule,
    CodeRange,
    DelayedProduct,
    DelayedProducts,
    DelayedRule,
    DynamicProducts,
    DynamicScaleRule,
    EightBitRule,
    FakeRule,
    Float8Rule,
    LinearRule,
    NumberFormats,
    Operand,
    PassResult,
    PostTraining,
    QatRule,
    Quantized,
    QuantizedModel,
    Quantizers,
    QuantRule,
    StochasticRounding,
)
from frameworks.contract.rank_group import RankFailed, RankGroup, Stop
from frameworks.contract.trainer import Trainer
from frameworks.contract.values import (
    SHIPPED,
    DataRun,
    FormatRequest,
    FunctionFormat,
    FunctionResult,
    Gradients,
    LayerTrace,
    LoadedRun,
    LoadOrder,
    OpResult,
    Part,
    RecomputeCase,
    RecomputeResult,
    RowOrder,
    Shipped,
    Update,
    Values,
)

CONTRACT_VERSION = 3
"""Version of the contract, increased by changes that break existing adapters; see docs/design.md."""
