"""The description of the machine and the process in a record: complete, and without private data."""

import json
import platform
from contextlib import closing
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from conformance.runner import identity, machine
from conformance.runner.baselines import foreign
from conformance.runner.identity import variant
from frameworks import registry
from results.record.reading import Journal, load, write
from tests.support.recorded import BASE, header
from tests.support.suite_runs import ROOT

AMD = "processor\t: 0\nmodel name\t: X\nflags\t\t: fpu sse2 sse4_2 avx avx2 fma f16c avx512f avx_vnni amx_bf16 ht\n"
RECORDED = """
    TF_ENABLE_ONEDNN_OPTS XLA_FLAGS JAX_ENABLE_X64 FLAGS_cudnn_deterministic TORCHINDUCTOR_FREEZING
    PYTORCH_CUDA_ALLOC_CONF CUBLAS_WORKSPACE_CONFIG CUDA_LAUNCH_BLOCKING NVIDIA_TF32_OVERRIDE NCCL_ALGO MKL_NUM_THREADS
    OMP_NUM_THREADS OPENBLAS_CORETYPE KMP_AFFINITY ONEDNN_MAX_CPU_ISA DNNL_DEFAULT_FPMATH_MODE ATEN_CPU_CAPABILITY
    KERAS_BACKEND NPY_DISABLE_CPU_FEATURES PYTHONHASHSEED HSA_OVERRIDE_GFX_VERSION
"""
LEFT_OUT = """
    HOME PATH HF_TOKEN TF_API_KEY TF_VAR_password TF_CLI_CONFIG_FILE JAX_AUTH_TOKEN TORCH_VERSION KERAS_VERSION
    PADDLE_INDEX NVIDIA_REQUIRE_CUDA NVIDIA_VISIBLE_DEVICES
"""
NAMING_MACHINES = ("TF_CONFIG", "PADDLE_TRAINER_ENDPOINTS", "JAX_COORDINATOR_ADDRESS")
SWITCHES = [
    ({"ATEN_CPU_CAPABILITY": "avx2"}, "avx2"),
    ({"ATEN_CPU_CAPABILITY": "default"}, "none"),
    ({"ONEDNN_MAX_CPU_ISA": "AVX2"}, "avx2"),
    ({"XLA_FLAGS": "--xla_a=b --xla_cpu_max_isa=AVX"}, "none"),
    ({"TF_ENABLE_ONEDNN_OPTS": "0"}, "avx2"),
    ({"TF_ENABLE_ONEDNN_OPTS": "1", "ATEN_CPU_CAPABILITY": "avx512"}, "avx512-vnni"),
]


def test_variant_has_packages_variables_and_instruction_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    recorded = variant(registry.load("reference", "cpu"))
    names = {machine.canonicalize_name(d.metadata["Name"]) for d in metadata.distributions()}
    assert recorded.packages.keys() == names
    assert recorded.packages["pytest-xdist"] == metadata.version("pytest_xdist")
    assert recorded.variables["MKL_CBWR"] == "AVX2"
    assert recorded.environment["python"] == platform.python_version()
    assert int(recorded.environment["processors"]) >= 1
    assert recorded.instruction_sets == machine.instruction_sets()
    with closing(Journal.create(tmp_path / "r.json", replace(header(), variant=recorded))) as journal:
        journal.finish("partial")
    assert load(tmp_path / "r.json").variant == recorded


def test_variables_has_settings_of_frameworks_and_no_secret() -> None:
    recorded = dict.fromkeys(RECORDED.split(), "1")
    names = (*recorded, *LEFT_OUT.split(), *NAMING_MACHINES)
    assert machine.variables(dict.fromkeys(names, "1")) == recorded | dict.fromkeys(NAMING_MACHINES, "<set>")


@pytest.mark.parametrize(
    ("value", "shareable"),
    [
        ("--xla_cpu_multi_thread_eigen=false", "--xla_cpu_multi_thread_eigen=false"),
        ("--xla_dump_to=/data/dump --xla_gpu_autotune_level=0", "--xla_dump_to=<path> --xla_gpu_autotune_level=0"),
        ("/usr/lib/x86_64/libtcmalloc.so.4:/opt/me/libx.so", "libtcmalloc.so.4:libx.so"),
        ("expandable_segments:True,max_split_size_mb:128", "expandable_segments:True,max_split_size_mb:128"),
        (":4096:8", ":4096:8"),
        ("granularity=fine,compact,1,0", "granularity=fine,compact,1,0"),
        ("~/cache", "<path>"),
        (r"C:\Users\me\cache", "<path>"),
        ("../here", "<path>"),
        ("grpc://10.0.0.3:8470", "<address>"),
        ("https://name:hunter2@example.org/a", "<address>"),
        ('["10.0.0.7:2222"]', '["<address>"]'),
        ("GPU-8d2c6a1e-0000-1111-2222-0123456789ab,1", "<device>,1"),
        ("0,1", "0,1"),
        ("0.95", "0.95"),
        ("", ""),
    ],
)
def test_shareable_of_a_value_names_no_folder_address_or_device(value: str, shareable: str) -> None:
    assert machine.shareable(value) == shareable


def test_instruction_sets_are_those_of_every_core(tmp_path: Path) -> None:
    listing = tmp_path / "cpuinfo"
    listing.write_text(AMD + "\n" + AMD.replace("avx512f ", ""))
    assert machine.instruction_sets(listing) == ("amx_bf16", "avx", "avx2", "avx_vnni", "f16c", "fma", "sse4_2")
    listing.write_text("processor\t: 0\nFeatures\t: fp asimd smep sme2 evtstrm asimdhp sve i8mm bf16\n")
    assert machine.instruction_sets(listing) == ("asimd", "asimdhp", "bf16", "i8mm", "sme2", "sve")
    assert machine.instruction_sets(tmp_path / "missing") == ()


