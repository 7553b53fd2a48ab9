"""Offload: it changes no bit of the training, and it moves data off the device."""

import gc
from pathlib import Path

import numpy as np
import pytest

from conformance.checks import subprocesses
from conformance.checks.api import Subject, Verdict, clause, full, need, need_device, spike_gradients, supports
from fixtures.arrays import Array
from fixtures.data import digits_batch, exact_batch, sincos_batch, vector_batch, wide_batch
from fixtures.model import Batch, Model
from fixtures.models import (
    blocks,
    digits_convolution,
    embedding_model,
    encoder,
    exact_linear,
    exact_stack,
    sincos,
    two_heads,
)
from fixtures.recipe import (
    BFLOAT16,
    FLOAT16,
    MASTERED,
    SGD,
    Adam,
    AdamW,
    DynamicScaling,
    Offload,
    OffloadedKind,
    Ranks,
    Recipe,
    Recompute,
)
from frameworks.contract import Capability, Trainer

KINDS: tuple[OffloadedKind, ...] = ("activations", "parameters", "optimizer")
OFFLOADS = tuple(Offload(kinds, to) for to in ("host", "disk") for kinds in (*((kind,) for kind in KINDS), KINDS))
each_offload = pytest.mark.parametrize("offload", OFFLOADS, ids=lambda offload: offload.label)

ADAM = Recipe(Adam(2.0**-8))
STACK = exact_stack()


def vectors(seed: int) -> Batch:
    return vector_batch(4, 8, 16, seed)


def images(seed: int) -> Batch:
    return digits_batch(6, 6 * seed, image=True)


def samples(seed: int) -> Batch:
    return exact_batch(8, seed=seed)


def rows(seed: int) -> Batch:
    ids = np.random.default_rng(seed).integers(0, 16, (5, 6))
    return Batch(ids, {"output": np.arange(5) % 3})


def angles(seed: int) -> Batch:
    return sincos_batch(8, seed)


def of_two(seed: int) -> Batch:
    batch = exact_batch(8, 8, 2, seed)
    return Batch(batch.inputs, {"a": batch.targets["output"], "b": batch.targets["output"][::-1].copy()})


CASES = {
    "adam": (STACK, ADAM, samples),
    "clipped-windows": (STACK, ADAM.replace(accumulation=2, clip=0.5), samples),
    "scaled-float16": (
        STACK,
        ADAM.replace(precision=FLOAT16, scaling=DynamicScaling(initial=16.0, interval=2)),
        samples,
    ),
    "masters-bfloat16": (STACK, ADAM.replace(precision=MASTERED[1]), samples),
    "recomputed": (STACK, ADAM.replace(precision=BFLOAT16, recompute=Recompute(2)), samples),
    "averaged": (STACK, ADAM.replace(average=0.75), samples),
    "attention": (encoder(16, 4, 1, 8, 0.25, embedded=False), Recipe(AdamW(2.0**-8)), vectors),
    "convolution": (digits_convolution(), Recipe(SGD(2.0**-6, 0.5)), images),
    "embedding": (embedding_model(), ADAM, rows),
    "separate-losses": (two_heads(), ADAM.replace(separate_losses=True), of_two),
    "float64-heads": (sincos(8), ADAM, angles),
}
"""Workloads by name: a model, a recipe, and a function from a seed to data."""


def run_without_offload(subject: Subject, model: Model, recipe: Recipe) -> Trainer:
    """Return a run without offload, even if the mode offloads."""
    return subject.framework.trainer(model, subject.in_place(recipe))


def widest(subject: Subject) -> list[Offload]:
    """Return the declared offloads that are not part of another one; end the test if there are none.

    Raises:
        Unsupported: no offload is declared; the message is the reason for the first.
    """
    offloads = [offload for offload in OFFLOADS if supports(subject.framework, *Capability.of_offload(offload))]
    if not offloads:
        need(subject, *Capability.of_offload(OFFLOADS[0]))
    return [a for a in offloads if not any(a.to == b.to and set(a.what) < set(b.what) for b in offloads)]


