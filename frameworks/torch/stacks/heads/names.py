"""transformers' head classes by name."""

from __future__ import annotations

import inspect
import re
from difflib import get_close_matches
from typing import Any

from frameworks.torch.stacks.heads.building import NotBuilt

_HEAD = re.compile(r"(?!Auto|TF|Flax|DataCollator)\w+(For[A-Z]\w+|LMHeadModel|DoubleHeadsModel)")
_TARGETS = ("labels", "start_positions", "mask_labels", "future_values")


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
