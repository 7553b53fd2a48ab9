"""Portability of clauses across frameworks, owners of failures, and differences of two environments."""

from dataclasses import replace
from typing import Any

import pytest
from packaging.utils import canonicalize_name

from frameworks.installer import locks
from frameworks.installer.distributions import DISTRIBUTIONS, bare, variable_of
from results.compare.environment import COMPANIONS, OWN, ChangedSetting, environment, variable
from results.record.reading import ClauseText, Observation, Outcome, Record, Series, TestVerdict, Variant
from results.show.portability import Portability, libraries, list_clauses, owners, words
from tests.support.recorded import BASE, record

P, F, K, U, N = Outcome.PASS, Outcome.FAIL, Outcome.KNOWN, Outcome.UNSUPPORTED, Outcome.NOT_OFFERED
CLAUSE = "s.x"
KERAS = {"tf": "2.21.0+keras.3.15.1", "jax": "0.10.2+keras.3.15.1", "torch": "2.13.0+cpu.keras.3.15.1"}


def run(framework: str, *outcomes: Outcome, version: str = "1", mode: str = "m", revision: int = 1) -> Record:
    clauses = {CLAUSE: ClauseText("MUST", "…", "", (), "s", revision)}
    verdicts = tuple(TestVerdict(f"{CLAUSE}/t{i}", CLAUSE, outcome) for i, outcome in enumerate(outcomes))
    result = record(framework, {}, clauses=clauses, verdicts=verdicts, variant=Variant(version))
    return replace(result, series=replace(result.series, mode=mode))


def label(*records: Record) -> str:
    return str(words(records)[CLAUSE])


@pytest.mark.parametrize(
    ("torch", "tf", "expected"),
    [
        ((P,), (P,), "portable"),
        ((P, U), (P,), "portable"),
        ((P,), (Outcome.FIXED,), "portable"),
        ((P,), (U,), "differs"),
        ((U,), (U,), "unsupported"),
        ((P,), (N,), "held"),
        ((U,), (N,), "unsupported"),
        ((N,), (N, U), "not offered"),
        ((F,), (N,), "broken in torch 1"),
        ((Outcome.ABSTAIN,), (N,), "not judged"),
        ((P,), (Outcome.ABSTAIN,), "not judged"),
        ((P, Outcome.UNSTABLE), (U,), "not judged"),
        ((P,), (P, K), "broken in tf 1"),
        ((F,), (K,), "broken in tf 1, torch 1"),
        ((Outcome.ABSTAIN,), (Outcome.CRASH,), "broken in tf 1"),
        ((P,), (Outcome.MISDECLARED,), "broken in tf 1"),
        ((P,), (K, Outcome.FIXED), "broken in tf 1"),
        ((P,), (), "held"),
    ],
)
def test_words_of_two_frameworks_say_how_portable_a_clause_is(
    torch: tuple[Outcome, ...], tf: tuple[Outcome, ...], expected: str
) -> None:
    assert label(run("torch", *torch), run("tf", *tf)) == expected


@pytest.mark.parametrize(
    ("older", "expected"),
    [
        ({"1.0": (P,)}, "since 2.0"),
        ({"0.9": (P,), "1.0": (F,)}, "since 1.0"),
        ({"0.8": (P,), "0.9": (F,), "1.0": (P,)}, "since 2.0"),
        ({"0.9": (P,), "1.0": (U,)}, "since 2.0"),
        ({"0.9": (P,), "1.0": ()}, "since 2.0"),
        ({"0.9": (F,), "1.0": (F,)}, "2.0"),
        ({"0.9": (U,), "1.0": ()}, "2.0"),
    ],
)
@pytest.mark.parametrize("forward", [True, False])
def test_words_since_names_the_first_broken_version_after_a_good_one(
    older: dict[str, tuple[Outcome, ...]], expected: str, forward: bool
) -> None:
    records = [run("torch", *outcomes, version=version) for version, outcomes in older.items()]
    records = [*records, run("torch", K, version="2.0")]
    assert label(*(records if forward else records[::-1])) == f"broken in torch {expected}"


def run_tf(version: str, eager: Outcome, graph: Outcome) -> list[Record]:
    return [run("tf", eager, version=version, mode="eager"), run("tf", graph, version=version, mode="graph")]


