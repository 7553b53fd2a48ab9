"""What is said of two environments, and the command that crosses companions."""

from dataclasses import replace

import pytest
from packaging.utils import canonicalize_name

from frameworks.installer import locks
from frameworks.installer.distributions import DISTRIBUTIONS, bare, variable_of
from results.compare.environment import COMPANIONS, OWN, ChangedSetting, Environment, environment, variable
from results.record.reading import Record, Series, Variant
from tests.support.small_record import BASE


def run(framework: str, version: str, packages: dict[str, str] | None = None, **more: object) -> Record:
    """A record of a framework with these packages."""
    device = str(more.pop("device", "cpu"))
    variant = replace(Variant(version, packages=packages or {}), **more)  # type: ignore[arg-type]
    return replace(BASE, series=Series(framework, device, device, "m"), variant=variant)


def test_nothing_differs_between_a_run_and_itself() -> None:
    record = run("jax", "0.10.2+flax.0.12.8", {"numpy": "2.4", "flax": "0.12.8"}, variables={"A": "1"})
    assert environment(record, record) == Environment()
    assert environment(record, record).same


def test_companions_are_told_apart_from_packages_that_compute_nothing() -> None:
    old = run("jax", "0.10.1", {"numpy": "2.3", "Flax": "0.12.6", "protobuf": "6", "jax": "0.10.1", "jaxlib": "0.10.1"})
    new = run("jax", "0.10.2", {"numpy": "2.4", "flax": "0.12.8", "protobuf": "7", "jax": "0.10.2", "jaxlib": "0.10.2"})
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
    old, new = (run("torch", "2.13.0", {**packages, "nvidia-cudnn-cu12": version}, **gpu) for version in ("9.1", "9.2"))
    assert environment(old, new).crossing == "TORCH_VERSION=2.13.0 NVIDIA_CUDNN_CU12_VERSION=9.1 tox -e torch"
    assert environment(old, new).crossed == "the same framework with the old companion packages"
    later = run("torch", "2.15.0", {**packages, "nvidia-cudnn-cu12": "9.2"}, **gpu)
    assert environment(old, later).crossing == ""
    assert [step.name for step in environment(old, later).companions] == ["nvidia-cudnn-cu12"]


def test_what_computes_on_a_gpu_is_no_companion_on_a_cpu() -> None:
    old, new = run("torch", "2.13.0", {"numpy": "2"}), run("torch", "2.13.0", {"numpy": "2", "nvidia-cublas": "13"})
    assert environment(old, new).companions == ()
    assert environment(old, new).packages == (ChangedSetting("nvidia-cublas", "", "13"),)


def test_a_companion_in_the_version_is_the_companion_and_not_the_framework() -> None:
    changes = environment(run("tf", "2.20.0+keras.3.8.0"), run("tf", "2.20.0+keras.3.15.1"))
    assert changes.framework is None
    assert changes.companions == (ChangedSetting("keras", "3.8.0", "3.15.1"),)
    assert changes.crossing == "TF_VERSION=2.20.0 KERAS_VERSION=3.8.0 tox -e tf"


def test_a_library_counts_in_the_modes_that_train_by_it() -> None:
    old, new = (
        run("torch", f"2.13.0+cpu.accelerate.{version}", {"accelerate": version}) for version in ("1.12", "1.15")
    )
    assert environment(old, new).companions == (ChangedSetting("accelerate", "1.12", "1.15"),)
    assert environment(old, new).crossing == (
        "CONFORMANCE_MODES=m TORCH_VERSION=2.13.0 ACCELERATE_VERSION=1.12 tox -e torch"
    )
    apart = environment(*(run("torch", "2.13.0+cpu", {"accelerate": version}) for version in ("1.12", "1.15")))
    assert apart.companions == ()


@pytest.mark.parametrize(("old", "new", "framework"), [("2.13+cpu", "2.13+cu130", True), ("2.13", "2.13", False)])
def test_another_build_of_a_version_is_another_framework(old: str, new: str, framework: bool) -> None:
    framework_change = environment(run("torch", old), run("torch", new)).framework
    assert framework_change == (ChangedSetting("torch", old, new) if framework else None)


