"""All checks of one transformers head, trained by Trainer, and the causes of failures."""

from __future__ import annotations

import copy
import inspect
import logging
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import Trainer, TrainerCallback, TrainingArguments

from frameworks.torch.stacks.framework import collect_warnings
from frameworks.torch.stacks.heads.building import ROWS, Row, TinyHead, build_head, collate, loss_of, make_ragged_rows
from frameworks.torch.stacks.heads.checks import (
    EQUAL,
    FAIL,
    FLOAT32,
    ONCE,
    RECOMPUTED,
    RESUME,
    UNBOUNDED,
    Gradients,
    HeadCheck,
    InnerBytes,
    K,
    Segments,
    bounds,
    check_precision,
    check_recomputation,
    check_windows,
    find_unsteadiness,
    first_difference,
    gradients_of,
    left_out,
    loud,
    make_check,
    name_fraction,
    quiet,
    run,
    state_of,
)  # fmt: skip


@dataclass(frozen=True)
class Window:
    """One update by Trainer, with its warnings and log messages.

    Attributes:
        divides: Trainer expects the model to divide the loss by the number of items.
    """

    loss: float
    gradients: Gradients
    divides: bool
    messages: tuple[str, ...]


class _GradientReader(TrainerCallback):
    """Reads the gradients just before the optimizer's step."""

    def __init__(self) -> None:
        self.gradients: Gradients = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self.gradients = gradients_of(named["model"])


def window(model: Any, rows: Sequence[Row], k: int) -> Window:
    """Makes one update of all rows in `k` micro-batches."""
    reader = _GradientReader()
    with TemporaryDirectory() as folder, _collect_messages() as messages:
        trainer = trainer_of(model, rows, folder, k, callbacks=[reader], max_steps=1)
        result = trainer.train()
    return Window(result.training_loss, reader.gradients, bool(trainer.model_accepts_loss_kwargs), tuple(messages))


def trainer_of(
    model: Any, rows: Sequence[Row], folder: str | Path, k: int = 1, callbacks: Sequence[Any] = (), **changes: Any
) -> Trainer:
    """A Trainer on the CPU with one window of all rows."""
    settings: dict[str, Any] = {
        "optim": "sgd",
        "learning_rate": 2.0**-10,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "save_strategy": "no",
        **changes,
    }
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=ROWS // k,
        gradient_accumulation_steps=k,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        remove_unused_columns=False,
        dataloader_pin_memory=False,
        seed=0,
        **settings,
    )
    return Trainer(model, arguments, data_collator=collate, train_dataset=list(rows), callbacks=list(callbacks))


@contextmanager
def _collect_messages() -> Iterator[list[str]]:
    """Collects warnings and log messages of transformers, whose logger is set to show them."""
    logger = logging.getLogger("transformers")
    former = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with collect_warnings("transformers") as messages:
            yield messages
    finally:
        logger.setLevel(former)


def run_and_resume(
    model: Any, fresh: Any, rows: Sequence[Row]
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], list[str]]:
    """The final state of a run of four updates, that of a run which a new Trainer of `fresh` resumes after two, and the
    log messages.

    A state has weights, buffers, the optimizer's moments and the CPU's random state.
    """
    with TemporaryDirectory() as folder, _collect_messages() as messages:
        names: dict[str, Any] = {"optim": "adamw_torch", "max_steps": 4, "save_steps": 2, "save_strategy": "steps"}
        whole = trainer_of(model, rows, folder, k=2, **names)
        whole.train()
        unbroken = _state(whole)
        torch.manual_seed(1)
        other = trainer_of(fresh, rows, folder, k=2, **names)
        other.train(resume_from_checkpoint=str(Path(folder) / "checkpoint-2"))
        return unbroken, _state(other), messages


def _state(trainer: Trainer) -> dict[str, torch.Tensor]:
    return state_of(trainer.model, getattr(trainer.optimizer, "optimizer", trainer.optimizer))


WEIGHS, SWITCH = "accumulation.weighs-items", "accumulation.switch-decides"
COUNTS_FIRST = "Trainer counts the first label of each row, which has no loss"
_KINDS = re.compile(r"(Sequence|Image|Audio|Video)Classification$")

_LOSSES = (
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "ctc_loss",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div",
)  # fmt: skip
COUNT = "num_items_in_batch"


def checks(kind: Any, formats: tuple[str, ...] = ("bfloat16",)) -> Iterator[HeadCheck]:
    """Yields every check as soon as it is judged.

    Raises:
        NotBuilt: the class cannot be trained from a tiny configuration.
    """
    head = build_head(kind)
    yield from _accumulation(head)
    yield from _recomputation(head)
    yield from check_precision(quiet(head.model()), _loss(head.rows), formats)
    yield _resume(head)