BROKEN = run("torch", P, F, version="2.0")
EAGER, STATIC = run("paddle", P, mode="eager"), run("paddle", K, mode="static")


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        # The reference counts only without other frameworks.
        ([run("torch", P), run("tf", P), run("reference", F)], "portable"),
        ([run("torch", P), run("reference", P)], "held"),
        ([run("reference", F)], "broken in reference 1"),
        # Runs of one version are combined.
        ([EAGER, STATIC, run("torch", P)], "broken in paddle 1 (static cpu)"),
        ([EAGER, run("paddle", U, mode="static"), run("torch", P)], "portable"),
        ([run("paddle", U, mode="eager"), STATIC, run("torch", P)], "broken in paddle 1"),
        ([run("paddle", N, mode="eager"), STATIC, run("torch", P)], "broken in paddle 1"),
        # Only the newest version of a framework is judged.
        ([run("torch", F, version="2.9.0+cpu"), run("torch", P, version="2.10.0"), run("tf", P)], "portable"),
        ([run("torch", F, version="2.9.0+cpu"), run("torch", P, version="main")], "broken in torch 2.9.0+cpu"),
        # Other tests say nothing about the first broken version.
        ([run("torch", P, P, version="1.0"), BROKEN], "broken in torch since 2.0"),
        ([run("torch", P, version="1.0"), BROKEN], "broken in torch 2.0"),
        ([run("torch", P, P, version="1.0", revision=2), BROKEN], "broken in torch 2.0"),
        ([run("torch", P, P, version="1.0", mode="other"), BROKEN], "broken in torch 2.0"),
        ([run("torch", F, P, version="1.0"), BROKEN], "broken in torch 2.0"),
        ([run("tf", P, P, version="1.0"), BROKEN], "broken in torch 2.0"),
        # Of several first broken versions the oldest is named, and none if one is unknown.
        ([*run_tf("1", P, P), *run_tf("2", F, P), *run_tf("3", F, F)], "broken in tf since 2"),
        ([*run_tf("1", P, F), *run_tf("2", F, F)], "broken in tf 2"),
    ],
)
def test_words_of_several_runs_combine_them(records: list[Record], expected: str) -> None:
    assert label(*records) == expected


@pytest.mark.parametrize(
    ("level", "torch", "tf", "expected"),
    [
        ("OBSERVATION", {"k": 1}, {"k": 1}, "portable"),
        ("OBSERVATION", {"k": 1}, {"k": 2}, "differs"),
        ("OBSERVATION", {"k": 1}, {"j": 2}, "portable"),
        ("OBSERVATION", {"k": {"a": 1, "b": [1]}}, {"k": {"a": 1, "b": [2]}}, "differs"),
        ("OBSERVATION", {"k": {"reason": "x"}}, {"k": {"reason": "y"}}, "portable"),
        ("MUST", {"k": 1}, {"k": 2}, "portable"),
    ],
)
def test_words_of_observations_differ_where_values_do(
    level: str, torch: dict[str, Any], tf: dict[str, Any], expected: str
) -> None:
    def record_of(framework: str, values: dict[str, Any]) -> Record:
        observations = tuple(Observation(CLAUSE, key, "", value) for key, value in values.items())
        clauses = {CLAUSE: ClauseText(level, "…", "", (), "s")}
        return replace(run(framework, P), observations=observations, clauses=clauses)

    assert label(record_of("torch", torch), record_of("tf", tf), record_of("reference", {"k": 7})) == expected


def test_list_clauses_explains_the_words_that_it_has() -> None:
    assert all(kind.meaning for kind in Portability)
    lines = list(list_clauses([run("torch", P), run("tf", U)]))
    assert lines == ["s.x  differs", "", "1 clause: 1 differs", f"differs: {Portability.DIFFERS.meaning}"]
    assert list(list_clauses([]))[-1] == "0 clauses: none judged"


def keras_run(framework: str, *outcomes: Outcome) -> Record:
    return run(framework, *outcomes, version=KERAS[framework], mode="keras")


@pytest.mark.parametrize(
    ("version", "named"),
    [
        ("2.13.0+cpu.keras.3.15.1", {"keras"}),
        ("0.10.2+flax.0.12.8.optax.0.2.8.jmp.0.0.4", {"flax", "optax", "jmp"}),
        ("2.11.0+cu130", set()),
        ("2.13.0+cpu", set()),
        ("main", set()),
    ],
)
def test_libraries_are_read_from_the_local_label(version: str, named: set[str]) -> None:
    assert libraries(version) == named


