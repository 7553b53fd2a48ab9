"""The names of transformers' heads, and every check of a head or of what a factory makes."""

import gc
import warnings
from collections.abc import Iterator
from importlib import import_module

import torch

from frameworks.torch.stacks.heads.building import NotBuilt, head_class, head_names
from frameworks.torch.stacks.heads.checks import HeadCheck

LIBRARY = "transformers"


def names() -> list[str]:
    """The heads, as "transformers:CLASS"."""
    import_module("frameworks.torch.stacks.heads.library_heads")  # takes seconds, which no model's limit has to include
    return [f"{LIBRARY}:{name}" for name in head_names()]


def checks(model: str, formats: tuple[str, ...]) -> Iterator[HeadCheck]:
    """The checks of "transformers:CLASS" or "PACKAGE.MODULE:FACTORY".

    Raises:
        NotBuilt: it cannot be trained, or not to the end.
    """
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    module, _, name = model.partition(":")
    try:
        if module == LIBRARY:
            heads = import_module("frameworks.torch.stacks.heads.library_heads")
            logs = import_module("transformers.utils.logging")
            logs.disable_progress_bar()
            logs.set_verbosity_error()
            kind = head_class(name)
            gc.freeze()
            yield from heads.checks(kind, formats)
        else:
            plain = import_module("frameworks.torch.stacks.heads.plain")
            yield from plain.checks(plain.call_factory(module, name), formats)
    except NotBuilt:
        raise
    except Exception as error:
        raise NotBuilt(f"raises {type(error).__name__}: {' '.join(str(error).split())[:200]}") from error