@clause("offload.same-bits")
@pytest.mark.parametrize("name", CASES)
def test_offloaded_run_matches_resident_run_bitwise(subject: Subject, verdict: Verdict, name: str) -> None:
    model, recipe, data = CASES[name]
    offloaded = {offload.label: subject.trainer(model, recipe.replace(offload=offload)) for offload in widest(subject)}
    resident = run_without_offload(subject, model, recipe)
    for seed in range(3):
        window = data(seed).into(recipe.accumulation)
        gradients, report, state = resident.gradients(window), resident.update(window), resident.state()
        for label, run in offloaded.items():
            verdict.same_state(run.gradients(window), gradients, f"gradients before update {seed + 1}, {label}")
            verdict.equal(run.update(window), report, f"report of update {seed + 1}, {label}", "update-differs")
            verdict.same_state(run.state(), state, f"training state after update {seed + 1}, {label}")
    inputs = data(9).inputs
    for label, run in offloaded.items():
        verdict.same_state(run.predict(inputs), resident.predict(inputs), f"outputs after the last update, {label}")


@clause("offload.same-bits")
def test_empty_micro_batch_matches_resident_run_bitwise(subject: Subject, verdict: Verdict) -> None:
    recipe = ADAM.replace(accumulation=2)
    batch = samples(0)
    window = (batch.part(0, 0), batch)
    offloads = widest(subject)
    resident = run_without_offload(subject, STACK, recipe)
    resident.update(window)
    for offload in offloads:
        offloaded = subject.trainer(STACK, recipe.replace(offload=offload))
        offloaded.update(window)
        what = f"training state after a window with an empty micro-batch, {offload.label}"
        verdict.same_state(offloaded.state(), resident.state(), what)


@clause("offload.same-bits")
@each_offload
def test_skipped_update_matches_resident_run_bitwise(subject: Subject, verdict: Verdict, offload: Offload) -> None:
    recipe = ADAM.replace(scaling=DynamicScaling(initial=16.0, interval=3))
    offloaded = subject.trainer(STACK, recipe.replace(offload=offload))
    resident = run_without_offload(subject, STACK, recipe)
    for value in (1.0, np.inf, 0.5):
        reports = [run.apply_gradients(spike_gradients(run, value, base=1.0)) for run in (offloaded, resident)]
        verdict.equal(
            reports[0].skipped, reports[1].skipped, f"whether an update of {value} is skipped", "skip-differs"
        )
        verdict.same_state(offloaded.state(), resident.state(), f"training state after an update of {value}")


def copies(subject: Subject, kind: str) -> int:
    """Return the number of copies of the parameters, or of the optimizer state, on all ranks of this mode."""
    ranks = subject.framework.ranks() or Ranks(1)
    return ranks.replicas if kind.removesuffix("s") in ranks.sharded else ranks.count


@clause("offload.acts")
@each_offload
def test_only_requested_tensors_are_offloaded(
    subject: Subject, verdict: Verdict, offload: Offload, tmp_path: Path
) -> None:
    run = subject.trainer(STACK, ADAM.replace(offload=offload))
    batch = samples(0)
    run.update((batch,))
    away = run.offloaded_bytes()
    verdict.equal(sorted(away), sorted(offload.what), "kinds that are offloaded", "other-kinds")
    weights = sum(value.nbytes for value in run.parameters().values())
    sizes = {"parameters": weights, "optimizer": 2 * weights}
    state = {kind: size * copies(subject, kind) for kind, size in sizes.items() if kind in away}
    run.save(tmp_path)
    run.restore(tmp_path)
    for when, offloaded in (("", away), (" after a load", run.offloaded_bytes())):
        verdict.equal({kind: offloaded[kind] for kind in state}, state, f"offloaded bytes{when}", "other-bytes")
    if "activations" in away:
        taken_in = 2 * batch.inputs.nbytes  # each layer past the first, and the head, take in a batch of this width
        verdict.holds(away["activations"] >= taken_in, "activations leave", away, f">= {taken_in} bytes", "stays")


