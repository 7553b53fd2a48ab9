"""transformers' head classes, and a head built from a tiny configuration, with rows that it can be trained on."""

from __future__ import annotations

import copy
import inspect
import math
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch

from frameworks.torch.stacks.heads.batches import Row, candidates, collate
from frameworks.torch.stacks.heads.configs import LABELS, Shrinking, shrinkings, tiny_config

MOST_PARAMETERS = 10_000_000
LONGEST_PASS_S = 0.15
_HEAD = re.compile(r"(?!Auto|TF|Flax|DataCollator)\w+(For[A-Z]\w+|LMHeadModel|DoubleHeadsModel)")
_TARGETS = ("labels", "start_positions", "mask_labels", "future_values")


class NotBuilt(Exception):
    """The head cannot be built or trained from a tiny configuration; the message says why."""


def head_names() -> list[str]:
    """The names of all classes of transformers that are called like heads, without importing them."""
    import transformers

    return sorted(name for name in dir(transformers) if _HEAD.fullmatch(name))


def head_class(name: str) -> Any:
    """The class of this name.

    Raises:
        NotBuilt: there is none, or its forward takes no targets.
    """
    import transformers

    try:
        kind = getattr(transformers, name)
    except AttributeError:
        near = get_close_matches(name, head_names(), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise NotBuilt(f"transformers {transformers.__version__} has no class {name!r}{hint}") from None
    except (ImportError, RuntimeError) as error:
        raise NotBuilt(f"cannot be imported: {' '.join(str(error).split())[:160]}") from None
    if not isinstance(kind, type) or not hasattr(kind, "forward"):
        raise NotBuilt("is no model")
    if getattr(kind, "__module__", "").endswith("dummy_pt_objects"):
        raise NotBuilt("needs a library that is not installed")
    if not set(_TARGETS) & set(inspect.signature(kind.forward).parameters):
        raise NotBuilt("its forward takes no targets")
    return kind


@dataclass(frozen=True)
class TinyHead:
    """One class, its tiny configuration and its rows."""

    kind: Any
    config: Any
    rows: list[Row]

    def model(self, seed: int = 0) -> Any:
        """A model with the weights of this seed."""
        torch.manual_seed(seed)
        return self.kind(copy.deepcopy(self.config)).train()


def built(kind: Any, limit_s: float = 2.0) -> TinyHead:
    """The head of the first tiny configuration and rows with a finite loss that has a gradient.

    Raises:
        NotBuilt: there is none within `limit_s` seconds of this processor.
    """
    if getattr(kind, "config_class", None) is None:
        raise NotBuilt("it has no configuration class")
    labels = 2 if "QuestionAnswering" in kind.__name__ else LABELS
    clock, reasons = time.process_time(), [list[str](), list[str]()]
    for shrinking in _ways(kind):
        if time.process_time() - clock > limit_s:
            break
        try:
            config = tiny_config(kind.config_class, shrinking, labels)
            size = _parameters(kind, config)
            if size > MOST_PARAMETERS:
                reasons[0].append(f"a configuration has {size:,} parameters")
                continue
            torch.manual_seed(0)
            model = kind(copy.deepcopy(config)).train()
        except Exception as error:
            reasons[0].append(f"no model: {_short(error)}")
            continue
        for rows in candidates(kind, config):
            if time.process_time() - clock > limit_s:
                break
            began = time.process_time()
            try:
                loss = loss_of(model(**collate(rows)))
                loss.backward()
            except Exception as error:
                reasons[1].append(f"no loss: {_short(error)}")
                continue
            if not math.isfinite(float(loss.detach())):
                reasons[1].append(f"the loss is {float(loss.detach())}")
                continue
            if (lasted := time.process_time() - began) > LONGEST_PASS_S:
                reasons[1].append(f"a pass takes {lasted:.1f} s")
                break
            return TinyHead(kind, config, rows)
    raise NotBuilt(next(iter([*reasons[1], *reasons[0]]), "no time"))


def _ways(kind: Any) -> Iterator[Shrinking]:
    try:
        yield from shrinkings(kind.config_class)
    except Exception as error:
        raise NotBuilt(f"no default configuration: {_short(error)}") from None


def loss_of(output: Any) -> torch.Tensor:
    """The loss of a forward pass.

    Raises:
        ValueError: there is none.
    """
    loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if loss is None:
        raise ValueError("the forward pass returned no loss")
    return loss


def _parameters(kind: Any, config: Any) -> int:
    with torch.device("meta"):
        model = kind(copy.deepcopy(config))
    return sum(parameter.numel() for parameter in model.parameters())


def _short(error: Exception) -> str:
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said[:200]}"