TORCH_EAGER = run("torch", P, version="2.13.0+cpu", mode="eager")


@pytest.mark.parametrize(
    ("records", "result"),
    [
        ([keras_run("tf", F), keras_run("jax", K), keras_run("torch", K)], ["keras on every backend"]),
        ([keras_run("tf", P), keras_run("jax", P), keras_run("torch", F)], ["keras on torch"]),
        ([keras_run("tf", K), keras_run("jax", P), keras_run("torch", K)], ["keras on tf, torch"]),
        ([keras_run("tf", F, P), keras_run("torch", F, F)], ["keras on every backend", "keras on torch"]),
        ([keras_run("tf", F), keras_run("jax", U), keras_run("torch", F)], ["keras on every backend"]),
        ([keras_run("tf", U), keras_run("torch", F)], []),
        ([keras_run("tf", F), TORCH_EAGER], []),
    ],
)
def test_owners_of_a_failure_are_the_library_or_its_backends(records: list[Record], result: list[str]) -> None:
    assert [str(owner) for owner in owners(records).get(CLAUSE, ())] == result


def test_words_of_a_clause_name_the_version_and_the_owner() -> None:
    label = words([keras_run("tf", P), keras_run("torch", F), TORCH_EAGER])[CLAUSE]
    assert str(label) == "broken in torch 2.13.0+cpu.keras.3.15.1 (keras cpu); keras on torch"
    eager, keras = run("torch", F, version="2.13.0+cpu", mode="eager"), keras_run("torch", P)
    assert str(words([eager, keras])[CLAUSE]) == "broken in torch 2.13.0+cpu (eager cpu)"


def make_record(framework: str, version: str, packages: dict[str, str] | None = None, **fields: object) -> Record:
    device = str(fields.pop("device", "cpu"))
    variant = replace(Variant(version, packages=packages or {}), **fields)  # type: ignore[arg-type]
    return replace(BASE, series=Series(framework, device, device, "m"), variant=variant)


def test_environment_has_companions_and_other_packages() -> None:
    before = {"numpy": "2.3", "Flax": "0.12.6", "protobuf": "6", "jax": "0.10.1", "jaxlib": "0.10.1"}
    after = {"numpy": "2.4", "flax": "0.12.8", "protobuf": "7", "jax": "0.10.2", "jaxlib": "0.10.2"}
    old, new = make_record("jax", "0.10.1", before), make_record("jax", "0.10.2", after)
    changes = environment(old, new)
    assert changes.framework == ChangedSetting("jax", "0.10.1", "0.10.2")
    assert [step.name for step in changes.companions] == ["flax", "jaxlib", "numpy"]
    assert changes.packages == (ChangedSetting("protobuf", "6", "7"),)
    assert changes.crossing == "JAX_VERSION=0.10.2 FLAX_VERSION=0.12.6 NUMPY_VERSION=2.3 tox -e jax"
    assert changes.crossed == "the new framework with the old companion packages"
    assert list(changes.lines()) == [
        "jax: 0.10.1 → 0.10.2",
        "companion packages, which may be the cause: flax: 0.12.6 → 0.12.8; jaxlib: 0.10.1 → 0.10.2; numpy: 2.3 → 2.4",
        "1 other package differs",
    ]


def make_torch(version: str = "2.13.0", device: str = "cpu", **packages: str) -> Record:
    return make_record("torch", version, packages, device=device)


CUDNN = "nvidia-cudnn-cu12"
WHEEL, LATER_WHEEL = (make_torch("2.13.0", "cuda", **{CUDNN: version, "triton": "3.4"}) for version in ("9.1", "9.2"))
TF_KERAS, TF_LATER_KERAS = (make_record("tf", f"2.20.0+keras.{version}") for version in ("3.8.0", "3.15.1"))
TRAINER, LATER_TRAINER = (
    make_torch(f"2.13.0+cpu.accelerate.{version}", accelerate=version) for version in ("1.12", "1.15")
)
BY_ACCELERATE = "CONFORMANCE_MODES=m TORCH_VERSION=2.13.0 ACCELERATE_VERSION=1.12 tox -e torch"