def test_an_older_record_is_compared_by_what_it_names() -> None:
    old = run("tf", "2.20.0+keras.3.15.1", environment={"numpy": "2.3.5", "tensorflow": "2.20.0", "device": "x"})
    new = run(
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


def test_a_flag_that_is_called_like_a_package_is_a_flag() -> None:
    old, new = (run("torch", "2.13.0", environment={"mkl": value}) for value in ("True", "False"))
    assert environment(old, new).switches == (ChangedSetting("mkl", "True", "False"),)
    assert environment(old, new).companions == ()


def test_switches_that_one_record_alone_tells_are_one_line() -> None:
    packages = {"numpy": "2.4"}
    switches = {f"switch-{i}": "on" for i in range(6)}
    old = run("torch", "2", packages, environment={"threads": "1"})
    new = run("torch", "2", packages, environment={"threads": "2", **switches})
    assert list(environment(old, new).lines()) == [
        "threads: 1 → 2: sums may round differently",
        "only the new record names: switch-0, switch-1, switch-2, switch-3 and 2 more",
    ]
    assert list(environment(new, old).lines())[1].startswith("only the old record names: switch-0")


def test_variables_and_instruction_sets_are_told() -> None:
    packages = {"numpy": "2.4"}
    old = run("torch", "2", packages, variables={"OMP_NUM_THREADS": "1"}, instruction_sets=("avx2", "fma"))
    new = run("torch", "2", packages, variables={"TF32": "1"}, instruction_sets=("avx2", "avx512f"))
    assert list(environment(old, new).lines()) == [
        "variable OMP_NUM_THREADS: 1 → none: sums may round differently",
        "variable TF32: none → 1: other kernels may run, which round differently",
        "instruction sets: fma only on the old machine; avx512f only on the new machine: "
        "other kernels may run, which round differently",
    ]
    unknown = run("torch", "2", packages, variables={"OMP_NUM_THREADS": "1"})
    assert environment(old, unknown).same, "a platform that does not tell is no difference"


@pytest.mark.parametrize("version", ["1; touch pwned", "$(id)", "1 2", "", "-x", "１"])
def test_a_version_that_is_none_gets_into_no_command(version: str) -> None:
    old, new = run("torch", "2.13.0", {"numpy": version}), run("torch", "2.13.0", {"numpy": "2.4"})
    assert environment(old, new).crossing == ""
    assert environment(run("torch", "2.13.0", {"numpy": "2.3"}), run("torch", version, {"numpy": "2.4"})).crossing == ""


@pytest.mark.parametrize("name", ["package.module.Class", "reference", "$(id)"])
def test_what_the_suite_does_not_install_has_no_command(name: str) -> None:
    old, new = (run(name, "1", {"numpy": version}) for version in ("2.3", "2.4"))
    assert environment(old, new).companions
    assert environment(old, new).crossing == ""


def test_a_variable_is_the_packages_name() -> None:
    assert [variable(name) for name in ("ml-dtypes", "orbax.checkpoint", "jax")] == [
        "ML_DTYPES_VERSION",
        "ORBAX_CHECKPOINT_VERSION",
        "JAX_VERSION",
    ]


@pytest.mark.parametrize("name", sorted(DISTRIBUTIONS))
def test_commands_name_what_the_installer_understands(name: str) -> None:
    chosen = DISTRIBUTIONS[name]
    assert OWN[name] == {canonicalize_name(bare(chosen.cpu)), canonicalize_name(bare(chosen.gpu))}
    computing = {canonicalize_name(bare(package)) for package in chosen.companions} - {"setuptools"}
    assert computing <= COMPANIONS
    for package in locks.examples(name):
        assert variable(package) == variable_of(package)


def test_another_processor_alone_moves_no_bound_and_is_no_drift() -> None:
    sets, other = ("avx2", "avx512f"), ("avx2",)
    packages = {"torch": "2", "numpy": "2.4"}
    here, there = (run("torch", "2", packages, instruction_sets=each) for each in (sets, other))
    newer = run("torch", "3", {**packages, "torch": "3"}, instruction_sets=other)
    companion = run("torch", "2", {**packages, "numpy": "2.5"}, instruction_sets=other)
    assert environment(here, there).only_the_processor
    assert not any(environment(here, each).only_the_processor for each in (here, newer, companion))
