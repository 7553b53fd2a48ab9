"""The description of the machine in a record, without private data, and the files of a run."""

import json
import os
import platform
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from conformance.runner import identity, machine
from conformance.runner.baselines import foreign
from conformance.runner.identity import variant
from frameworks import registry
from frameworks.cache_folder import CACHE_FOLDER, cache_folder, prune
from frameworks.installer import install
from results.record.model import Outcome
from results.record.reading import Journal, load, write
from tests.support.recorded import BASE, header
from tests.support.suite_runs import ROOT, WORKERS, copy_checkout, judge, outcomes_by_case

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


STEP = """
import hashlib, sys
import jax
from frameworks.cache_folder import PROGRAMS
from frameworks.jax import JaxFramework
from fixtures.data import digits_batch
from fixtures.models import digits_mlp
from fixtures.recipe import Recipe
run = JaxFramework("cpu").trainer(digits_mlp((16,)), Recipe())
losses = [run.update((digits_batch(8),)).loss for _ in range(3)]
digest = hashlib.sha256(b"".join(array.tobytes() for array in run.parameters().values())).hexdigest()
print(losses, digest, jax.config.jax_compilation_cache_dir)
print(PROGRAMS.asked, PROGRAMS.hits)
"""
SUITE = """
@clause("scaling.automaton")
def test_that_leaves_a_folder() -> None:
    tempfile.mkdtemp()


@clause("scaling.automaton")
def test_that_dies() -> None:
    tempfile.mkstemp()
    os.abort()
"""
SAVING = (
    "conformance/suites/resume/test_resume.py::test_run_resumes_in_new_process",
    "conformance/suites/resume/test_resume.py::test_dropout_stream_resumes",
    "conformance/suites/formats/test_post_training_saving.py::test_quantized_model_survives_saving",
)


def write_file(path: Path, size: int, used: int) -> Path:
    """A file of so many bytes that was last used at a time in seconds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size))
    os.utime(path, (used, used))
    return path


def test_cache_folder_is_that_of_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_FOLDER, str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.setenv(CACHE_FOLDER, "")
    assert cache_folder() == ROOT / "results" / "cache"


def test_prune_removes_the_least_recently_used_files(tmp_path: Path) -> None:
    paths = [write_file(tmp_path / str(used % 2) / str(used), 100, used) for used in (5, 1, 4, 2, 3)]
    prune(tmp_path, 500)
    assert all(path.is_file() for path in paths)
    prune(tmp_path, 499)
    assert sorted(int(path.name) for path in paths if path.is_file()) == [4, 5]


def run_steps(cache: Path, **variables: str) -> tuple[str, str, list[int]]:
    """Runs three updates in a new process: what they print, the folder of programs, requests and hits."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment = {**inherited, CACHE_FOLDER: str(cache), "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run([sys.executable, "-c", STEP], env=environment, capture_output=True, text=True, check=True)
    *_, result, counts = done.stdout.splitlines()
    numbers, _, folder = result.rpartition(" ")
    return numbers, folder, [int(count) for count in counts.split()]


def test_stored_programs_give_the_same_bits(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    cold, folder, (requests, _) = run_steps(tmp_path)
    programs = sorted(Path(folder).glob("*-cache"))
    assert Path(folder).parent == tmp_path / "jax"
    assert programs
    assert run_steps(tmp_path) == (cold, folder, [requests, requests])
    assert requests > 0
    assert sorted(Path(folder).glob("*-cache")) == programs
    for number, path in enumerate(programs):
        content = path.read_bytes()
        path.write_bytes((b"", content[: len(content) // 2], content[:-9] + bytes(9))[number % 3])
    assert run_steps(tmp_path)[:2] == (cold, folder)


def test_stored_programs_in_the_users_folder_or_none_give_the_same_bits(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    users_folder = tmp_path / "own"
    numbers, folder, _ = run_steps(tmp_path / "cache", JAX_COMPILATION_CACHE_DIR=str(users_folder))
    assert folder == str(users_folder)
    assert not (tmp_path / "cache" / "jax").exists()
    write_file(tmp_path / "file", 1, 1)
    assert run_steps(tmp_path / "file")[:2] == (numbers, "None")


def test_build_of_another_compiler_has_another_name(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    from frameworks.jax.core.settings import build, libraries

    first, second = write_file(tmp_path / "a.so", 9, 5), write_file(tmp_path / "b.so", 9, 5)
    known = tmp_path / "builds"
    name = build([first, second], known)
    assert build([first, second], known) == name
    (damaged, _) = sorted(known.iterdir())
    damaged.write_text("")
    assert build([first, second], known) == name
    second.write_bytes(b"of the size")
    assert build([first, second], known) != name
    assert any(path.stat().st_size > 2**26 for path in libraries())


def test_run_removes_files_of_tests_and_of_a_killed_worker(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    root, record = copy_checkout(tmp_path / "checkout", leaving=SUITE), tmp_path / "run.json"
    arguments = ("--framework=reference", f"--record={record}", *WORKERS, "--numprocesses=1")
    completed = judge(*arguments, root=root, TMPDIR=str(tmp_path / "temporary"))
    result = outcomes_by_case(load(record))
    assert result["test_that_leaves_a_folder"] is Outcome.PASS, completed.lines
    assert result["test_that_dies"] is Outcome.CRASH, completed.lines
    assert list((tmp_path / "temporary").iterdir()) == []


def test_run_removes_the_directory_of_a_killed_run(tmp_path: Path) -> None:
    root, temporary = copy_checkout(tmp_path / "checkout", leaving=SUITE), tmp_path / "temporary"
    temporary.mkdir()
    arguments = ("--framework=reference", "-p", "no:faulthandler")
    assert judge(*arguments, root=root, TMPDIR=str(temporary)).status == -signal.SIGABRT
    (remaining,) = temporary.iterdir()
    judge(*arguments, "-k", "folder", root=root, TMPDIR=str(temporary))
    assert list(temporary.iterdir()) == [], remaining


@pytest.mark.parametrize("framework", ["reference", *install.DISTRIBUTIONS])
def test_run_of_saved_and_quantized_models_leaves_no_file(framework: str, tmp_path: Path) -> None:
    if framework != "reference" and install.installed_version(framework) is None:
        pytest.skip(f"{framework} is not installed")
    result = judge(f"--framework={framework}", *SAVING, TMPDIR=str(tmp_path))
    assert result.status in (0, 1), result.lines
    assert " pass" in result.output, result.lines
    assert list(tmp_path.iterdir()) == []
