"""Conventions: documented differences between frameworks that are no defects, such as the place of epsilon."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class ScalerRule:
    """A dynamic loss scaler as the framework documents it.

    Attributes:
        initial, growth, backoff, interval: default settings.
        minimum: the documented floor of the scale, 0 for none.
        maximum: the largest value that growth is documented to reach, inf for none.
        counts: unit of the growth counter: applied updates or micro-batches.
        nonfinite: the gradients that are checked for overflow: scaled or unscaled ones.
        latched: True if overflow is checked when gradients are unscaled, False if when they are applied.
    """

    initial: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    minimum: float = 0.0
    maximum: float = float("inf")
    counts: Literal["updates", "micro-batches"] = "updates"
    nonfinite: Literal["scaled", "unscaled"] = "unscaled"
    latched: bool = True


@dataclass(frozen=True)
class Conventions:
    """The conventions that a framework declares. The reference follows them, so that tolerances can be tight.

    Attributes:
        adam_default_epsilon: Adam's epsilon for a recipe that leaves it to the framework.
        adam_epsilon: "outside": m̂ / (√v̂ + ε); "inside": α·√(1-β2ᵗ)/(1-β1ᵗ) · m / (√v + ε), Kingma & Ba's epsilon-hat.
        adam_correction: the format of β and of 1 − βᵗ; float32 loses half of the digits of 1 − βᵗ in the first updates,
            for float64 weights too; "weights": float32, and float64 for float64 weights.
        adam_counts: the updates that t of 1 − βᵗ counts, if a parameter had no gradient in some of them.
        adam_share: the format of 1 − β, the weight of a new gradient in its moment, for weights that are not float64;
            float32 loses half of the digits.
        momentum_rate: "outside": v ← μv + g, p ← p − αv; "inside": v ← μv − αg, p ← p + v.
        amsgrad: the values of which AMSGrad keeps the maximum: second moments or bias-corrected ones.
        adagrad_epsilon, rmsprop_epsilon: "outside": divided by √s + ε; "inside": by √(s + ε).
        rmsprop_rate: place of the rate in RMSprop's velocity, as in `momentum_rate`.
        adafactor_epsilon: "added": g² + ε₁ joins the means; "floor": the estimate's root is at least ε₁.
        adafactor_default_epsilon: ε₁ for a recipe that leaves it to the framework, None for the spacing of 1 in the
            weight's format.
        adafactor_rate: "capped": the rate of the t-th update is at most 1/√t; "given": it is the user's.
        adafactor_decay: "first": p·(1 − rate·decay) before RMS(p) is computed; "apart": the same after it; "whole":
            p·decay, without the rate, is subtracted with the update.
        muon_products: the computing format of NS, "weights" for the format of the weights.
        muon_epsilon: use of the epsilon that avoids division by a zero norm: "added" to the norm, or its "floor".
        muon_default_epsilon: value of that epsilon.
        muon_nesterov: "plain", or "corrected": g / (1 − μᵗ) + μ·v / (1 − μᵗ⁺¹), as in NAdam; also in the Adam of
            parameters that are not matrices.
        plateau_waits: True if a schedule that follows a metric ignores metrics in its cooldown, also a best one.
        plateau_signed: True if its relative threshold is a share of the best metric, which may be negative; False if it
            is a share of the best metric's magnitude.
        normalisation: the format of normalisation layers' weights in the model at level O2: "low" for the recipe's
            format, "batch" for float32 in batch norm and the recipe's format in other layers.
        variance: "centred": the mean of squared deviations; "difference": the mean of squares without the squared mean.
        running_variance: the variance, biased or not, with which batch norm updates its running statistics.
        clip_epsilon: added to the global norm when the clip coefficient is computed.
        clip_norm: the gradients in the global norm if an overflow skips one of two optimizers: "applied" for the other
            optimizer's gradients, "all" for both, so that an infinite one clips the other's to zero.
        nonfinite_micro_batch: the gradients that a non-finite micro-batch discards: its window's, or only its own.
        batch_statistics: statistics of batch norm if ranks share a micro-batch: over each rank's own samples, or over
            those of all ranks in one program ("whole"), in which dropout also draws as in one run.
        pipeline_scaling: the gradients that a step of a pipeline's schedule divides by its number of micro-batches, by
            default: its own ("mean-once"), all that have been added up so far, or none.
        remainder: treatment of an incomplete window at the end of an epoch.
        static_skips: True if an overflow skips an update under a static scale too.
        partial_overflow: the updates that an overflow skips if two optimizers share a scaler.
        accumulates: the gradients that a window sums: scaled ones, so that the scale must not change, or unscaled ones.
        compiled: True if a compiler may fuse operations and keep more precision than was requested, so that two
            programs of one computation agree within rounding and not bit for bit.
        gradient_input: recomputation variants whose documentation requires an input of a segment to need a gradient.
        keeps_products: recomputation variants that save matrix products by definition.
        adapter_format: format of low-rank adapters of a 16-bit network: float32, or the base's.
        adapter_bias: whether the bias of a layer with an adapter trains.
        adapter_save: what a save of a network with adapters has: the adapters alone, or weights with merged adapters.
    """

    adam_default_epsilon: float = 1e-8
    adam_epsilon: Literal["outside", "inside"] = "outside"
    adam_correction: Literal["float64", "float32", "weights"] = "float64"
    adam_counts: Literal["parameter", "optimizer"] = "parameter"
    adam_share: Literal["float64", "float32"] = "float64"
    momentum_rate: Literal["outside", "inside"] = "outside"
    amsgrad: Literal["moments", "corrected"] = "moments"
    adagrad_epsilon: Literal["outside", "inside"] = "outside"
    rmsprop_epsilon: Literal["outside", "inside"] = "outside"
    rmsprop_rate: Literal["outside", "inside"] = "outside"
    adafactor_epsilon: Literal["added", "floor"] = "added"
    adafactor_default_epsilon: float | None = 1e-30
    adafactor_rate: Literal["capped", "given"] = "capped"
    adafactor_decay: Literal["first", "apart", "whole"] = "apart"
    muon_products: Literal["weights", "bfloat16"] = "weights"
    muon_epsilon: Literal["added", "floor"] = "added"
    muon_default_epsilon: float = 1e-7
    muon_nesterov: Literal["plain", "corrected"] = "plain"
    plateau_waits: bool = False
    plateau_signed: bool = False
    normalisation: Literal["float32", "low", "batch"] = "float32"
    variance: Literal["centred", "difference"] = "centred"
    running_variance: Literal["unbiased", "biased"] = "biased"
    clip_epsilon: float = 0.0
    clip_norm: Literal["applied", "all"] = "applied"
    nonfinite_micro_batch: Literal["drop-window", "drop-micro-batch"] = "drop-window"
    batch_statistics: Literal["rank", "whole"] = "rank"
    pipeline_scaling: Literal["mean-once", "mean-each-step", "none"] = "mean-once"
    remainder: Literal["flush", "carry", "drop"] = "flush"
    static_skips: bool = True
    partial_overflow: Literal["skip-overflowing", "skip-all"] = "skip-overflowing"
    accumulates: Literal["scaled", "unscaled"] = "scaled"
    compiled: bool = False
    gradient_input: tuple[str, ...] = ()
    keeps_products: tuple[str, ...] = ()
    adapter_format: Literal["float32", "base"] = "float32"
    adapter_bias: Literal["frozen", "trains"] = "frozen"
    adapter_save: Literal["adapters", "merged"] = "adapters"
    scaler: ScalerRule = field(default_factory=ScalerRule)
