"""`judge-model` on PyTorch: plain modules with and without faults, and heads of transformers where it is installed."""

import math
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from frameworks.torch.stacks.heads import plain
from frameworks.torch.stacks.heads.building import NotBuilt
from frameworks.torch.stacks.heads.checks import KEEPS, name_fraction, quiet

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
        ("tests.adapters.test_heads:nothing", "has no 'nothing'"),
        ("tests.adapters.test_heads:make_number", "returns int, want a torch.nn.Module"),
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
