"""One word a clause across frameworks, whose a failure is, and what is said of two environments."""

from dataclasses import replace
from typing import Any

import pytest
from packaging.utils import canonicalize_name

from frameworks.installer import locks
from frameworks.installer.distributions import DISTRIBUTIONS, bare, variable_of
from results.compare.environment import COMPANIONS, OWN, ChangedSetting, Environment, environment, variable
from results.record.reading import ClauseText, Observation, Outcome, Record, Series, TestVerdict, Variant
from results.show.portability import Portability, libraries, list_clauses, owners, words
from tests.support.recorded import BASE, record

P, F, K, U, N = Outcome.PASS, Outcome.FAIL, Outcome.KNOWN, Outcome.UNSUPPORTED, Outcome.NOT_OFFERED
CLAUSE = "s.x"


def run(framework: str, *outcomes: Outcome, version: str = "1", mode: str = "m", revision: int = 1) -> Record:
    clauses = {CLAUSE: ClauseText("MUST", "…", "", (), "s", revision)}
    verdicts = tuple(TestVerdict(f"{CLAUSE}/t{i}", CLAUSE, one) for i, one in enumerate(outcomes))
    one = record(framework, {}, clauses=clauses, verdicts=verdicts, variant=Variant(version))
    return replace(one, series=replace(one.series, mode=mode))


def word(*records: Record) -> str:
    return str(words(records)[CLAUSE])


