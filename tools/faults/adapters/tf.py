"""Faults of the TensorFlow adapter."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from frameworks.tf import TensorFlowFramework, framework, training
from frameworks.tf.core import steps
from frameworks.tf.distributed import MirroredWorker
from tools.faults import fault, replaces


@fault("https://github.com/paiml/aprender/pull/2123", "accumulation.keeps-precision")
class SumsTheWindow(TensorFlowFramework):
    """The gradients of a window are summed where they should be averaged."""

    @replaces(keras.optimizers.Optimizer, "_clip_gradients")
    def clip_sum(clip: Any, self: Any, gradients: list[Any]) -> Any:
        return clip(self, [gradient * (self.gradient_accumulation_steps or 1) for gradient in gradients])


@fault("https://github.com/hpcaitech/ColossalAI/issues/1028", "accumulation.each-counts-once")
class AccumulatorIsNotReset(TensorFlowFramework):
    """The accumulators are not set to zero at the end of a window."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        keras.optimizers.Optimizer._backend_reset_gradient_accumulators = lambda self: None


@fault("https://github.com/espnet/espnet/pull/3283", "accumulation.bad-window-is-forgotten")
class AccumulatorIsEmptiedByAProduct(TensorFlowFramework):
    """The accumulators are multiplied by zero at the end of a window, so that what was infinite becomes NaN."""

    @replaces(keras.optimizers.Optimizer, "_backend_reset_gradient_accumulators")
    def multiply_by_zero(_: Any, self: Any) -> None:
        for accumulator in self._accumulated_gradients:
            accumulator.assign(accumulator * 0.0)


@tf.custom_gradient
def _transpose_gradient(kernel: tf.Tensor) -> Any:
    """The identity for kernels (height, width, inputs, filters), whose gradient has height and width exchanged."""
    return tf.identity(kernel), lambda upstream: tf.transpose(upstream, (1, 0, 2, 3))


@fault(
    "https://github.com/apple/tensorflow_macos/issues/230",
    "autocast.float32-parity",
    names="(Convolution), gradient of weight",
)
class FilterGradientIsTransposed(TensorFlowFramework):
    """The gradient of a convolution's filter has its two spatial axes exchanged."""

    @replaces(keras.layers.Conv2D, "convolution_op")
    def convolve_transposed(convolve: Any, self: Any, inputs: tf.Tensor, kernel: Any) -> tf.Tensor:
        return convolve(self, inputs, _transpose_gradient(tf.convert_to_tensor(kernel)))


@fault(
    "https://github.com/keras-team/keras/issues/15806",
    "autocast.matmul-is-low",
    "autocast.backward-in-forward-precision",
)
class LayersIgnoreThePolicy(TensorFlowFramework):
    """Layers are made under the policy float32, whatever global policy was set."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        keras.config.set_dtype_policy = lambda policy: None


@fault("https://github.com/keras-team/keras/pull/20014", "autocast.policy-does-not-leak")
class PolicyReachesLosses(TensorFlowFramework):
    """Losses are computed in the format that the global policy gives to layers."""

    @replaces(steps.TracedSteps, "__init__")
    def init_with_policy(make: Any, self: steps.TracedSteps, model: Any, bound: Any, *rest: Any) -> None:
        make(self, model, bound, *rest)
        for (head, _), loss in self._losses.items():
            loss._dtype = bound.network.heads[head].compute_dtype


@fault("https://github.com/PaddlePaddle/Paddle/pull/47985", "autocast.scope-restored")
class PolicyOutlivesItsScope(TensorFlowFramework):
    """An exception leaves the global policy as it was inside the scope."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

        @contextmanager
        def leave_policy_on_error(name: str) -> Iterator[None]:
            former = keras.config.dtype_policy()
            keras.config.set_dtype_policy(name)
            yield
            keras.config.set_dtype_policy(former)

        framework.dtype_policy = leave_policy_on_error


@fault("https://github.com/tensorflow/tensorflow/issues/47156", "autocast.norm-layers-are-wide")
class NormalisesInLowPrecision(TensorFlowFramework):
    """Layer normalisation takes mean and mean square in the format of its input, where the square overflows."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

        def normalise(self: Any, x: tf.Tensor) -> tf.Tensor:
            mean = tf.reduce_mean(x, -1, keepdims=True)
            variance = tf.reduce_mean(x * x, -1, keepdims=True) - mean * mean
            return (x - mean) * tf.math.rsqrt(variance + tf.cast(self.epsilon, x.dtype))

        keras.layers.LayerNormalization.call = normalise


@fault("https://github.com/google-deepmind/optax/issues/1754", "master.adam-epsilon-survives")
class EpsilonUnderflows(TensorFlowFramework):
    """Adam's epsilon is rounded to 0."""

    @replaces(keras.optimizers.Adam, "__init__")
    def round_epsilon(make: Any, self: Any, *args: Any, epsilon: float = 0.0, **named: Any) -> None:
        make(self, *args, epsilon=epsilon * 0.0, **named)


