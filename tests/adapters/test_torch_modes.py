"""PyTorch: compiled programs, DeepSpeed, models in 8 bits, `judge-model`, and training loops of users."""

import importlib.util
import json
import math
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from results.record.model import UNJUDGED, Outcome, Record
from results.record.reading import load as load_record
from tests.support.own_loops import MISTAKES, RIGHT, SOURCE, replace_lines
from tests.support.suite_runs import ROOT, CommandResult, clauses_of, run

pytest.importorskip("torch")

import numpy as np
import torch
from torch import nn

from conformance.checks.checkpoints import SavedRun, find_difference, is_clear, saved_runs
from conformance.curves import CurveRecorder
from fixtures.data import vector_batch
from fixtures.model import Head, Heads, LayerNorm, Model, Residual, SelfAttention
from fixtures.recipe import Recipe
from frameworks.contract import Capability, PostTraining
from frameworks.registry import load
from frameworks.torch.core.settings import DYNAMIC, compile_function
from frameworks.torch.distributed import deepspeed_start
from frameworks.torch.quantization import transformers_models
from frameworks.torch.stacks.heads import plain
from frameworks.torch.stacks.heads.building import NotBuilt
from frameworks.torch.stacks.heads.checks import KEEPS, name_fraction, quiet

ATTENTION = Model(
    "attention",
    (Residual((LayerNorm(), SelfAttention(2))), Heads((Head("output", 4),))),
    (5, 8),
    (("output", "cross_entropy"),),
    token_level=True,
)
SIZES = ((3, 5), (4, 7), (6, 9), (2, 5))
"""Batch sizes, and lengths of the sequences."""
FOLDER = "deepspeed_shm_comm"


def count_programs() -> int:
    """The number of graphs that this process has compiled."""
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def train_on_every_size(mode: str) -> list[float]:
    run = load("torch", "cpu", mode).trainer(ATTENTION, Recipe())
    return [run.update((vector_batch(size, length, 8),)).loss for size, length in SIZES]


def test_update_in_dynamic_mode_compiles_one_program_for_every_size() -> None:
    before = count_programs()
    result = train_on_every_size(DYNAMIC)
    assert count_programs() - before == 1
    np.testing.assert_allclose(result, train_on_every_size("eager"), rtol=1e-5)


def test_compile_function_that_depends_on_the_size_raises() -> None:
    call = compile_function(lambda x: x.exp() if x.shape[0] > 4 else x.neg(), DYNAMIC)
    assert call(torch.ones(3, 2)).equal(-torch.ones(3, 2))
    with pytest.raises(RuntimeError, match="recompile"):
        call(torch.ones(7, 2))


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Replaces the compiler by one that writes the files of a build."""

    def write_build(*_: Any, **__: Any) -> None:
        (tmp_path / FOLDER).mkdir(exist_ok=True)
        (tmp_path / FOLDER / f"{FOLDER}.so").touch()

    compiler = Mock(side_effect=write_build)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.setattr(deepspeed_start, "version", {"deepspeed": "1.0", "torch": "1.0"}.get)
    monkeypatch.setattr(subprocess, "run", compiler)
    return compiler


@pytest.mark.parametrize(
    "failure",
    [
        subprocess.TimeoutExpired("build", deepspeed_start.BUILD_S),
        subprocess.CalledProcessError(1, "build", stderr="no compiler"),
    ],
    ids=["too-long", "fails"],
)
def test_prepare_after_a_failed_build_builds_again(build: Mock, failure: Exception) -> None:
    write_build, build.side_effect = build.side_effect, failure
    with pytest.raises(RuntimeError, match="could not be compiled"):
        deepspeed_start._prepare()
    build.side_effect = write_build
    deepspeed_start._prepare()
    assert build.call_count == 2


def test_require_without_deepspeed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepspeed_start, "is_installed", lambda: False)
    deepspeed_start.problem.cache_clear()
    try:
        with pytest.raises(RuntimeError, match=r"pip install --no-build-isolation deepspeed"):
            deepspeed_start.require()
    finally:
        deepspeed_start.problem.cache_clear()


def uninstall(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Makes exactly these libraries look missing."""
    make_spec = importlib.util.spec_from_loader
    monkeypatch.setattr(transformers_models, "find_spec", lambda name: None if name in names else make_spec(name, None))