@pytest.mark.parametrize(
    ("torch", "tf", "said"),
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
def test_two_frameworks_give_a_word(torch: tuple[Outcome, ...], tf: tuple[Outcome, ...], said: str) -> None:
    assert word(run("torch", *torch), run("tf", *tf)) == said


def test_the_reference_counts_only_where_nothing_else_is_there() -> None:
    assert word(run("torch", P), run("tf", P), run("reference", F)) == "portable"
    assert word(run("torch", P), run("reference", P)) == "held"
    assert word(run("reference", F)) == "broken in reference 1"


def test_runs_of_one_version_are_taken_together() -> None:
    eager, static, torch = run("paddle", P, mode="eager"), run("paddle", K, mode="static"), run("torch", P)
    assert word(eager, static, torch) == "broken in paddle 1 (static cpu)"
    assert word(eager, run("paddle", U, mode="static"), torch) == "portable"
    for refused in (U, N):
        assert word(run("paddle", refused, mode="eager"), static, torch) == "broken in paddle 1", "no other run has it"


def test_only_the_newest_version_of_a_framework_is_judged() -> None:
    old = run("torch", F, version="2.9.0+cpu")
    assert word(old, run("torch", P, version="2.10.0"), run("tf", P)) == "portable"
    assert word(old, run("torch", P, version="not a version"), run("tf", P)) == "broken in torch 2.9.0+cpu"


@pytest.mark.parametrize(
    ("older", "said"),
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
def test_it_began_with_the_first_record_that_breaks_after_one_that_held(
    older: dict[str, tuple[Outcome, ...]], said: str, forward: bool
) -> None:
    records = [run("torch", *outcomes, version=version) for version, outcomes in older.items()]
    records = [*records, run("torch", K, version="2.0")]
    assert word(*(records if forward else records[::-1])) == f"broken in torch {said}"


def test_what_was_not_the_same_test_tells_nothing_of_the_beginning() -> None:
    new = run("torch", P, F, version="2.0")
    assert word(run("torch", P, P, version="1.0"), new) == "broken in torch since 2.0"
    assert word(run("torch", P, version="1.0"), new) == "broken in torch 2.0", "the test that fails is new"
    assert word(run("torch", P, P, version="1.0", revision=2), new) == "broken in torch 2.0"
    assert word(run("torch", P, P, version="1.0", mode="other"), new) == "broken in torch 2.0"
    assert word(run("torch", F, P, version="1.0"), new) == "broken in torch 2.0", "it was broken in another way"
    assert word(run("tf", P, P, version="1.0"), new) == "broken in torch 2.0"


def test_runs_that_began_apart_give_the_oldest_and_one_unknown_gives_none() -> None:
    def both(version: str, eager: Outcome, graph: Outcome) -> list[Record]:
        return [run("tf", eager, version=version, mode="eager"), run("tf", graph, version=version, mode="graph")]

    assert word(*both("1", P, P), *both("2", F, P), *both("3", F, F)) == "broken in tf since 2"
    assert word(*both("1", P, F), *both("2", F, F)) == "broken in tf 2"


@pytest.mark.parametrize(
    ("level", "torch", "tf", "said"),
    [
        ("OBSERVATION", {"k": 1}, {"k": 1}, "portable"),
        ("OBSERVATION", {"k": 1}, {"k": 2}, "differs"),
        ("OBSERVATION", {"k": 1}, {"j": 2}, "portable"),
        ("OBSERVATION", {"k": {"a": 1, "b": [1]}}, {"k": {"a": 1, "b": [2]}}, "differs"),
        ("OBSERVATION", {"k": {"reason": "x"}}, {"k": {"reason": "y"}}, "portable"),
        ("MUST", {"k": 1}, {"k": 2}, "portable"),
    ],
)
def test_an_observation_differs_where_the_same_thing_was_seen_to_be_another(
    level: str, torch: dict[str, Any], tf: dict[str, Any], said: str
) -> None:
    def record_of(framework: str, values: dict[str, Any]) -> Record:
        observations = tuple(Observation(CLAUSE, key, "", value) for key, value in values.items())
        clauses = {CLAUSE: ClauseText(level, "…", "", (), "s")}
        return replace(run(framework, P), observations=observations, clauses=clauses)

    assert word(record_of("torch", torch), record_of("tf", tf), record_of("reference", {"k": 7})) == said


def test_every_kind_has_a_meaning_and_the_list_says_what_it_uses() -> None:
    assert all(kind.meaning for kind in Portability)
    lines = list(list_clauses([run("torch", P), run("tf", U)]))
    assert lines == ["s.x  differs", "", "1 clause: 1 differs", f"differs: {Portability.DIFFERS.meaning}"]
    assert list(list_clauses([]))[-1] == "0 clauses: none judged"


KERAS = {"tf": "2.21.0+keras.3.15.1", "jax": "0.10.2+keras.3.15.1", "torch": "2.13.0+cpu.keras.3.15.1"}


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


EAGER = run("torch", P, version="2.13.0+cpu", mode="eager")


@pytest.mark.parametrize(
    ("records", "result"),
    [
        ([keras_run("tf", F), keras_run("jax", K), keras_run("torch", K)], ["keras on every backend"]),
        ([keras_run("tf", P), keras_run("jax", P), keras_run("torch", F)], ["keras on torch"]),
        ([keras_run("tf", K), keras_run("jax", P), keras_run("torch", K)], ["keras on tf, torch"]),
        ([keras_run("tf", F, P), keras_run("torch", F, F)], ["keras on every backend", "keras on torch"]),
        ([keras_run("tf", F), keras_run("jax", U), keras_run("torch", F)], ["keras on every backend"]),
        ([keras_run("tf", U), keras_run("torch", F)], []),
        ([keras_run("tf", F), EAGER], []),
    ],
)
def test_owners_of_a_failure_are_the_library_or_its_backends(records: list[Record], result: list[str]) -> None:
    assert [str(owner) for owner in owners(records).get(CLAUSE, ())] == result


def test_words_of_a_clause_name_the_version_and_the_owner() -> None:
    word = words([keras_run("tf", P), keras_run("torch", F), EAGER])[CLAUSE]
    assert str(word) == "broken in torch 2.13.0+cpu.keras.3.15.1 (keras cpu); keras on torch"
    eager, keras = run("torch", F, version="2.13.0+cpu", mode="eager"), keras_run("torch", P)
    assert str(words([eager, keras])[CLAUSE]) == "broken in torch 2.13.0+cpu (eager cpu)"


def make_record(framework: str, version: str, packages: dict[str, str] | None = None, **more: object) -> Record:
    device = str(more.pop("device", "cpu"))
    variant = replace(Variant(version, packages=packages or {}), **more)  # type: ignore[arg-type]
    return replace(BASE, series=Series(framework, device, device, "m"), variant=variant)


def test_nothing_differs_between_a_run_and_itself() -> None:
    record = make_record("jax", "0.10.2+flax.0.12.8", {"numpy": "2.4", "flax": "0.12.8"}, variables={"A": "1"})
    assert environment(record, record) == Environment()
    assert environment(record, record).same


def test_companions_are_told_apart_from_packages_that_compute_nothing() -> None:
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


def test_what_comes_with_the_wheel_is_crossed_only_under_the_same_framework() -> None:
    packages, gpu = {"nvidia-cudnn-cu12": "9.1", "triton": "3.4"}, {"device": "cuda"}
    old, new = (
        make_record("torch", "2.13.0", {**packages, "nvidia-cudnn-cu12": version}, **gpu) for version in ("9.1", "9.2")
    )
    assert environment(old, new).crossing == "TORCH_VERSION=2.13.0 NVIDIA_CUDNN_CU12_VERSION=9.1 tox -e torch"
    assert environment(old, new).crossed == "the same framework with the old companion packages"
    later = make_record("torch", "2.15.0", {**packages, "nvidia-cudnn-cu12": "9.2"}, **gpu)
    assert environment(old, later).crossing == ""
    assert [step.name for step in environment(old, later).companions] == ["nvidia-cudnn-cu12"]


def test_what_computes_on_a_gpu_is_no_companion_on_a_cpu_nor_is_a_flag_of_its_name() -> None:
    old, new = (
        make_record("torch", "2.13.0", {"numpy": "2"}),
        make_record("torch", "2.13.0", {"numpy": "2", "nvidia-cublas": "13"}),
    )
    assert environment(old, new).companions == ()
    assert environment(old, new).packages == (ChangedSetting("nvidia-cublas", "", "13"),)
    old, new = (make_record("torch", "2.13.0", environment={"mkl": value}) for value in ("True", "False"))
    assert environment(old, new).switches == (ChangedSetting("mkl", "True", "False"),)
    assert environment(old, new).companions == ()


def test_a_companion_in_the_version_is_the_companion_and_not_the_framework() -> None:
    changes = environment(make_record("tf", "2.20.0+keras.3.8.0"), make_record("tf", "2.20.0+keras.3.15.1"))
    assert changes.framework is None
    assert changes.companions == (ChangedSetting("keras", "3.8.0", "3.15.1"),)
    assert changes.crossing == "TF_VERSION=2.20.0 KERAS_VERSION=3.8.0 tox -e tf"


def test_a_library_counts_in_the_modes_that_train_by_it() -> None:
    old, new = (
        make_record("torch", f"2.13.0+cpu.accelerate.{version}", {"accelerate": version})
        for version in ("1.12", "1.15")
    )
    assert environment(old, new).companions == (ChangedSetting("accelerate", "1.12", "1.15"),)
    assert environment(old, new).crossing == (
        "CONFORMANCE_MODES=m TORCH_VERSION=2.13.0 ACCELERATE_VERSION=1.12 tox -e torch"
    )
    apart = environment(*(make_record("torch", "2.13.0+cpu", {"accelerate": version}) for version in ("1.12", "1.15")))
    assert apart.companions == ()


def test_another_build_of_a_version_is_another_framework() -> None:
    for old, new in (("2.13+cpu", "2.13+cu130"), ("2.13", "2.13")):
        changes = environment(make_record("torch", old), make_record("torch", new))
        assert changes.framework == (None if old == new else ChangedSetting("torch", old, new))


def test_an_older_record_is_compared_by_what_it_names() -> None:
    old = make_record(
        "tf", "2.20.0+keras.3.15.1", environment={"numpy": "2.3.5", "tensorflow": "2.20.0", "device": "x"}
    )
    new = make_record(
        "tf", "2.20.0+keras.3.15.1", {"numpy": "2.4.6", "keras": "3.15.1", "scipy": "1"}, environment={"device": "x"}
    )
    changes = environment(old, new)
    assert (changes.companions, changes.packages, changes.switches) == (
        (ChangedSetting("numpy", "2.3.5", "2.4.6"),),
        (),
        (),
    )
    assert changes.missing == ("the old record does not list its packages, variables and instruction sets",)
    assert environment(new, old).missing[0].startswith("the new record")


def test_switches_that_one_record_alone_tells_are_one_line() -> None:
    packages = {"numpy": "2.4"}
    switches = {f"switch-{i}": "on" for i in range(6)}
    old = make_record("torch", "2", packages, environment={"threads": "1"})
    new = make_record("torch", "2", packages, environment={"threads": "2", **switches})
    assert list(environment(old, new).lines()) == [
        "threads: 1 → 2: sums may round differently",
        "only the new record names: switch-0, switch-1, switch-2, switch-3 and 2 more",
    ]
    assert list(environment(new, old).lines())[1].startswith("only the old record names: switch-0")


def test_variables_and_instruction_sets_are_told() -> None:
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
    assert environment(old, unknown).same, "a platform that does not tell is no difference"


@pytest.mark.parametrize("version", ["1; touch pwned", "$(id)", "1 2", "", "-x", "１"])
def test_a_version_that_is_none_gets_into_no_command(version: str) -> None:
    old, new = make_record("torch", "2.13.0", {"numpy": version}), make_record("torch", "2.13.0", {"numpy": "2.4"})
    other = make_record("torch", version, {"numpy": "2.3"})
    assert environment(old, new).crossing == environment(new, other).crossing == ""


@pytest.mark.parametrize("name", ["package.module.Class", "reference", "$(id)"])
def test_what_the_suite_does_not_install_has_no_command(name: str) -> None:
    old, new = (make_record(name, "1", {"numpy": version}) for version in ("2.3", "2.4"))
    assert environment(old, new).companions
    assert environment(old, new).crossing == ""


@pytest.mark.parametrize("name", sorted(DISTRIBUTIONS))
def test_commands_name_what_the_installer_understands(name: str) -> None:
    chosen = DISTRIBUTIONS[name]
    assert OWN[name] == {canonicalize_name(bare(chosen.cpu)), canonicalize_name(bare(chosen.gpu))}
    computing = {canonicalize_name(bare(package)) for package in chosen.companions} - {"setuptools"}
    assert computing <= COMPANIONS
    for package in locks.examples(name):
        assert variable(package) == variable_of(package)