@clause("offload.acts")
@pytest.mark.parametrize("to", ["host", "disk"])
def test_activations_are_offloaded_in_every_update(subject: Subject, verdict: Verdict, to: str) -> None:
    offload = Offload(("activations",), to)  # type: ignore[arg-type]
    run = subject.trainer(STACK, ADAM.replace(offload=offload))
    sizes = []
    for seed in range(3):
        run.update((samples(seed),))
        sizes.append(run.offloaded_bytes()["activations"])
    verdict.equal(sizes, [sizes[0]] * 3, "bytes offloaded in each of three equal updates", "other-bytes")
    run.update(samples(4).into(2))
    halves = run.offloaded_bytes()["activations"]
    verdict.holds(halves >= sizes[0], "bytes offloaded in two halves", halves, f">= {sizes[0]}", "stays")
    run.predict(samples(5).inputs)
    verdict.equal(run.offloaded_bytes()["activations"], 0, "bytes offloaded in an evaluation", "other-bytes")


@clause("offload.trains")
@each_offload
def test_every_offloaded_update_changes_weights(subject: Subject, verdict: Verdict, offload: Offload) -> None:
    run = subject.trainer(exact_linear(), Recipe(SGD(2.0**-2), offload=offload))
    start = run.parameters()
    for number in range(1, 4):
        run.apply_gradients(full(run, 1.0))
        moved = {name: (value - np.float32(number * 2.0**-2)).astype(value.dtype) for name, value in start.items()}
        verdict.same_state(run.parameters(), moved, f"weights after update {number} by 2^-2", "not-trained")
    verdict.same_state(outputs(run), outputs_of(subject, run), "outputs of the trained weights", "not-used")


def outputs(run: Trainer) -> dict[str, Array]:
    """Return the exact linear model's outputs for a batch."""
    return run.predict(exact_batch(4).inputs)


def outputs_of(subject: Subject, run: Trainer) -> dict[str, Array]:
    """Return the outputs for that batch of a new run without offload, started from this run's weights."""
    return outputs(subject.framework.trainer(exact_linear(), subject.in_place(Recipe()), run.parameters()))


@clause("offload.trains")
@each_offload
def test_checkpoint_resumes_with_and_without_offload(
    subject: Subject, verdict: Verdict, offload: Offload, tmp_path: Path
) -> None:
    offloaded = subject.trainer(STACK, ADAM.replace(offload=offload))
    resident = run_without_offload(subject, STACK, ADAM)
    for seed in range(2):
        offloaded.update((samples(seed),))
        resident.update((samples(7 + seed),))
    offloaded.save(tmp_path / "away")
    resident.save(tmp_path / "here")
    for name, run in (
        ("away", run_without_offload(subject, STACK, ADAM)),
        ("here", subject.trainer(STACK, ADAM.replace(offload=offload))),
    ):
        run.restore(tmp_path / name)
        saved = {"away": offloaded, "here": resident}[name]
        verdict.same_state(run.state(), saved.state(), f"saved training state of the run {name}", "load-differs")
        for trainer in (run, saved):
            trainer.update((samples(3),))
        verdict.same_state(run.state(), saved.state(), f"training state one update later ({name})", "load-differs")


def files(folder: Path) -> list[Path]:
    """Return all files below a folder."""
    return sorted(path for path in folder.rglob("*") if path.is_file())