@pytest.mark.parametrize(
    ("fields", "origin"),
    [
        (None, ""),
        ({"dir_info": {"editable": True}}, "editable"),
        ({"dir_info": {}}, "folder"),
        ({"archive_info": {"hash": "sha256=ab"}}, "archive"),
        ({"vcs_info": {"vcs": "git", "commit_id": "c0ffee"}}, "git c0ffee"),
    ],
)
def test_origin_of_an_install_names_no_folder(
    fields: dict[str, object] | None, origin: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "some_framework-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: some-framework\nVersion: 1\n")
    if fields is not None:
        (folder / "direct_url.json").write_text(json.dumps({"url": "file:///it", **fields}))
    monkeypatch.syspath_prepend(tmp_path)
    assert machine.origin(["absent-package", "some-framework"]) == origin


@pytest.mark.parametrize("kind", ["UNIX x86_64 Kernel Module  ", "UNIX Open Kernel Module for x86_64  "])
def test_basics_of_a_gpu_have_its_driver(kind: str, tmp_path: Path) -> None:
    (tmp_path / "version").write_text(
        f"NVRM version: NVIDIA {kind}570.86.15  Thu Jan 1 10:00:00 UTC 2026\nGCC version: 12\n"
    )
    assert machine.basics(tmp_path / "version")["nvidia-driver"] == "570.86.15"
    assert machine.devices(tmp_path / "version") == ("cpu", "cuda")
    assert machine.devices(tmp_path / "none") == ("cpu",)
    basics = machine.basics(tmp_path / "none")
    assert set(basics) == {"libc", "machine", "processors", "python"}
    assert all(basics.values())


@pytest.mark.parametrize(
    ("framework", "names"),
    [
        ("torch", {"matmul-precision", "deterministic", "mkldnn.enabled", "cudnn.benchmark", "threads"}),
        ("tf", {"op_determinism", "tensor_float_32", "optimizer_jit", "optimizer_options", "dtype_policy", "epsilon"}),
        ("jax", {"default-matmul-precision", "threefry-partitionable", "allow-f16-reductions", "optimization-level"}),
        ("paddle", {"FLAGS_use_accuracy_compatible_kernel", "FLAGS_low_precision_op_list", "threads", "pir"}),
    ],
)
def test_environment_of_an_adapter_has_its_switches(framework: str, names: set[str]) -> None:
    pytest.importorskip({"tf": "tensorflow"}.get(framework, framework))
    environment = registry.load(framework, "cpu").environment()
    assert names <= environment.keys()
    assert all(isinstance(value, str) for value in environment.values())


@pytest.mark.parametrize(("variables", "level"), SWITCHES)
def test_level_of_a_library_switch_is_lower(tmp_path: Path, variables: dict[str, str], level: str) -> None:
    (tmp_path / "cpuinfo").write_text("flags : sse4_2 ssse3 avx avx2 fma f16c avx512f avx512_vnni amx_tile\n")
    assert machine.level(machine.instruction_sets(tmp_path / "cpuinfo", variables)) == level


@pytest.mark.parametrize(("sets", "is_foreign"), [(("avx2", "avx512f"), True), (("avx2", "fma"), False)])
def test_foreign_names_a_processor_without_a_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sets: tuple[str, ...], is_foreign: bool
) -> None:
    monkeypatch.setattr(machine, "instruction_sets", lambda: ("avx2",))
    variant = replace(BASE.variant, instruction_sets=sets)
    write(tmp_path / "torch-2-cpu-m.json.gz", replace(BASE, variant=variant))
    text = "on a processor that no baseline has (avx2; they have avx512): "
    assert foreign("torch", "m", "cpu", tmp_path) == (text if is_foreign else "")
    assert foreign("torch", "of-nobody", "cpu", tmp_path) == ""


def test_digest_of_files_changes_with_a_definition_alone(tmp_path: Path) -> None:
    split, merged_folder = tmp_path / "split", tmp_path / "merged"
    (split / "inner").mkdir(parents=True)
    merged_folder.mkdir()
    (split / "ideas.py").write_text('"""Ideas."""\nimport os\nfrom frameworks.contract import Trainer\n\nA = os.sep\n')
    imported = "from conformance.runner import machine\n"
    (split / "inner" / "steps.py").write_text(
        imported + "def step(a: float) -> float:\n    return 2 * machine.level(a)\n"
    )
    merged = "import os\n\n\ndef step(a):\n    # twice\n    return 2 * level(a)\n\n\nA = os.sep\n"
    (merged_folder / "steps.py").write_text(merged)
    before = identity.digest(identity.files_of([split]))
    assert identity.digest(identity.files_of([merged_folder])) == before
    (merged_folder / "steps.py").write_text(merged.replace("2", "3"))
    assert identity.digest(identity.files_of([merged_folder])) != before


def test_areas_have_every_package_that_judges() -> None:
    packages_of_areas = {path for area in identity.AREAS.values() for path in area}
    assert [path for path in packages_of_areas if not (ROOT / path).exists()] == []
    packages = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "conformance").glob("*/__init__.py")}
    without_area = ("cli", "models", "race", "scenarios", "spec", "sweep")
    assert packages - packages_of_areas == {f"conformance/{name}" for name in without_area}