@pytest.mark.parametrize("missing", [("bitsandbytes",), ("transformers", "accelerate", "bitsandbytes")], ids=len)
def test_declares_without_libraries_names_them(missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    uninstall(monkeypatch, *missing)
    framework = load("torch", "cpu", transformers_models.MODE)
    declared = framework.declares(Capability.LOAD_INT8)
    assert not declared.supported
    assert declared.reason == f"{', '.join(missing)}: not installed: pip install {' '.join(missing)}"
    assert not framework.rule(PostTraining).rules()


def test_load_int8_outside_its_mode_or_a_cpu_is_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    uninstall(monkeypatch)
    assert transformers_models.TransformersPostTraining("cpu").rules()
    assert not transformers_models.TransformersPostTraining("cuda").rules()
    assert not transformers_models.find_refusals()
    declared = load("torch", "cpu", "eager").declares(Capability.LOAD_INT8)
    assert not declared.supported
    assert declared.reason.endswith("transformers does, in its own mode")


def test_distributed_checkpoint_without_a_later_option_is_no_clear_refusal(tmp_path: Path) -> None:
    """As PyTorch 2.6 wrote it, before AdamW had the option of Adam (pytorch#146157)."""
    (program,) = {saved.program for saved in saved_runs("torch", "eager", "eager")}
    shutil.unpack_archive(sorted(program.parent.glob("torch-*.zip"))[0], tmp_path / "old")
    path = tmp_path / "old" / "distributed" / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    options = [name for name in metadata.state_dict_metadata if name.endswith(".decoupled_weight_decay")]
    for name in options:
        for table in (metadata.state_dict_metadata, metadata.planner_data):
            del table[name]
    path.write_bytes(pickle.dumps(metadata))
    archive = Path(shutil.make_archive(str(tmp_path / "torch-2.6.0"), "zip", tmp_path / "old"))
    wanted, resumed = SavedRun(program, archive).resume(tmp_path)
    assert len(options) > 1
    assert find_difference(resumed["save"], wanted["save"]) == ""
    assert "Missing key in checkpoint state_dict" in resumed["distributed"]
    assert not is_clear(resumed["distributed"])


EQUAL, RESUME, FREES = "accumulation.equals-full-batch", "resume.bit-identical", "recompute.frees-activations"


class Network(nn.Module):
    """Two layers and a mean square, with one method for each fault."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.drop, self.outer = nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        return self.reduce(self.outer(self.drop(torch.tanh(self.inner(x)))).square())

    def reduce(self, values: Any) -> Any:
        return values.float().mean()


class SumOfRows(Network):
    def reduce(self, values: Any) -> Any:
        return values.float().sum()


class CountsCalls(Network):
    calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return super().forward(x) * self.calls


class KeepsMean(Network):
    mean = 0.0

    def forward(self, x: Any) -> Any:
        self.mean = 0.9 * self.mean + 0.1 * float(x.mean())
        return super().forward(x - self.mean)


class LowLoss(Network):
    def reduce(self, values: Any) -> Any:
        return values.mean()


class SpoiltByAutocast(Network):
    def reduce(self, values: Any) -> Any:
        return super().reduce(values) * (2.0 if torch.is_autocast_enabled("cpu") else 1.0)


class DrawsTwice(Network):
    def forward(self, x: Any) -> Any:
        return super().forward(x + torch.rand(()))


class SavesNothingWithin(Network):
    """Layers save their input only."""

    def forward(self, x: Any) -> Any:
        return self.reduce(self.outer(self.inner(x)))


def checks(module: Any, *formats: str) -> list[Any]:
    """The checks of a module on a batch."""
    torch.manual_seed(0)
    return [*plain.checks(plain.ModuleAndBatch(module, torch.randn(8, 4)), formats)]


def results(module: Any) -> dict[str, str]:
    """The result of each check, by clause."""
    return {check.clause: check.outcome for check in checks(module, "bfloat16")}


def test_checks_of_a_plain_module_pass() -> None:
    result = results(Network())
    assert set(result.values()) == {"pass"}
    assert len(result) == 10


@pytest.mark.parametrize(
    ("network", "clauses"),
    [
        (SumOfRows, {EQUAL, "accumulation.normalised-once"}),
        (LowLoss, {"autocast.loss-is-wide"}),
        (SpoiltByAutocast, {"autocast.bf16-parity"}),
    ],
)
def test_checks_of_a_faulty_module_fail_its_clauses(network: Any, clauses: set[str]) -> None:
    assert {clause for clause, outcome in results(network()).items() if outcome == "fail"} == clauses


def test_checks_without_inner_tensors_do_not_judge_freed_activations() -> None:
    (check,) = (check for check in checks(SavesNothingWithin()) if check.clause == FREES)
    assert (check.outcome, check.got[:24]) == ("not judged", "nothing is to be freed: ")


def test_checks_of_a_checkpoint_that_frees_nothing_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "checkpoint", lambda forward, *arguments, **_: forward(*arguments))
    assert results(Network())[FREES] == "fail"


def test_checks_of_modules_with_hidden_state_fail_or_are_not_judged() -> None:
    assert results(CountsCalls())[RESUME] == "fail"
    result = results(DrawsTwice())
    assert {result[EQUAL], result["autocast.bf16-parity"]} == {"not judged"}
    unjudged = {check.clause: check.got for check in checks(KeepsMean(), "float16") if check.outcome == "not judged"}
    assert unjudged == dict.fromkeys((EQUAL, "accumulation.normalised-once", "autocast.fp16-parity"), KEEPS)


def test_quiet_keeps_batch_norm_in_evaluation() -> None:
    model = quiet(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))).train()
    assert not model[1].training
    assert model[2].p == 0.0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_module:x", "cannot be imported: No module named 'no_such_module'; check its name"),
        ("tests.adapters.test_torch_modes:nothing", "has no 'nothing'"),
        ("tests.adapters.test_torch_modes:make_number", "returns int, want a torch.nn.Module"),
    ],
)
def test_call_factory_of_no_model_is_refused(name: str, message: str) -> None:
    with pytest.raises(NotBuilt, match=message):
        plain.call_factory(*name.split(":"))


def make_number() -> int:
    return 3


def check_head(name: str) -> dict[tuple[str, str], Any]:
    """The checks of a head, by clause and case."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    from frameworks.torch.stacks.heads import library_heads
    from frameworks.torch.stacks.heads.building import head_class

    return {(check.clause, check.case): check for check in library_heads.checks(head_class(name))}


def test_check_head_of_a_decoder_passes() -> None:
    assert {check.outcome for check in check_head("LlamaForCausalLM").values()} == {"pass"}


def test_check_head_that_counts_first_labels_names_the_fraction() -> None:
    check = check_head("GPT2LMHeadModel")["accumulation.normalised-once", ""]
    if check.outcome == "pass":
        pytest.skip("this transformers counts the labels that have a loss")
    assert check.got.endswith(", 7/8 of the loss")
    assert check.cause == "Trainer counts the first label of each row, which has no loss"


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(4.02016, 4.59447, "7/8"), (19 / 23, 1.0, "19/23"), (1.0, 1.0, ""), (0.8761, 1.0, ""), (math.nan, 1.0, "")],
)
def test_name_fraction_of_losses(part: float, whole: float, text: str) -> None:
    assert name_fraction(part, whole, 64) == text