def _loss(rows: list[Row]) -> Any:
    return lambda model: loss_of(model(**collate(rows)))


def _accumulation(head: TinyHead) -> Iterator[HeadCheck]:
    main = _windows(head, head.rows, "")
    if isinstance(main, str):
        yield from (left_out(clause, "", main) for clause in (EQUAL, WEIGHS, ONCE, SWITCH))
        return
    check, alone, parts = main
    yield check
    yield alone
    if check.outcome == FAIL:
        yield left_out(WEIGHS, "", f"{EQUAL} fails")
        yield _check_decision(parts)
        return
    yield from _check_weighing(head)
    others = [_other(*arguments) for arguments in _other_losses(head)]
    yield from (other for other, _ in others)
    failed = [window for other, window in others if other.outcome == FAIL]
    yield (
        _check_decision(failed[0]) if failed else make_check(SWITCH, "", True, "the loss is what Trainer assumes", "")
    )


def _windows(
    head: TinyHead, rows: list[Row], case: str, clause: str = EQUAL
) -> tuple[HeadCheck, HeadCheck, Window] | str:
    """A window of k=4 against Trainer's of k=1, and against one call of the model without Trainer.

    The reason if they cannot be judged.
    """
    model = quiet(head.model())
    loss = _loss(rows)
    if reason := find_unsteadiness(lambda: quiet(head.model()), lambda module: run(module, loss).gradients):
        return reason
    loss_bound, bound = bounds(model, loss, FLOAT32)
    if not math.isfinite(bound + loss_bound):
        return UNBOUNDED
    alone, batch = run(model, loss), collate(rows)
    whole, parts = (window(quiet(head.model()), rows, k) for k in (1, K))
    limits = (loss_bound + FLOAT32 * abs(alone.loss) * ROWS * 8, bound)

    def explain(_: float) -> str:
        passed = parts.divides and "labels" in batch
        named = {COUNT: torch.tensor(ROWS)} if passed else {}
        return find_cause(lambda: quiet(head.model())(**batch, **named), passed)

    windows = check_windows(clause, "", whole, parts, limits=limits, cause=explain)
    counted, predicted = _count_targets(batch.get("labels"))
    part = name_fraction(parts.loss, alone.loss, counted) if counted else ""
    counts_first = part and part == name_fraction(predicted, counted, counted)
    cause = explain if windows.outcome == FAIL else lambda _: COUNTS_FIRST if counts_first else ""
    once = check_windows(ONCE, case, alone, parts, limits=limits, cause=cause, source="the model's own loss")
    return windows, replace(once, got=f"{once.got}, {part} of the loss") if part else once, parts


def _count_targets(labels: Any) -> tuple[int, int]:
    """The number of labels without those of -100, and of those behind the first of a row; zeros if a row has one."""
    if not isinstance(labels, torch.Tensor) or labels.dim() < 2 or labels.dtype != torch.long:
        return 0, 0
    return int(labels.ne(-100).sum()), int(labels[..., 1:].ne(-100).sum())


def _check_decision(window: Window) -> HeadCheck:
    messages = [text for text in window.messages if COUNT in text or "accumulat" in text.lower()]
    got = messages[0] if messages else "no warning, log or attribute"
    want = "a word that the loss does not use num_items_in_batch"
    return make_check(
        SWITCH, "", bool(messages), got, want, "Trainer decides by the signature of forward alone, in silence"
    )


def _check_weighing(head: TinyHead) -> Iterator[HeadCheck]:
    rows = make_ragged_rows(head.rows)
    if rows is None:
        yield left_out(WEIGHS, "", "each row counts as one item")
        return
    try:
        result = _windows(head, rows, "unequal rows", WEIGHS)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        result = f"labels of -100 raise {type(error).__name__}"
    yield from [left_out(WEIGHS, "", result)] if isinstance(result, str) else result[:2]


def _other_losses(head: TinyHead) -> Iterator[tuple[str, TinyHead]]:
    """The other kinds of loss that a classification head documents by `problem_type`."""
    if not _KINDS.search(head.kind.__name__) or not isinstance(head.rows[0].get("labels"), torch.Tensor):
        return
    if not hasattr(head.kind, "loss_function") and "problem_type" not in inspect.getsource(head.kind):
        return
    for name, labels in (("regression", 1), ("multi_label_classification", int(head.config.num_labels))):
        config = copy.deepcopy(head.config)
        config.num_labels, config.problem_type = labels, name
        value = (lambda row: torch.tensor(row / ROWS)) if labels == 1 else _labels_of_row
        rows = [{**row, "labels": value(number)} for number, row in enumerate(head.rows)]
        yield name, TinyHead(head.kind, config, rows)


def _labels_of_row(row: int) -> torch.Tensor:
    return torch.tensor([float(row % 2), 1.0, float(row % 3 == 0)])


