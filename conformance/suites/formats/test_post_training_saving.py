"""Post-training quantization: saves of quantized models, and refusals of damaged ones."""

from pathlib import Path

import pytest

from conformance.checks import subprocesses
from conformance.checks.api import Subject, Verdict, clause
from conformance.techniques.post_training import (
    MIXED,
    TECHNIQUE,
    batches,
    collect_arrays,
    foreign,
    make_mixed_model,
    make_quantized,
    rule_of,
    try_predict,
    unlike_weights,
)
from fixtures.arrays import Array
from frameworks.contract import QuantizedModel


@clause("quantization.survives-saving")
@TECHNIQUE
def test_quantized_model_survives_saving(subject: Subject, verdict: Verdict, technique: str, tmp_path: Path) -> None:
    rule_of(subject, technique)
    first, other = make_quantized(subject, technique), make_quantized(subject, technique, seed=1)
    samples = batches(MIXED)[0]
    first.predict(samples)
    first.save(tmp_path / "model")
    other.restore(tmp_path / "model")
    verdict.same_state(collect_arrays(other), collect_arrays(first), "the restored model", "load-differs")
    verdict.same_state(other.predict(samples), first.predict(samples), "its predictions", "load-differs")
    used = make_quantized(subject, technique, seed=2)
    used.predict(samples)
    used.restore(tmp_path / "model")
    verdict.same_state(used.predict(samples), first.predict(samples), "predictions of a used model", "load-differs")


@clause("quantization.survives-saving")
@TECHNIQUE
def test_loaded_model_can_be_saved_again(subject: Subject, verdict: Verdict, technique: str, tmp_path: Path) -> None:
    rule_of(subject, technique)
    first, second, third = (make_quantized(subject, technique, seed=seed) for seed in range(3))
    first.save(tmp_path / "model")
    second.restore(tmp_path / "model")
    second.save(tmp_path / "again")
    third.restore(tmp_path / "again")
    verdict.same_state(collect_arrays(third), collect_arrays(first), "the model restored twice", "load-differs")


@clause("quantization.survives-saving")
@TECHNIQUE
def test_prediction_matches_in_new_process(subject: Subject, verdict: Verdict, technique: str, tmp_path: Path) -> None:
    model, quantized = make_mixed_model(rule_of(subject, technique)), make_quantized(subject, technique)
    samples = batches(model)[0]
    quantized.save(tmp_path / "model")
    task = subprocesses.PredictTask(
        *subprocesses.same_framework(subject),
        technique,
        model,
        unlike_weights(model, 1),
        batches(model, 1),
        tmp_path / "model",
        samples,
    )
    predicted: dict[str, Array] = subprocesses.run_in_new_process(task, tmp_path / "model")
    verdict.same_state(predicted, quantized.predict(samples), "predictions of a new process", "new-process-differs")


@clause("quantization.survives-saving")
@TECHNIQUE
@pytest.mark.parametrize("how", ["empty", "cut", "other-shape", "other-head"])
def test_damaged_or_foreign_model_is_refused(
    subject: Subject, verdict: Verdict, technique: str, tmp_path: Path, how: str
) -> None:
    model, quantized = make_mixed_model(rule_of(subject, technique)), make_quantized(subject, technique)
    samples, folder = batches(model)[0], tmp_path / "model"
    if how.startswith("other"):
        make_quantized(subject, technique, foreign(model, how)).save(folder)
    else:
        make_quantized(subject, technique, seed=1).save(folder)
        for path in [p for p in sorted(folder.rglob("*")) if p.is_file()]:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if how == "cut" else b"")
    state, predicted = collect_arrays(quantized), quantized.predict(samples)
    text, _ = try_predict(lambda: restore_model(quantized, folder), samples)
    verdict.holds(bool(text), "an invalid model is refused", text, "an error", "not-refused")
    verdict.same_state(collect_arrays(quantized), state, "the model after the refusal", "changed-by-refusal")
    verdict.same_state(quantized.predict(samples), predicted, "its predictions", "changed-by-refusal")


def restore_model(quantized: QuantizedModel, folder: Path) -> QuantizedModel:
    """Return the model after a restore from the folder."""
    quantized.restore(folder)
    return quantized
