"""The parts that adapters share, adapter files, declarations and attempts, and an adapter in another package."""

import math
import re
import subprocess
import sys
import tomllib
import traceback
import warnings
from collections.abc import Callable, Collection, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from conformance import declarations
from conformance.checks.evidence import Misdeclared, Verdict, Violation
from conformance.checks.outcome import Judgement, conclude
from conformance.checks.subject import Subject
from conformance.cli import main
from conformance.declarations import compare, request
from conformance.runner import jobs
from conformance.runner.identity import suite_version
from conformance.runner.subprocesses import VARIABLES
from conformance.test_ids import SUITES
from fixtures.data import exact_batch
from fixtures.models import exact_linear
from fixtures.optimizers import OPTIMIZERS
from fixtures.recipe import Offload, Recipe
from frameworks import registry
from frameworks.base import (
    KERNEL,
    BaseFramework,
    BaseTrainer,
    LossLedger,
    MicroBatch,
    delayed_attempts,
    ending,
    float8_attempts,
    has_effect,
    offload_attempts,
    optimizer_attempts,
    over_window,
    quantizer_attempts,
    shipped_attempts,
    technique_attempts,
    with_ranks,
)
from frameworks.base.host import short_call_stacks
from frameworks.base.recompute import CLOSED_OVER, recomputed_call
from frameworks.base.trainer import AppliedMicroBatch
from frameworks.contract import (
    CONTRACT_VERSION,
    NOT_OFFERED,
    SUPPORTED,
    Capability,
    Declaration,
    DelayedProducts,
    PostTraining,
    Quantizers,
    RecomputeCase,
    Unsupported,
    needs,
)
from frameworks.installer import locks
from frameworks.installer.distributions import DISTRIBUTIONS, read_distribution
from frameworks.reference import ReferenceFramework
from frameworks.reference.training.trainer import ReferenceTrainer
from frameworks.registry import FILE, GROUP, Absence, AdapterFile, UnknownFramework, adapter_file, built_in
from results.record.model import Outcome
from results.record.reading import load
from tests.support.own_loops import SOURCE
from tests.support.suite_runs import ROOT, TIMEOUTS, call_command, clauses_of, run, run_refused

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


class WithoutAverage(ReferenceFramework):
    """An adapter that neither supports nor refuses the average of the weights."""

    def supported_capabilities(self) -> Collection[Capability]:
        return {*super().supported_capabilities()} - {Capability.AVERAGE}


class RefusesAverage(WithoutAverage):
    """An adapter that refuses the average of the weights with a reason and without an attempt."""

    def refusals(self) -> Mapping[Capability, str]:
        return {**super().refusals(), Capability.AVERAGE: "it has none"}


def refusal_of(framework: ReferenceFramework) -> Judgement:
    """The judgement of the framework's refusal of an average."""
    with pytest.raises(Unsupported) as refusal:
        framework.trainer(exact_linear(), Recipe(average=0.5))
    return conclude(framework, refusal.value, ())


def test_trainer_of_an_unnamed_capability_is_not_offered() -> None:
    framework = WithoutAverage()
    assert framework.declares(Capability.AVERAGE) == NOT_OFFERED
    judgement = refusal_of(framework)
    assert (judgement.outcome, judgement.reason) == (Outcome.NOT_OFFERED, NOT_OFFERED.reason)
    assert judgement.message.endswith("(nothing to try)")


@pytest.mark.parametrize(
    ("terms", "names", "outcome"),
    [
        (("no_such",), ("averages",), Outcome.UNSUPPORTED),
        (("AVER",), (), Outcome.MISDECLARED),
        ((), ("average",), Outcome.MISDECLARED),
    ],
)
def test_conclude_of_an_absent_feature_looks_for_its_name(
    terms: tuple[str, ...], names: tuple[str, ...], outcome: Outcome, monkeypatch: pytest.MonkeyPatch
) -> None:
    framework = WithoutAverage()
    absence = Absence((Capability.AVERAGE,), "it has none", ("no_such_module", "numpy"), terms, names)
    monkeypatch.setattr(framework, "_file", AdapterFile(absent=(absence,)))
    judgement = refusal_of(framework)
    assert (judgement.outcome, judgement.reason) == (outcome, "it has none")