@fault("https://github.com/jax-ml/jax/pull/37888", "recompute.runs-forward-once-more")
class RematDoesNothing(TensorFlowFramework):
    """`keras.remat` returns its function."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        keras.remat = lambda function: function


@fault("https://github.com/huggingface/transformers/issues/21381", "recompute.no-grad-input")
class VariablesGetNoGradient(TensorFlowFramework):
    """`tf.recompute_grad` differentiates by the arguments only, not by the variables that its function uses."""

    @replaces(tf, "recompute_grad")
    def recompute_grad(_: Any, function: Any) -> Any:
        @tf.custom_gradient
        def recompute(*inputs: tf.Tensor) -> Any:
            def gradient(upstream: tf.Tensor, variables: Any = ()) -> Any:
                with tf.GradientTape() as tape:
                    tape.watch(inputs)
                    output = function(*inputs)
                return list(tape.gradient(output, inputs, upstream)), [None] * len(variables)

            return function(*inputs), gradient

        return recompute


@fault("https://github.com/NVIDIA/apex/issues/480", "resume.scaler-state")
class OptimizerNotSaved(TensorFlowFramework):
    """The checkpoint holds the model without the optimizer, its moments and its loss scale."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        parts = training._parts
        training._parts = lambda *args: parts(*args) | {"optimizer": {}}


@fault("https://github.com/vllm-project/speculators/issues/1027", "resume.random-state")
class SeedsNotSaved(TensorFlowFramework):
    """The checkpoint leaves out the seed generators of the dropout layers."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        parts = training._parts
        training._parts = lambda *args: parts(*args) | {"seeds": {}}


Optimizer, Scaler = keras.optimizers.Optimizer, keras.optimizers.LossScaleOptimizer


@fault("https://github.com/keras-team/keras/issues/19479", "scaling.rescues-small-gradients")
class UnscalesWhatWasNotScaled(TensorFlowFramework):
    """The loss is not scaled, and its gradients are divided by the scale."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        Scaler.scale_loss = lambda self, loss: loss


@fault("https://github.com/google-deepmind/optax/pull/1746", "scaling.detects-nan", "scaling.skip-is-atomic")
class AppliesOverflow(TensorFlowFramework):
    """`LossScaleOptimizer` finds every gradient finite."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        Scaler.check_finite = lambda self, gradients: tf.constant(True)


@fault("https://github.com/keras-team/keras/issues/20878", "scaling.skip-is-reported")
class IterationsStandStill(TensorFlowFramework):
    """`LossScaleOptimizer.iterations` never increases."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        Scaler.iterations = property(lambda self: self._iterations)


@fault("https://github.com/deepspeedai/DeepSpeed/pull/3553", "scaling.grows-after-interval")
class OverflowKeepsCount(TensorFlowFramework):
    """An overflow does not reset the count of finite updates."""

    @replaces(Scaler, "_stateful_handle_non_finite_grads")
    def shrink(_: Any, self: Any) -> None:
        self.dynamic_scale.assign(self.dynamic_scale * 0.5)


@fault("https://github.com/keras-team/keras/pull/21233", "scaling.static-is-constant")
class UnscalesStaticScaleTwice(TensorFlowFramework):
    """A static scale is divided out of the gradients by the training step and again by the optimizer."""

    @replaces(Optimizer, "apply")
    def unscale_and_apply(apply: Any, self: Any, gradients: list[Any], variables: Any = None) -> None:
        scale = self.loss_scale_factor or 1.0
        apply(self, [None if gradient is None else gradient / scale for gradient in gradients], variables)


class OwnItemsWorker(MirroredWorker):
    """Replicas that divide losses by their own items and by the number of replicas."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)

        def average(losses: tf.Tensor, weights: Any, _: Any) -> tf.Tensor:
            return (
                tf.reduce_mean(losses if weights is None else losses * weights)
                / tf.distribute.get_strategy().num_replicas_in_sync
            )

        tf.nn.compute_average_loss = average


@fault("https://github.com/meta-pytorch/torchtune/pull/2172", "sharding.mean-over-items")
class EachReplicaDividesByItsOwnItems(TensorFlowFramework):
    """The loss is the mean of replicas' means instead of the mean over all items."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        framework._MEMBER = f"{__name__}:OwnItemsWorker"


class UnreducedWorker(MirroredWorker):
    """Replicas whose optimizer does not reduce gradients."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        keras.optimizers.Optimizer._all_reduce_sum_gradients = lambda self, pairs: pairs


@fault("https://github.com/ByteDance-Seed/VeOmni/issues/1059", "sharding.replicas-equal", "sharding.equals-whole")
class ReplicasTrainApart(TensorFlowFramework):
    """Every replica updates with its own gradient."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        framework._MEMBER = f"{__name__}:UnreducedWorker"