def test_check_head_that_divides_by_its_own_mean_fails_with_its_cause() -> None:
    check = check_head("LlamaForSequenceClassification")[EQUAL, ""]
    if check.outcome == "pass":
        pytest.skip("this transformers passes the count on")
    assert check.cause.startswith("modeling_layers.py:GenericForSequenceClassification.forward calls ")
    assert "without the count" in check.cause


def test_head_class_of_an_unknown_name_suggests_one() -> None:
    pytest.importorskip("transformers")
    from frameworks.torch.stacks.heads.building import head_class

    with pytest.raises(NotBuilt, match="did you mean LlamaForCausalLM"):
        head_class("LamaForCausalLM")


pytest.importorskip("torch")

WINDOWS = ("accumulation", "accumulation_windows")
SCALING = ("scaling_skip", "scaling_transparency")
SUITES = ROOT / "conformance" / "suites"
BAD = {outcome for outcome in Outcome if outcome.bad}
EXPECTED: dict[str, tuple[tuple[str, ...], set[str]]] = {
    "mean-of-means": (WINDOWS, {"accumulation.weighs-items"}),
    "last-window-divided-by-k": (WINDOWS, {"accumulation.remainder", "accumulation.weighs-items"}),
    "clip-before-unscale": (
        SCALING,
        {"scaling.is-transparent", "scaling.reports-true-loss", "scaling.unscales-before-clipping"},
    ),
    "schedule-steps-on-a-skip": (SCALING, {"scaling.skip-is-atomic", "scaling.step-count-follows-updates"}),
    "evaluation-mode-left-on": (WINDOWS, {"accumulation.evaluation-changes-nothing"}),
    "scaler-not-saved": (
        ("resume",),
        {"resume.bit-identical", "resume.load-has-no-side-effects", "resume.scaler-state"},
    ),
}
"""The suites that judge a mistake, and exactly the clauses that fail there."""