def test_absence_of_some_modes_is_none_in_others() -> None:
    file = AdapterFile(absent=(Absence(("a",), "b", (), ("c",), modes=("eager",)),))
    assert file.absence("a", "eager") is not None
    assert (file.absence("a", "graph"), file.absence("b", "eager")) == (None, None)


def test_compare_of_a_refusal_without_an_attempt_fails_unless_it_is_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = WithoutAverage()
    absence = Absence((Capability.AVERAGE,), "it has none", ("no_such_module",), ("average",))
    monkeypatch.setattr(lacking, "_file", AdapterFile(absent=(absence,)))
    assert refusal_of(lacking).outcome is Outcome.NOT_OFFERED
    with pytest.raises(Unsupported):
        declarations.compare(Subject(WithoutAverage(), 0), Verdict(), Capability.AVERAGE)
    for framework in (RefusesAverage(), lacking):
        with pytest.raises(Violation, match="a refusal was tried"):
            declarations.compare(Subject(framework, 0), Verdict(), Capability.AVERAGE)


@pytest.mark.parametrize(
    ("case", "arguments"),
    [
        ("plain", []),
        ("positional", [((2, 3), {})]),
        ("tuple", [(((2, 3),), {})]),
        ("list", [(([2, 3],), {})]),
        ("dict", [(({"x": 2, "w": 3},), {})]),
        ("keyword", [((), {"x": 2, "w": 3})]),
        ("no-grad-input", [((2,), {})]),
        ("weights-changed", [((2,), {})]),
        ("raises", [((2, 3), {})]),
    ],
)
def test_recomputed_call_of_a_case_passes_its_arguments(case: RecomputeCase, arguments: list[Any]) -> None:
    calls: list[Any] = []

    def record_call(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
        calls.append((args, named))
        return function(*args, **named)

    def multiply(x: int, w: int) -> int:
        return x * w

    assert recomputed_call(case, record_call, multiply, multiply, 2, 3) == 6
    assert calls == arguments
    assert (case in CLOSED_OVER) == (arguments == [((2,), {})])


def test_over_window_gives_each_step_the_items_of_the_window() -> None:
    window = exact_batch().into(4)
    total = sum(batch.items for batch in window)
    assert over_window(window, lambda batch, items: (batch, items)) == [(batch, total) for batch in window]


def test_loss_ledger_weighs_micro_batches_by_their_items() -> None:
    ledger: LossLedger[MicroBatch] = LossLedger()
    assert math.isnan(ledger.loss())
    assert ledger.add(MicroBatch(6.0, 3), 4) == 2.0
    assert ledger.add(MicroBatch(6.0, 1), 4) == 6.0
    assert (ledger.loss(), ledger.losses()) == (3.0, (2.0, 6.0))
    assert math.isnan(ledger.add(MicroBatch(0.0, 0), 4))
    ledger.empty()
    assert ledger.losses() == ()


def test_ending_of_an_applied_micro_batch_reports_its_update() -> None:
    first = AppliedMicroBatch(1.0, 1, 8.0, applied=True, rate=0.5)
    second = AppliedMicroBatch(1.0, 1, 4.0, rate=0.25)
    assert ending([first, second]) == (True, 8.0, 0.5)
    assert ending([second]) == (False, 4.0, 0.25)
    with pytest.raises(ValueError, match="without any micro-batch"):
        ending([])


def test_load_of_an_adapter_of_another_contract_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import frameworks.reference as r\n\nclass Mine(r.ReferenceFramework):\n    contract = {}\n"
    monkeypatch.syspath_prepend(tmp_path)
    for version in range(CONTRACT_VERSION + 2):
        (tmp_path / f"contract_{version}.py").write_text(source.format(version), "utf-8")
    assert registry.load(f"contract_{CONTRACT_VERSION}:Mine").name == "reference"
    for version in (*range(CONTRACT_VERSION), CONTRACT_VERSION + 1):
        with pytest.raises(UnknownFramework, match=f"got {version}, want {CONTRACT_VERSION}; update") as refusal:
            registry.load(f"contract_{version}:Mine")
        assert len(str(refusal.value).splitlines()) == 1


def test_short_call_stacks_restores_the_former_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with short_call_stacks():
        (frame,) = traceback.extract_stack()
    assert frame.name == "test_short_call_stacks_restores_the_former_limit"
    assert len(traceback.extract_stack()) > 1
    monkeypatch.setattr(sys, "tracebacklimit", 2, raising=False)
    with short_call_stacks():
        assert len(traceback.extract_stack()) == 1
    assert sys.tracebacklimit == 2


@pytest.fixture
def other_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an adapter, `other_adapter:Other`, whose import fails."""
    (tmp_path / "other_adapter.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    adapter_file.cache_clear()
    return tmp_path


@pytest.fixture
def job_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """The arguments of the jobs that a command would start."""
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(jobs, "job", lambda *arguments: calls.append(arguments) or 0)
    monkeypatch.delenv("CONFORMANCE_MODES", raising=False)
    return calls


def test_built_in_adapters_are_the_entry_points_of_the_project() -> None:
    assert built_in() == PROJECT["project"]["entry-points"][GROUP]
    assert list(built_in()) == ["reference", "torch", "tf", "paddle", "jax"]
    assert suite_version() == PROJECT["project"]["version"]


@pytest.mark.parametrize("name", [name for name in built_in() if name != "reference"])
def test_built_in_adapter_has_every_file_and_entry(name: str) -> None:
    folder = ROOT / "frameworks" / name
    assert built_in()[name].startswith(f"frameworks.{name}:")
    assert {FILE, "native_loop.py", "findings.toml", "expected", "findings"} <= {path.name for path in folder.iterdir()}
    assert adapter_file(name).imports
    assert all(map(Capability, (value for absence in adapter_file(name).absent for value in absence.capabilities)))
    assert DISTRIBUTIONS[name].pinned in locks.examples(name).values()
    assert f"[testenv:{name}]" in (ROOT / "tox.ini").read_text("utf-8")
    contracts = {contract["id"]: contract for contract in PROJECT["tool"]["importlinter"]["contracts"]}
    assert f"frameworks.{name}" in contracts["adapters"]["modules"]
    assert f"frameworks.{name}.*" in PROJECT["tool"]["mypy"]["overrides"][0]["module"]


def test_run_without_a_mode_takes_the_modes_of_the_adapter_file(job_calls: list[tuple[object, ...]]) -> None:
    assert [main(["run", name]) for name in ("paddle", "torch", "reference")] == [0, 0, 0]
    assert [(name, modes) for name, modes, *_ in job_calls] == [
        ("paddle", ["dygraph", "static", "dygraph-forced-scaler"]),
        ("torch", [""]),
        ("reference", [""]),
    ]
    assert [adapter_file(name).serial for name in ("paddle", "torch", "reference")] == [("static",), (), ()]
    assert main(["run", "reference", "--mode", "emulated,ranks,emulated"]) == 0
    assert job_calls[-1][1] == ["emulated", "ranks"]


def test_adapter_file_of_an_outside_adapter_is_read_without_its_import(
    other_adapter: Path, job_calls: list[tuple[object, ...]]
) -> None:
    for path in ("other_adapter:Other", "no_such_module:Other", "no_such_package.module:Other"):
        assert adapter_file(path) == AdapterFile()
    adapter_file.cache_clear()
    text = 'modes = ["a", "b"]\nserial = ["b"]\nlacks = { b = ["formats"] }\n'
    (other_adapter / FILE).write_text(text, encoding="utf-8")
    assert adapter_file("other_adapter:Other") == AdapterFile(
        modes=("a", "b"), serial=("b",), lacks={"b": ("formats",)}
    )
    assert main(["run", "other_adapter:Other"]) == 0
    assert job_calls[0][:2] == ("other_adapter:Other", ["a", "b"])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("modes = [", "Invalid value"),
        ('modes = "a"', "modes: want a list of names"),
        ("serial = [1]", "serial: want a list of names"),
        ('lacks = { b = "formats" }', "lacks: b: want a list of names"),
        ("mode = []", "unexpected keyword argument 'mode'"),
        ('[[absent]]\ncapabilities = ["a"]', "absent: reason: want one sentence"),
        ('[[absent]]\nreason = "b"\ncapabilities = "a"', "absent: capabilities: want a list of names"),
        ('[[absent]]\nreason = "b"\ncapabilities = ["a"]\nplaces = ["c"]', "absent: want words or names"),
        ("\udcff", "can't decode"),
    ],
)
def test_run_with_a_wrong_adapter_file_is_refused(
    other_adapter: Path, text: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (other_adapter / FILE).write_bytes(text.encode("utf-8", "surrogateescape"))
    line = run_refused(capsys, "run", "other_adapter:Other")
    assert problem in line
    assert str(other_adapter / FILE) in line


@pytest.mark.parametrize(
    "table", ['pin = "1"', 'pinned = "1"', 'pinned = "1"\ncpu = "a"\ngpu = "a"\nwheels = [{ version = "1" }]']
)
def test_read_distribution_of_other_keys_is_refused(other_adapter: Path, table: str) -> None:
    (other_adapter / FILE).write_text(f"[distribution]\n{table}\n", encoding="utf-8")
    with pytest.raises(UnknownFramework, match="argument"):
        read_distribution("other_adapter:Other")


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a new adapter, my_own."""
    folder = tmp_path_factory.mktemp("new") / "package"
    completed = call_command("new", "adapter", "--name", "my_own", folder)
    assert completed.status == 0, completed.lines
    assert completed.lines[-2].endswith(
        f"PYTHONPATH={folder} python -m conformance run my_own_conformance.adapter:MyOwnAdapter"
    )
    return folder


def test_new_adapter_writes_a_package_with_an_entry(adapter: Path) -> None:
    written = sorted(str(path.relative_to(adapter)) for path in adapter.rglob("*") if path.is_file())
    names = ("__init__.py", "adapter.py", "findings.toml")
    assert written == [*(f"my_own_conformance/{name}" for name in names), "pyproject.toml"]
    assert not [name for name in written if "emplate" in (adapter / name).read_text("utf-8")]
    project = (adapter / "pyproject.toml").read_text("utf-8")
    assert 'name = "my-own-conformance"' in project
    assert 'my_own = "my_own_conformance.adapter:MyOwnAdapter"' in project


@pytest.mark.parametrize(
    ("suites", "status", "tests", "outcomes"),
    [
        ("scaling/test_scaling.py", "partial", 20, {Outcome.NOT_OFFERED}),
        pytest.param("", "complete", 600, {Outcome.NOT_OFFERED, Outcome.PASS, Outcome.ABSTAIN}, marks=pytest.mark.slow),
    ],
    ids=["one-file", "all"],
)
def test_run_of_a_new_adapter_is_not_offered(
    suites: str, status: str, tests: int, outcomes: set[Outcome], adapter: Path, tmp_path: Path
) -> None:
    path = tmp_path / "record.json"
    arguments = ["--framework=my_own_conformance.adapter:MyOwnAdapter", f"--record={path}", SUITES / suites]
    completed = run([sys.executable, "-m", "pytest", "-q", *TIMEOUTS, *map(str, arguments)], PYTHONPATH=str(adapter))
    assert completed.status == 0, completed.lines
    record = load(path)
    assert (record.series.framework, record.status) == ("my_own_conformance.adapter.MyOwnAdapter", status)
    assert len(record.verdicts) > tests
    judged = {verdict.clause for verdict in record.verdicts if verdict.outcome is not Outcome.NOT_OFFERED}
    assert judged <= {"composition.coverage", "autocast.settings-restored", "cost.adapter-overhead"}
    assert {verdict.outcome for verdict in record.verdicts} == outcomes


@pytest.mark.parametrize("name", ["torch", "My", "a-b", "class", "../x", ""])
def test_new_adapter_of_a_wrong_name_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    problem = "adapter 'torch' exists already" if name == "torch" else "name of an adapter: got"
    assert problem in run_refused(capsys, "new", "adapter", "--name", name, str(tmp_path / "x"))
    assert not (tmp_path / "x").exists()


def test_new_adapter_without_a_name_takes_that_of_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "adapter", str(tmp_path / "my_own")]) == 0
    assert "run my_own_conformance.adapter:MyOwnAdapter" in capsys.readouterr().out
    assert "name of an adapter: got 'not-a-name'" in run_refused(capsys, "new", "adapter", str(tmp_path / "not-a-name"))