@clause("offload.gives-back")
def test_no_activation_stays_offloaded_after_update(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    offload = Offload(("activations",), "disk", str(tmp_path))
    run = subject.trainer(STACK, ADAM.replace(offload=offload, accumulation=2))
    for seed in range(2):
        run.update(samples(seed).into(2))
        run.gradients(samples(seed).into(2))
        remaining = [path.name for path in files(tmp_path)]
        verdict.equal(remaining, [], f"files after update {seed + 1}", "files-left")
    if subject.framework.ranks() is not None:
        return  # a rank drops a run only at its next request
    del run
    gc.collect()
    remaining = [path.name for path in tmp_path.iterdir()]
    verdict.equal(remaining, [], "files in the folder after the run has been deleted", "folder-left")


@clause("offload.gives-back")
@pytest.mark.parametrize("kind", KINDS)
def test_failed_pass_leaves_no_offloaded_activation(
    subject: Subject, verdict: Verdict, kind: OffloadedKind, tmp_path: Path
) -> None:
    run = subject.trainer(STACK, ADAM.replace(offload=Offload((kind,), "disk", str(tmp_path))))
    run.update((samples(0),))
    before, files_before = run.state(), [path.name for path in files(tmp_path)]
    wrong = Batch(np.zeros((4, 5), np.float32), samples(0).targets)
    with pytest.raises(Exception):  # noqa: B017, PT011 - frameworks raise different exceptions for a wrong shape
        run.accumulate(wrong, 4)
    verdict.equal([path.name for path in files(tmp_path)], files_before, "files after a pass that raised", "files-left")
    verdict.same_state(run.state(), before, "training state after a pass that raised")


@clause("offload.disk-fault")
def test_missing_offload_folder_is_reported_or_created(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    recipe = ADAM.replace(offload=Offload(("activations",), "disk", str(tmp_path / "away")))
    (tmp_path / "away").mkdir()
    run, resident = subject.trainer(STACK, recipe), run_without_offload(subject, STACK, ADAM)
    for trainer in (run, resident):
        trainer.update((samples(0),))
    (tmp_path / "away").rename(tmp_path / "elsewhere")
    before = run.state()
    try:
        run.update((samples(1),))
    except (OSError, ValueError, RuntimeError) as error:
        named = str(tmp_path / "away") in str(error)
        verdict.holds(named, "the error names the folder", str(error), "its path", "unnamed")
        verdict.same_state(run.state(), before, "training state after the refused pass", "fault-moved")
        (tmp_path / "elsewhere").rename(tmp_path / "away")
        run.update((samples(1),))
    resident.update((samples(1),))
    what = "training state after the update, repeated if refused"
    verdict.same_state(run.state(), resident.state(), what, "fault-moved")


@clause("offload.disk-fault")
@pytest.mark.parametrize("kind", ["parameters", "optimizer"])
@pytest.mark.parametrize("damage", ["missing", "short", "changed"])
def test_damaged_offload_file_is_refused(
    subject: Subject, verdict: Verdict, kind: OffloadedKind, damage: str, tmp_path: Path
) -> None:
    run = subject.trainer(STACK, ADAM.replace(offload=Offload((kind,), "disk", str(tmp_path))))
    run.update((samples(0),))
    before = run.state()
    verdict.holds(len(files(tmp_path)) > 0, "there are files", len(files(tmp_path)), "some", "stays")
    for file in files(tmp_path):
        content = file.read_bytes()
        if damage == "missing":
            file.unlink()
        else:
            flipped = content[:-1] + bytes([content[-1] ^ 1])
            file.write_bytes(content[: len(content) // 2] if damage == "short" else flipped)
        try:
            run.state()
        except (OSError, ValueError, RuntimeError) as error:
            verdict.holds(file.name in str(error), f"the error names {file.name}", str(error), "its name", "unnamed")
        else:
            verdict.holds(False, f"{file.name} {damage}", "no error", "an error", "fault-unseen")
        file.write_bytes(content)
    verdict.same_state(run.state(), before, "training state after the files are restored", "fault-moved")


@clause("offload.device-bytes")
@pytest.mark.parametrize("away", [False, True], ids=["kept", "offloaded"])
def test_device_peak_with_offloaded_activations(subject: Subject, verdict: Verdict, away: bool, tmp_path: Path) -> None:
    """The run is in a new process, so that memory kept by libraries for other tests does not count."""
    need_device(subject)
    recipe = Recipe(SGD(0.0), offload=Offload(("activations",)) if away else None)
    need(subject, *Capability.of_offload(recipe.offload) if recipe.offload else ())
    peak = subprocesses.peak_bytes(subject, blocks(), recipe, (wide_batch(4096),), tmp_path / "peak")
    verdict.measure("peak", "bytes", [peak])