def judge_loop(folder: Path, source: str, *suites: str) -> tuple[CommandResult, Record]:
    """A loop judged by some suites from its own folder."""
    (folder / "my_training.py").write_text(source, encoding="utf-8")
    record = folder / "record.json"
    paths = [str(path) for name in suites for path in SUITES.glob(f"*/test_{name}.py")]
    assert len(paths) == len(suites)
    arguments = ["-q", "--device=cpu", "--framework=my_training:Loop", f"--record={record}", "--tb=no", "-rN"]
    return run([sys.executable, "-m", "pytest", *arguments, *paths], folder), load_record(record)


@pytest.mark.parametrize("mistake", EXPECTED)
def test_run_of_a_loop_with_a_mistake_fails_its_clauses(mistake: str, tmp_path: Path) -> None:
    suites, clauses = EXPECTED[mistake]
    completed, record = judge_loop(tmp_path, replace_lines(MISTAKES[mistake]), *suites)
    assert completed.status == 1, completed.lines
    assert clauses_of(record, BAD) == clauses
    assert clauses_of(record, {Outcome.ERROR}) == set()


def test_run_of_a_loop_that_zeroes_every_micro_batch_fails_accumulation(tmp_path: Path) -> None:
    _, record = judge_loop(tmp_path, replace_lines(MISTAKES["misplaced-zero-grad"]), "accumulation")
    failed = clauses_of(record, BAD)
    assert {"accumulation.each-counts-once", "accumulation.equals-full-batch"} <= failed
    assert {clause.partition(".")[0] for clause in failed} == {"accumulation"}


@pytest.mark.parametrize("right", RIGHT)
def test_run_of_a_right_loop_passes(right: str, tmp_path: Path) -> None:
    suites = (*WINDOWS, *SCALING, "resume", "resume_refusals", "trace", "averages", "recompute")
    completed, record = judge_loop(tmp_path, replace_lines(RIGHT[right]), *suites)
    # The gradients of sums of losses are larger than those of means, and overflow float16 sooner.
    overflows = {"scaling.scale-is-float32"} if right == "divides-in-step" else set()
    assert clauses_of(record, BAD) == overflows, completed.lines
    assert len(clauses_of(record, {Outcome.PASS})) > 40
    reasons = {verdict.reason for verdict in record.verdicts if verdict.outcome is Outcome.UNSUPPORTED}
    in_step = {"step changes gradients, so that those inside a pass are not those of the update"}
    attributes = ("average", "recompute", "static_scale") if right != "ignores-nothing" else ()
    assert reasons - in_step == {f"the loop ignores recipe.{name}" for name in attributes}
    assert bool(reasons & in_step) == (right == "divides-in-step")


