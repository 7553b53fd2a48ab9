"""8-bit Adam: `Adam8bit` of bitsandbytes, if installed."""

import warnings
from collections.abc import Mapping
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from fixtures.arrays import Array
from fixtures.recipe import Recipe
from frameworks.contract import Capability, EightBitRule, Unsupported, needs
from frameworks.torch.core.arrays import to_array
from frameworks.torch.core.layers import Slot
from frameworks.torch.training.scaler import scales_float16

NOT_INSTALLED = "bitsandbytes is not installed"
BLOCK = 256
"""Block size of bitsandbytes' optimizers."""
SLOTS = ("state1", "state2")
"""What bitsandbytes calls the moments; the numbers are at the ends of its other names too."""
_WRAPPED = "__bnb_optimizer_quant_state__"
_ONE_BLOCK = f"bitsandbytes' optimizers have blocks of {BLOCK} entries, and no argument for them"
_FLOAT16 = (
    "GradScaler.unscale_ refuses a float16 model's float16 gradients, and bitsandbytes' optimizers do not say that "
    "they unscale them by themselves"
)


@cache
def installed() -> bool:
    """Whether bitsandbytes is installed."""
    return find_spec("bitsandbytes") is not None


def _module(name: str) -> Any:
    """A module of bitsandbytes, whose import makes modules of PyTorch warn of each other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module(f"bitsandbytes.{name}")


def kind() -> type[torch.optim.Optimizer]:
    """The class of optimizers.

    Raises:
        ImportError: bitsandbytes is not installed, or not for this PyTorch.
    """
    return _module("optim").Adam8bit


def rule() -> EightBitRule:
    """The codes' values: bitsandbytes' dynamic maps."""
    made = _module("functional").create_dynamic_map
    first, second = (to_array(made(signed=signed)) for signed in (True, False))
    return EightBitRule(*SLOTS, first, second)


def unwrapped(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """What an optimizer holds for a parameter, without the mapping that bitsandbytes puts codes into when it saves."""
    return {**state, **state.get(_WRAPPED, {})} if _WRAPPED in state else state


def encoded(state: Mapping[str, Any]) -> bool:
    """Whether an optimizer holds codes for a parameter."""
    return "qmap1" in state


def moment_arrays(name: str, slot: Slot, state: Mapping[str, Any]) -> dict[str, Array]:
    """A parameter's moments as decoded by bitsandbytes, their codes, and their blocks' absmax."""
    decode = _module("functional").dequantize_blockwise
    result: dict[str, Array] = {}
    for number, moment in enumerate(SLOTS, start=1):
        codes, largest = state[moment], state[f"absmax{number}"]
        decoded = decode(codes, absmax=largest, code=state[f"qmap{number}"], blocksize=BLOCK)
        result[f"{moment}/{name}"] = slot.to_canonical(decoded)
        result[f"codes/{moment}/{name}"] = slot.to_canonical(codes)
        result[f"absmax/{moment}/{name}"] = to_array(largest)
    return result


def require(recipe: Recipe, device: str) -> None:
    """Refuses a recipe for 8-bit Adam that bitsandbytes' cannot follow.

    Raises:
        Unsupported: it asks for other blocks, or for a scaled loss of a float16 model.
    """
    if Capability.ADAM_8BIT not in needs(recipe):
        return
    block = getattr(recipe.optimizer, "block", BLOCK)
    if block != BLOCK:
        raise Unsupported(Capability.ADAM_8BIT, _ONE_BLOCK, partial(keeps_codes, device, blocksize=block))
    if scales_float16(recipe):
        raise Unsupported(Capability.ADAM_8BIT, _FLOAT16, partial(_unscales_float16, device))


def keeps_codes(device: str, **given: Any) -> bool:
    """Whether Adam8bit with these arguments uses 8-bit moments for large parameters."""
    weight = torch.ones(4096, device=device, requires_grad=True)
    optimizer = kind()([weight], lr=0.5, **given)
    weight.sum().backward()
    optimizer.step()
    codes = {optimizer.state[weight][moment].dtype for moment in SLOTS}
    return codes == {torch.uint8} and bool((weight < 1.0).all())


def _unscales_float16(device: str) -> bool:
    weight = torch.ones(4096, dtype=torch.float16, device=device, requires_grad=True)
    scaler, optimizer = torch.amp.GradScaler(device, init_scale=16.0), kind()([weight], lr=0.5)
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    return bool((weight < 1.0).all())
