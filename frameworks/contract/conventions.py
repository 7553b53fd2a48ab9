"""Legitimate differences between frameworks, declared as documented."""

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
        counts: what the growth counter counts, applied updates or micro-batches.
        nonfinite: whether overflow is looked for in scaled or in unscaled gradients.
        latched: True if the check is made when gradients are unscaled, False if when they are applied.
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
    """Legitimate differences that a framework declares; the reference follows them, so that parity can be tight.

    Attributes:
        adam_default_epsilon: Adam's epsilon for a recipe that leaves it to the framework.
        adam_epsilon: "outside": m̂ / (√v̂ + ε); "inside": α·√(1-β2ᵗ)/(1-β1ᵗ) · m / (√v + ε), Kingma & Ba's epsilon-hat.
        adam_correction: the format that β is rounded to, and 1 − βᵗ computed in; float32 costs half of its digits in
            the first updates, for float64 weights too; "weights": float32, and float64 for float64 weights.
        adam_counts: whose updates the t of 1 − βᵗ counts, where a parameter had no gradient in some of them.
        adam_share: the format that 1 − β, a gradient's share in its moment, is computed in for weights that are not
            float64; float32 costs half of its digits.
        momentum_rate: "outside": v ← μv + g, p ← p − αv; "inside": v ← μv − αg, p ← p + v.
        amsgrad: what AMSGrad takes the largest of, second moments or bias-corrected ones.
        adagrad_epsilon, rmsprop_epsilon: "outside": divided by √s + ε; "inside": by √(s + ε).
        rmsprop_rate: of RMSprop's velocity, as `momentum_rate`.
        adafactor_epsilon: "added": g² + ε₁ joins the means; "floor": the estimate's root is at least ε₁.
        adafactor_default_epsilon: ε₁ for a recipe that leaves it to the framework, None for the spacing of 1 in the
            weight's format.
        adafactor_rate: "capped": of the t-th update at most 1/√t; "given": as the user gives it.
        adafactor_decay: "first": p·(1 − rate·decay), before RMS(p) is taken; "apart": after; "whole": p·decay is
            subtracted with the update, whatever the rate.
        muon_products: the format of NS, "weights" for theirs.
        muon_epsilon: against a norm of zero, "added" to it or its "floor".
        muon_default_epsilon: that epsilon.
        muon_nesterov: "plain", or "corrected": g / (1 − μᵗ) + μ·v / (1 − μᵗ⁺¹), as in NAdam; also in the Adam of
            parameters that are no matrices.
        plateau_waits: whether a schedule that follows a metric compares none in its cooldown, and so misses the best.
        plateau_signed: whether its relative threshold is a share of the best metric, which may be negative, or of the
            best metric's magnitude.
        normalisation: the format of normalisation layers' weights in the model at level O2, "low" for the recipe's,
            "batch" for float32 in batch norm and the recipe's in others.
        variance: "centred": the mean of squared deviations; "difference": the mean of squares without the squared mean.
        running_variance: which variance batch norm's running statistics take in.
        clip_epsilon: added to the global norm when the clip coefficient is computed.
        clip_norm: whose gradients the norm is taken over where an overflow skips one of two optimizers: "applied", the
            other's, or "all", so that an infinite one leaves nothing of the other's.
        nonfinite_micro_batch: what one non-finite micro-batch costs.
        batch_statistics: what batch norm normalises with where ranks share a micro-batch: each rank's own samples, or
            those of all, since one program describes them ("whole"); then dropout too draws as one run does.
        remainder: what happens to an incomplete window at the end of an epoch.
        static_skips: whether an overflow skips an update under a static scale too.
        partial_overflow: under one scaler and two optimizers, whose update an overflow skips.
        accumulates: whether a window sums scaled gradients, so that the scale has to stay, or unscaled ones.
        compiled: whether a compiler may fuse operations and keep more precision than was asked for, so that two
            programs of one computation agree within rounding and not bit for bit.
        gradient_input: recomputation variants whose documentation asks that some input of a segment needs a gradient.
        keeps_products: recomputation variants that keep matrix products by definition.
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
    remainder: Literal["flush", "carry", "drop"] = "flush"
    static_skips: bool = True
    partial_overflow: Literal["skip-overflowing", "skip-all"] = "skip-overflowing"
    accumulates: Literal["scaled", "unscaled"] = "scaled"
    compiled: bool = False
    gradient_input: tuple[str, ...] = ()
    keeps_products: tuple[str, ...] = ()
    scaler: ScalerRule = field(default_factory=ScalerRule)