def test_new_loop_writes_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "loop", str(tmp_path / "mine")]) == 0
    path = tmp_path / "mine" / "my_training.py"
    report, hint = capsys.readouterr().out.splitlines()
    assert report == f"wrote {path}"
    assert hint == f"judge it: cd {path.parent} && python -m conformance run my_training:Loop --tests quick"
    assert path.read_text("utf-8") == SOURCE
    for folder in (path.parent, path):
        assert main(["new", "loop", str(folder)]) == 2
        assert "exists already; choose another folder" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["loop", "adapter"])
def test_new_in_a_folder_that_is_not_new_is_refused(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes").touch()
    (tmp_path / "loop").symlink_to("loop")
    for folder, message in (
        (tmp_path / "loop", f"{tmp_path / 'loop'}: file exists; choose another place"),
        (tmp_path, f"{tmp_path} is not empty; choose a new folder"),
        (tmp_path / "x" / "y", f"{tmp_path / 'x'} is not a folder; create it, or check the name"),
    ):
        options = ["--name", "mine"] if kind == "adapter" else []
        assert message in run_refused(capfd, "new", kind, str(folder), *options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loop", "notes"]


def read_documented_files() -> dict[str, str]:
    """The files of the package as the documentation shows them, by their names."""
    text = (ROOT / "docs" / "adapters.md").read_text("utf-8")
    part = text.partition("## An adapter of your own in its own package")[2]
    return dict(re.findall(r"`([\w/.-]+)`[^`]*:\n\n```\w+\n(.*?)```", part, re.DOTALL))


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the documented package is installed."""
    pytest.importorskip("setuptools", minversion="70.1")
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for name, content in {**read_documented_files(), "my_package/__init__.py": ""}.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text(content, encoding="utf-8")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    argv = [sys.executable, "-m", "pip", "install", *options, "--target", target, source]
    subprocess.run(argv, check=True, timeout=100)
    return target


def test_conformance_run_of_the_documented_package_meets_its_expectation(package: Path, tmp_path: Path) -> None:
    assert set(read_documented_files()) == {
        "pyproject.toml",
        "my_package/adapter.py",
        "my_package/findings.toml",
        "my_package/expected/mine-1.0-cpu-emulated.txt",
    }
    selection = ("conformance/suites/scaling/test_scaling.py", "-k", "stays or static or defaults")
    options = ("--numprocesses=0", f"--record={tmp_path / 'mine.json'}")
    completed = run(
        [sys.executable, "-m", "conformance", "run", "mine", "--", *selection, *options],
        PYTHONPATH=str(package),
        PYTEST_ADDOPTS="-p xdist.plugin -p pytest_timeout",
        **VARIABLES,
    )
    assert completed.status == 0, completed.lines
    result = load(tmp_path / "mine.json")
    assert (result.series.framework, result.variant.framework_version, result.status) == ("mine", "1.0", "partial")
    assert clauses_of(result, {Outcome.KNOWN}) == {"scaling.stays-positive"}
    assert clauses_of(result, set(Outcome) - {Outcome.KNOWN, Outcome.PASS}) == set()
    assert len(clauses_of(result, {Outcome.PASS})) >= 3


def test_find_adapters_of_one_name_takes_the_built_in_or_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [("torch", "z:T"), ("torch", registry.built_in()["torch"])]
    entries += [("mine", path) for path in ("b:M", "a:M", "a:M")]
    points = [EntryPoint(name, path, registry.GROUP) for name, path in entries]
    monkeypatch.setattr(registry, "_installed_points", lambda: sorted(points, key=lambda point: point.value))
    known = registry.find_adapters()
    assert (known["torch"], known["mine"]) == (registry.built_in()["torch"], "a:M")
    assert registry.clashes("mine") == [
        "mine: adapter b:M is ignored, because a:M has the same name; rename one of them"
    ]
    assert [line.split(":")[0] for line in registry.clashes()] == ["mine", "torch"]


def test_load_of_an_adapter_that_breaks_on_import_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "awkward.py").write_text("import json\njson.loads('')", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        registry.UnknownFramework, match=r"'awkward:Crooked' cannot be imported \(JSONDecodeError: "
    ) as refusal:
        registry.load("awkward:Crooked")
    assert len(str(refusal.value).splitlines()) == 1


REFUSING_METHODS = {
    Capability.PLATEAU: "plateau",
    Capability.SCHEDULE_FREQUENCY: "count_schedule_steps",
    Capability.FUNCTION_USES: "function_used",
    Capability.RECOMPUTE_CASES: "recompute",
    Capability.STEP_HOOK: "gradient_in_hook",
    Capability.MANUAL_STEP: "clip_in_manual_step",
    Capability.LOADED_CHECKPOINT: "loaded_run",
    Capability.PLAIN_LOOP: "plain_trainer",
    Capability.TF32: "tf32",
    Capability.AUTOCAST_SCOPE: "autocast",
    Capability.AUTOCAST_LISTS: "autocast",
    Capability.RANKS_EMPTY: "rank_group",
    Capability.RANKS_COLLECTIVES: "rank_group",
    Capability.RANKS_LOST: "rank_group",
    Capability.RANKS_RESHAPE: "rank_group",
    Capability.FREEZE: "freeze",
    Capability.LIVE_STATE: "take",
    Capability.LOAD_ORDER: "restore_in",
    Capability.TRACE: "trace",
    Capability.CONVERT: "convert",
}
"""Methods of a framework, or of a run, whose inherited version refuses the capability."""


def reference_without(capability: Capability) -> ReferenceFramework:
    """The reference, which refuses what needs this capability."""

    class Refusing(ReferenceFramework):
        def declares(self, requested: Capability) -> Declaration:
            return Declaration(False, "not here") if requested is capability else super().declares(requested)

        def trainer(self, model, recipe, weights=None):  # type: ignore[no-untyped-def]
            if capability in needs(recipe):
                raise Unsupported(capability, "not here")
            return super().trainer(model, recipe, weights)

    return Refusing("cpu")


@pytest.mark.parametrize(("capability", "method"), REFUSING_METHODS.items(), ids=str)
def test_request_of_a_method_that_an_adapter_lacks_is_refused(capability: Capability, method: str) -> None:
    if hasattr(BaseFramework, method):
        parts = {method: getattr(BaseFramework, method)}
    else:
        run = type("LackingRun", (ReferenceTrainer,), {method: getattr(BaseTrainer, method)})
        parts = {"trainer_class": run}
    with pytest.raises(Unsupported):
        request(type("Lacking", (ReferenceFramework,), parts)("cpu"), capability)


@pytest.mark.parametrize(
    ("technique", "option"),
    [
        (Capability.ADAGRAD, Capability.RATE_DECAY),
        (Capability.ADAFACTOR, Capability.ABSOLUTE_RATE),
        (Capability.ADAFACTOR, Capability.SMALLEST_FACTORED),
        (Capability.MUON, Capability.WIDTH_RATE),
        (Capability.RECOMPUTE, Capability.RECOMPUTE_NESTED),
        (Capability.GROUPS, Capability.GROUP_RATES),
    ],
    ids=str,
)
def test_request_of_a_technique_asks_without_its_options(technique: Capability, option: Capability) -> None:
    request(reference_without(option), technique)
    with pytest.raises(Unsupported, match="not here"):
        request(reference_without(option), option)


def test_request_of_a_missing_quantizer_is_refused() -> None:
    quantizers = ReferenceFramework.quantizers_class

    class Fewer(quantizers):  # type: ignore[misc, valid-type]
        def rules(self):  # type: ignore[no-untyped-def]
            return {name: rule for name, rule in super().rules().items() if name != "int8-row"}

    lacking = type("Lacking", (ReferenceFramework,), {"quantizers_class": Fewer})
    with pytest.raises(Unsupported, match="want int8-row"):
        request(lacking("cpu"), Capability.INT8_ROW)


OPTIONS = (
    *Capability.of_optimizers(OPTIMIZERS),
    Capability.ABSOLUTE_RATE,
    Capability.SMALLEST_FACTORED,
    Capability.WIDTH_RATE,
    Capability.UNADJUSTED_RATE,
    Capability.GROUP_RATES,
)
"""Optimizers and options that some framework, or version of it, lacks."""


def warn(category: type[Warning]) -> bool:
    """An attempt that warns and says that it worked."""
    warnings.warn("text", category, stacklevel=1)
    return True


def test_has_effect_of_an_attempt_that_warns_fails_or_raises_is_false() -> None:
    for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
        assert has_effect(lambda category=category: warn(category))
    for category in (UserWarning, RuntimeWarning):
        assert not has_effect(lambda category=category: warn(category))
    assert not has_effect(lambda: False)
    assert not has_effect(lambda: bool(1 // 0))


def test_compare_of_a_supported_capability_whose_attempt_does_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    acting, idle = ReferenceFramework(), ReferenceFramework()
    monkeypatch.setattr(acting, "attempts", lambda: {Capability.CLIP: lambda: True})
    monkeypatch.setattr(idle, "attempts", lambda: {Capability.CLIP: lambda: False})
    compare(Subject(acting), Verdict(), Capability.CLIP)
    with pytest.raises(Misdeclared, match="a direct call had no effect"):
        compare(Subject(idle), Verdict(), Capability.CLIP)


def test_compare_of_a_supported_capability_whose_absence_the_adapter_declares_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    framework = ReferenceFramework()
    absence = Absence((Capability.CLIP,), "it has none", ("numpy",), ("no_such",))
    monkeypatch.setattr(framework, "_file", AdapterFile(absent=(absence,)))
    assert framework.declares(Capability.CLIP) == SUPPORTED
    with pytest.raises(Misdeclared):
        compare(Subject(framework), Verdict(), Capability.CLIP)


def test_shared_attempts_of_the_reference_take_effect() -> None:
    framework = ReferenceFramework()
    offloads = [Offload(("activations", "parameters", "optimizer"), to) for to in ("host", "disk")]
    attempts = (
        delayed_attempts(lambda: framework.rule(DelayedProducts)(KERNEL, history=4))
        | quantizer_attempts(framework.rule(Quantizers))
        | technique_attempts(framework.rule(PostTraining))
        | float8_attempts(framework.run)
        | optimizer_attempts(framework.run, *OPTIONS)
        | shipped_attempts(framework.parts())
        | offload_attempts(framework.run, offloads)
        | with_ranks({}, framework.rank_group, None)
    )
    assert len(attempts) > 24
    assert [capability for capability, attempt in attempts.items() if not has_effect(attempt)] == []
    with pytest.raises(ValueError, match=r"optimizer\.nesterov: no shared attempt"):
        optimizer_attempts(framework.run, Capability.MUON, Capability.NESTEROV)
