"""Low-rank adapters: saves, foreign files, layers that train in full, and switching on late."""

import warnings
from pathlib import Path

import numpy as np
import pytest

from conformance.checks.api import Subject, Verdict, clause, need
from conformance.techniques import low_rank
from conformance.techniques.low_rank import BASES, CODED, STEP, WIDE_BASES, make, normal, refusal, window
from fixtures.recipe import AdamW
from frameworks.contract import BaseFormat, Capability, LowRank

RESUMED = STEP.replace(optimizer=AdamW(2.0**-4, weight_decay=0.25))
FOREIGN = {
    "half": (LowRank(), LowRank(targets=("0",))),
    "renamed": (LowRank(targets=("0",)), LowRank(targets=("1",))),
    "other-rank": (LowRank(4), LowRank(2)),
}


@clause("adapters.resume")
@pytest.mark.parametrize("base", ["float32", "int8", "nf4"])
def test_loaded_run_goes_on_bit_for_bit(subject: Subject, verdict: Verdict, tmp_path: Path, base: BaseFormat) -> None:
    start, adapters = low_rank.weights(CODED, normal), LowRank(base=base, targets=("0",))
    unbroken, loaded = (make(subject, adapters, RESUMED.replace(seed=seed), start) for seed in (0, 1))
    for seed in range(3):
        unbroken.update(*window(seed, sizes=CODED))
    unbroken.save(tmp_path)
    loaded.load(tmp_path)
    verdict.same_state(loaded.trainables(), unbroken.trainables(), "what trains, after the load", "adapters-lost")
    for seed in range(3, 6):
        for network in (unbroken, loaded):
            network.update(*window(seed, sizes=CODED))
    verdict.same_state(loaded.trainables(), unbroken.trainables(), "what trains, three updates later", "run-differs")
    verdict.same_state(loaded.base(), unbroken.base(), "the base, three updates later", "base-differs")


@clause("adapters.foreign-file")
@pytest.mark.parametrize("file", list(FOREIGN))
def test_file_of_other_adapters_is_refused(subject: Subject, verdict: Verdict, tmp_path: Path, file: str) -> None:
    saved, loading = (make(subject, adapters) for adapters in FOREIGN[file])
    saved.assign(low_rank.values_of(saved))
    saved.save(tmp_path)
    (inputs, _), *_ = window()
    outputs = saved.predict(inputs)
    error = refusal(lambda: loading.load(tmp_path))
    same = bool(np.array_equal(loading.predict(inputs), outputs))
    verdict.holds(
        bool(error) or same, "the load raises, or gives the saved network's outputs", error, "either", "silent"
    )


@clause("adapters.save-changes-nothing")
@pytest.mark.parametrize("base", list(BASES))
def test_save_and_load_leave_the_outputs(subject: Subject, verdict: Verdict, tmp_path: Path, base: BaseFormat) -> None:
    start, adapters = low_rank.weights(CODED, normal), LowRank(base=base, targets=("0",))
    network, loaded = make(subject, adapters, base=start), make(subject, adapters, base=start)
    network.assign(low_rank.values_of(network, lambda seed, *shape: 0.25 * normal(seed, *shape)))
    inputs = normal(3, 5, CODED[0])
    outputs = network.predict(inputs)
    network.save(tmp_path)
    verdict.equal(network.predict(inputs), outputs, "outputs after the save", "save-changes-outputs")
    loaded.load(tmp_path)
    verdict.equal(loaded.predict(inputs), outputs, "outputs after the load", "load-changes-outputs")


@clause("adapters.save-changes-nothing")
def test_save_has_what_is_declared(subject: Subject, verdict: Verdict, tmp_path: Path) -> None:
    network, loaded = make(subject), make(subject, base=low_rank.weights(values=normal))
    network.assign(low_rank.values_of(network))
    network.save(tmp_path)
    loaded.load(tmp_path)
    (inputs, _), *_ = window()
    merged = bool(np.array_equal(loaded.predict(inputs), network.predict(inputs)))
    found = "merged" if merged else "adapters"
    verdict.equal(found, subject.conventions.adapter_save, "what a save has, loaded over another base", "other-save")


@clause("adapters.late-switch")
def test_adapters_switched_on_late_take_effect(subject: Subject, verdict: Verdict) -> None:
    network = make(subject, late=True)
    network.update(*window(0))
    state: dict[str, dict[str, np.ndarray]] = {}

    def switch_and_train() -> None:
        network.switch_on()
        state["base"], state["adapters"] = network.base(), network.trainables()
        for seed in (1, 2):
            network.update(*window(seed))

    if error := refusal(switch_and_train):
        verdict.observe("refusal", error)
        return
    after = network.trainables()
    still = sorted(name for name, value in after.items() if np.array_equal(value, state["adapters"][name]))
    verdict.equal(still, [], "adapters that do not train", "adapters-still")
    verdict.same_state(network.base(), state["base"], "the base", "base-changed")


@clause("adapters.matches-nothing")
def test_target_without_layer_is_told(subject: Subject, verdict: Verdict) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        error = refusal(lambda: make(subject, LowRank(targets=("no-layer",))))
    told = error or ", ".join(sorted({warning.category.__name__ for warning in caught}))
    verdict.holds(bool(told), "a target that no layer has raises or warns", told, "an exception or a warning", "silent")


@clause("adapters.modules-to-save")
@pytest.mark.parametrize("base", WIDE_BASES)
def test_copy_trains_next_to_its_original(subject: Subject, verdict: Verdict, tmp_path: Path, base: BaseFormat) -> None:
    need(subject, Capability.ADAPTER_MERGE)
    adapters, sizes = LowRank(base=base, targets=("0",), copied=("1",)), (*CODED, CODED[-1])
    start, inputs = low_rank.weights(sizes, normal), normal(3, 5, sizes[0])
    network, loaded = (make(subject, adapters, base=start) for _ in range(2))
    before, original = network.base(), network.predict(inputs)
    for seed in range(3):
        network.update(*window(seed, sizes=sizes))
    verdict.same_state(network.base(), before, "base and originals after three updates", "base-changed")
    changed = [name for name in ("1.weight", "1.bias") if not np.array_equal(network.trainables()[name], start[name])]
    verdict.equal(changed, ["1.weight", "1.bias"], "arrays of the copy that train", "copy-still")
    verdict.equal(network.predict_base(inputs), original, "outputs while adapters are switched off", "original-lost")
    outputs = network.predict(inputs)
    network.save(tmp_path)
    loaded.load(tmp_path)
    verdict.equal(loaded.predict(inputs), outputs, "outputs after the load", "copy-not-saved")
    network.assign({"0.b": np.zeros_like(network.trainables()["0.b"])})
    outputs = network.predict(inputs)
    if base == "float32":
        network.merge()
        verdict.equal(network.predict(inputs), outputs, "outputs of the merged copy", "copy-not-merged")