def _other(name: str, other: TinyHead) -> tuple[HeadCheck, Any]:
    try:
        result = _windows(other, other.rows, name)
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as error:
        return left_out(ONCE, name, f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"), None
    return (left_out(ONCE, name, result), None) if isinstance(result, str) else result[1:]


def _recomputation(head: TinyHead) -> Iterator[HeadCheck]:
    if not head.kind.supports_gradient_checkpointing:
        yield from (left_out(clause, "", "the class says that it does not support it") for clause in RECOMPUTED)
        return
    segments, loss = Segments(), _loss(head.rows)
    other = _enable_checkpointing(head, lambda function: partial(segments.call, function))
    bound = partial(bounds, quiet(head.model()), loss, FLOAT32)
    yield from check_recomputation(
        loud(head.model()), other, segments, loss, bound=bound, inner_bytes=partial(_inner_bytes, head)
    )


def _enable_checkpointing(head: TinyHead, wrap: Callable[[Any], Any]) -> Any:
    """A model with checkpointing by a wrapped function."""
    model = loud(head.model())
    model.gradient_checkpointing_enable()
    for module in model.modules():
        if (function := getattr(module, "_gradient_checkpointing_func", None)) is not None:
            module._gradient_checkpointing_func = wrap(function)
    return model


def _inner_bytes(head: TinyHead) -> int:
    """Bytes that autograd saves within the segments."""
    inner = InnerBytes(head.model())
    inner.model = _enable_checkpointing(head, lambda _: inner.call)
    _loss(head.rows)(inner.model)
    return inner.size


def _draws_once(model: Any, loss: Any) -> bool:
    states = []
    for _ in range(2):
        torch.manual_seed(4)
        loss(model)
        states.append(torch.get_rng_state())
    return not torch.equal(*states)


def _resume(head: TinyHead) -> HeadCheck:
    try:
        unbroken, end, messages = run_and_resume(loud(head.model()), loud(head.model(seed=1)), head.rows)
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        return HeadCheck(
            RESUME, "", FAIL, f"{type(error).__name__}: {' '.join(str(error).split())[:160]}", "a resumed run"
        )
    differs = first_difference(unbroken, end)
    missing = any("missing keys" in text for text in messages)
    why = ""
    if differs and missing:
        why = "Trainer resumes from keys that save_pretrained has converted, without converting them back"
    elif differs and _draws_once(loud(head.model()), _loss(head.rows)):
        why = "the first pass of a new model draws random numbers that its later passes do not draw"
    got = f"{differs} differs" if differs else "the same bits"
    return make_check(RESUME, "", not differs, got, "weights, moments and random state of the unbroken run", why)


@dataclass(frozen=True)
class _Frame:
    """A call inside transformers: its file in the package, its function; `counted`: it has the number of items."""

    file: str
    function: str
    counted: bool


class _Watching(TorchFunctionMode):
    """Records the call stack of the first loss function of PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.loss, self.frames = "", list[_Frame]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if not self.loss and name in _LOSSES:
            self.loss, self.frames = name, _inside_transformers(sys._getframe(1))
        return func(*args, **(kwargs or {}))


def _inside_transformers(frame: FrameType | None) -> list[_Frame]:
    result = []
    while frame is not None:
        _, mark, below = frame.f_code.co_filename.partition("/transformers/")
        if mark and not below.startswith(("utils/", "trainer")):
            variables = {**frame.f_locals.get("kwargs", {}), **frame.f_locals}
            result.append(_Frame(below, frame.f_code.co_qualname, variables.get(COUNT) is not None))
        frame = frame.f_back
    return result


def find_cause(forward: Callable[[], Any], passed: bool) -> str:
    """The reason why the loss of `forward` ignores the number of items that it was called with, in the same words for
    all heads with the same code.

    Args:
        passed: Trainer passes the number of items to this class.
    """
    with _Watching() as watching, torch.no_grad():
        forward()
    if not passed:
        return "Trainer averages the means of micro-batches: the class does not accept the count"
    if not watching.frames:
        return "the model's own file computes the loss without a loss function of PyTorch, and ignores the count"
    shared = [frame for frame in watching.frames if not frame.file.startswith("models/")]
    if not shared:
        return f"forward in the model's own file calls {watching.loss} itself, and ignores the count"
    losses = [frame for frame in shared if frame.file.startswith("loss/")]
    callers = [frame for frame in watching.frames if not frame.file.startswith("loss/")]
    function = f"{losses[-1].file}:{losses[-1].function}" if losses else watching.loss
    if losses and losses[-1].counted:
        return f"{function} gets the count and ignores it"
    if callers and not callers[0].file.startswith("models/"):
        return f"{callers[0].file}:{callers[0].function} calls {function} without the count"
    return f"forward in the model's own file calls {function} without the count"