def test_run_of_the_template_passes_schedules_without_momentum(tmp_path: Path) -> None:
    completed, record = judge_loop(tmp_path, SOURCE, "schedules")
    assert completed.status == 0, completed.lines
    cyclic = [v for v in record.verdicts if v.case.startswith("test_cyclic_schedule_changes_momentum[")]
    reasons = {verdict.outcome: verdict.reason for verdict in cyclic}
    assert reasons == {Outcome.UNSUPPORTED: "recipe.schedule has the rate's factor, and no momentum"}


def test_run_of_a_loop_prints_failing_clauses_and_what_does_not_apply(tmp_path: Path) -> None:
    completed, record = judge_loop(
        tmp_path, replace_lines(MISTAKES["clip-before-unscale"]), "scaling_transparency", "recompute"
    )
    text = " ".join(completed.output.partition(" result ==")[2].split())
    assert "clauses that fail: 3" in text
    assert (
        "scaling.unscales-before-clipping: 2 of 3 tests fail rule: Clipping, and every other transformation of"
        " gradients, receives unscaled gradients."
    ) in text
    assert "source: https://docs.pytorch.org/docs/stable/notes/amp_examples.html fail: " in text
    assert re.search(r"fail: reported norm of the gradient \(3, 4\): got 5120\.0, want 5\.0 repeat: python -m", text)
    refused = sum(verdict.outcome in UNJUDGED for verdict in record.verdicts)
    assert re.search(rf"\d+ tests pass, {refused} do not apply \(.*\d+: the loop ignores recipe\.recompute", text)


def test_run_of_the_tutorial_fails_every_clause_that_it_names(tmp_path: Path) -> None:
    tutorial = (ROOT / "docs" / "own-loop.md").read_text("utf-8").partition("\n## Libraries on top\n")[0]
    (source,) = re.findall(r"```python\n(.*?)```", tutorial, re.DOTALL)
    changes = [lines for mistake, lines in MISTAKES.items() if mistake != "mean-of-means"]
    assert source == replace_lines(*changes)
    _, record = judge_loop(tmp_path, source, *WINDOWS, *SCALING, "resume")
    named = set(re.findall(r"`((?:accumulation|scaling|resume)\.[a-z-]+)`", tutorial))
    assert len(named) == len(MISTAKES)
    assert named <= clauses_of(record, BAD)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("self.optimizer = recipe", "optimizer = recipe"), "setup left no torch.optim.Optimizer on self"),
        (
            ("losses = self.network(inputs, targets)", 'losses = self.network(inputs)["output"]'),
            "want a call of network(inputs, targets)",
        ),
        (("def step(self)", "def step(self, other)"), "missing 1 required positional argument"),
    ],
)
def test_run_of_a_loop_that_cannot_train_is_refused_in_one_line(
    change: tuple[str, str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "my_training.py").write_text(replace_lines((change,)), encoding="utf-8")
    arguments = ["-m", "pytest", "-q", "--framework=my_training:Loop", str(SUITES / "resume/test_resume.py")]
    completed = run([sys.executable, *arguments], tmp_path)
    assert completed.status == 2
    assert len(completed.lines) == 1, completed.lines
    assert "loop my_training:Loop cannot train: " in completed.lines[0]
    assert message in completed.lines[0]


def test_recorder_of_a_scaled_loop_shows_norms_scales_and_skips(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with CurveRecorder(tmp_path / "run.jsonl", optimizer=optimizer, scaler=scaler) as curve:
        for last in (4.0, float("inf"), 4.0):
            optimizer.zero_grad()
            loss = (weight * torch.tensor([3.0, last])).sum()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_([weight], 1.0)
            scaler.step(optimizer)
            scaler.update()
            curve.step(loss, batch=[last], gradient_norm=norm)
    entries = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()[1:]]
    assert [entry["skipped"] for entry in entries] == [False, True, False]
    assert [entry["loss_scale"] for entry in entries] == [4.0, 4.0, 2.0]
    assert [entry["gradient_norm"] for entry in entries] == [5.0, float("inf"), 5.0]
    assert abs(entries[0]["clipped_norm"] - 1.0) < 1e-6
    assert entries[0]["learning_rate"] == 0.5
    assert entries[0]["batch"] == entries[2]["batch"] != entries[1]["batch"]