@pytest.mark.parametrize(
    ("old", "new", "companions", "crossing"),
    [
        (WHEEL, LATER_WHEEL, [CUDNN], "TORCH_VERSION=2.13.0 NVIDIA_CUDNN_CU12_VERSION=9.1 tox -e torch"),
        (WHEEL, make_torch("2.15.0", "cuda", **{CUDNN: "9.2", "triton": "3.4"}), [CUDNN], ""),
        (make_torch(numpy="2"), make_torch(numpy="2", **{"nvidia-cublas": "13"}), [], ""),
        (TF_KERAS, TF_LATER_KERAS, ["keras"], "TF_VERSION=2.20.0 KERAS_VERSION=3.8.0 tox -e tf"),
        (TRAINER, LATER_TRAINER, ["accelerate"], BY_ACCELERATE),
        (make_torch(accelerate="1.12"), make_torch(accelerate="1.15"), [], ""),
    ],
    ids=["wheel", "other wheel", "gpu on a cpu", "version names it", "mode trains by it", "no mode trains by it"],
)
def test_environment_has_companions_that_compute_in_the_run(
    old: Record, new: Record, companions: list[str], crossing: str
) -> None:
    changes = environment(old, new)
    assert ([step.name for step in changes.companions], changes.crossing) == (companions, crossing)
    assert environment(old, old).same


def test_environment_has_builds_as_versions_and_flags_as_switches() -> None:
    builds = environment(make_torch("2.13+cpu"), make_torch("2.13+cu130"))
    assert builds.framework == ChangedSetting("torch", "2.13+cpu", "2.13+cu130")
    old, new = (make_record("torch", "2.13.0", environment={"mkl": value}) for value in ("True", "False"))
    assert environment(old, new).switches == (ChangedSetting("mkl", "True", "False"),)
    assert environment(old, new).companions == ()


def test_environment_lines_join_switches_of_one_record() -> None:
    packages = {"numpy": "2.4"}
    switches = {f"switch-{i}": "on" for i in range(6)}
    old = make_record("torch", "2", packages, environment={"threads": "1"})
    new = make_record("torch", "2", packages, environment={"threads": "2", **switches})
    assert list(environment(old, new).lines()) == [
        "threads: 1 → 2: sums may round differently",
        "only the new record names: switch-0, switch-1, switch-2, switch-3 and 2 more",
    ]
    assert list(environment(new, old).lines())[1].startswith("only the old record names: switch-0")


def test_environment_lines_have_variables_and_instruction_sets() -> None:
    packages = {"numpy": "2.4"}
    old = make_record("torch", "2", packages, variables={"OMP_NUM_THREADS": "1"}, instruction_sets=("avx2", "fma"))
    new = make_record("torch", "2", packages, variables={"TF32": "1"}, instruction_sets=("avx2", "avx512f"))
    assert list(environment(old, new).lines()) == [
        "variable OMP_NUM_THREADS: 1 → none: sums may round differently",
        "variable TF32: none → 1: other kernels may run, which round differently",
        "instruction sets: fma only on the old machine; avx512f only on the new machine: "
        "other kernels may run, which round differently",
    ]
    unknown = make_record("torch", "2", packages, variables={"OMP_NUM_THREADS": "1"})
    assert environment(old, unknown).same


@pytest.mark.parametrize("version", ["1; touch pwned", "$(id)", "1 2", "", "-x", "１"])
def test_environment_of_a_wrong_version_has_no_command(version: str) -> None:
    old, new = make_record("torch", "2.13.0", {"numpy": version}), make_record("torch", "2.13.0", {"numpy": "2.4"})
    other = make_record("torch", version, {"numpy": "2.3"})
    assert environment(old, new).crossing == environment(new, other).crossing == ""


@pytest.mark.parametrize("name", ["package.module.Class", "reference", "$(id)"])
def test_environment_of_an_uninstalled_framework_has_no_command(name: str) -> None:
    old, new = (make_record(name, "1", {"numpy": version}) for version in ("2.3", "2.4"))
    assert environment(old, new).companions
    assert environment(old, new).crossing == ""


@pytest.mark.parametrize("name", sorted(DISTRIBUTIONS))
def test_variables_of_commands_are_those_of_the_installer(name: str) -> None:
    chosen = DISTRIBUTIONS[name]
    assert OWN[name] == {canonicalize_name(bare(chosen.cpu)), canonicalize_name(bare(chosen.gpu))}
    computing = {canonicalize_name(bare(package)) for package in chosen.companions} - {"setuptools"}
    assert computing <= COMPANIONS
    for package in locks.examples(name):
        assert variable(package) == variable_of(package)
