"""The parts of a record that describe the process and the machine, for any framework.

Records are published. So nothing in these parts names a folder, an address or a device of the machine, and values that
may be secret are left out.
"""

import os
import platform
import re
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path

import msgspec
from packaging.utils import canonicalize_name

PREFIXES = (
    *("FLAGS_", "JAX_", "KERAS_", "OPTREE_", "ORBAX_", "PADDLE_", "PYTORCH_", "TENSORSTORE_", "TF_", "TORCH"),
    *("ATEN_", "BLIS_", "CUBLAS", "CUDNN_", "DNNL_", "LIBXSMM_", "MIOPEN_", "MKL_", "ONEDNN_", "OPENBLAS_", "ROCBLAS_"),
    *("CUDA_", "GLOO_", "HIP_", "HSA_", "NCCL_", "NVIDIA_", "TRITON_", "XLA_"),
    *("GOMP_", "KMP_", "NPY_", "NUMEXPR_", "OMP_", "PROTOCOL_BUFFERS_", "PYTHONHASHSEED"),
    *("GLIBC_TUNABLES", "LD_PRELOAD", "MALLOC_"),
)
"""Prefixes of the environment variables that frameworks, compilers, kernels, allocators and thread pools read."""

_OWN = re.compile(r".*_(VERSION|INDEX|REQUIREMENT)")
"""Variables of `conformance install`; their effect is visible in the list of packages."""

_READ_ALL_THE_SAME = frozenset({"HSA_OVERRIDE_GFX_VERSION"})

_TERRAFORM = re.compile(
    r"TF_(CLI|CLOUD|IGNORE|INPUT|IN_AUTOMATION|LOG|PLUGIN_CACHE|REATTACH|REGISTRY|STATE|TOKEN|VAR|WORKSPACE)(_.*)?"
)
"""Variables of Terraform, whose names begin like TensorFlow's."""

_CONTAINER = re.compile(r"NVIDIA_(DRIVER_CAPABILITIES|PRODUCT_NAME|REQUIRE_\w+|VISIBLE_DEVICES)")
"""Requests of a container to its host, which no framework reads."""

_SECRET = re.compile(r"(^|_)(API_?KEY|AUTH|CREDENTIALS?|KEY|PASS|PASSWD|PASSWORD|SECRET|TOKEN)S?(_|$)")

_OF_ADDRESSES = re.compile(r"TF_CONFIG|PADDLE_MASTER|.*_(ADDR|ADDRESS|ENDPOINTS?|HOSTS?|IP|IPS)")
"""Variables whose values name machines: the record shows only that they are set."""

_ADDRESS = re.compile(r"\b[a-zA-Z][\w+.-]*://\S+|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b")
_DEVICE_ID = re.compile(r"\b(?:(?:GPU|MIG)-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_LIBRARY = re.compile(r"(?<![\w.])~?(?:/[^\s/:;,=]+)*/([^\s/:;,=]+\.(?:so|dylib)[\d.]*)(?![^\s:;,])")
_FOLDER = re.compile(r"(?<![\w.>])(?:~?/|[A-Za-z]:\\|\.\.?/)[^\s:;,\"']*")

_CPUINFO = Path("/proc/cpuinfo")
_DRIVER = Path("/proc/driver/nvidia/version")
_CHOSEN_BY = re.compile(
    r"ssse3|sse4_[12]|avx\w*|f16c|fma4?|bmi[12]|amx_\w+|gfni|asimd\w*|neon|fphp|bf16|i8mm|sve\w*|sme(?!p)\w*"
)
BEYOND_AVX2 = re.compile(r"avx512\w*|avx10\w*|amx\w*|avx_vnni\w*|avx_ne_convert|avx_ifma")
BEYOND_SSE = re.compile(r"avx\w*|amx\w*|f16c|fma4?|bmi[12]|gfni")
_SWITCHES = (
    (re.compile(r"ATEN_CPU_CAPABILITY=(default|avx2)\b.*"), "default"),
    (re.compile(r"(?:ONEDNN|DNNL)_MAX_CPU_ISA=(SSE41|AVX2)\b.*"), "SSE41"),
    (re.compile(r"MKL_ENABLE_INSTRUCTIONS=(SSE4_2|AVX2)\b.*"), "SSE4_2"),
    (re.compile(r"XLA_FLAGS=.*--xla_cpu_max_isa=(AVX2?)\b.*"), "AVX"),
    (re.compile(r"TF_ENABLE_ONEDNN_OPTS=(0|false)\b.*"), ""),
)
"""Variables by which libraries leave instruction sets unused, each with its value for none beyond SSE. TensorFlow's
only says whether oneDNN's kernels run, as they do by default where the processor has AVX-512 VNNI."""
LEVELS = {"avx512-vnni": {"avx512f", "avx512_vnni"}, "avx512": {"avx512f"}, "avx2": {"avx2"}, "neon": {"asimd"}}
"""Instruction sets of each level, the widest first."""


def packages(installed: Iterable[Distribution] | None = None) -> dict[str, str]:
    """Return the version of each installed distribution by normalized name; of two with one name, the imported one."""
    versions: dict[str, str] = {}
    for distribution in distributions() if installed is None else installed:
        name, version = distribution.metadata["Name"], distribution.metadata["Version"]
        if name and version:
            versions.setdefault(canonicalize_name(name), version)
    return dict(sorted(versions.items()))


def variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables that frameworks and their libraries read, without secrets."""
    return {
        name: "<set>" if _OF_ADDRESSES.fullmatch(name) else shareable(environment[name])
        for name in sorted(environment)
        if _is_recorded(name)
    }


def _is_recorded(name: str) -> bool:
    own = _OWN.fullmatch(name) and name not in _READ_ALL_THE_SAME
    foreign = own or _TERRAFORM.fullmatch(name) or _CONTAINER.fullmatch(name) or _SECRET.search(name.upper())
    return name.startswith(PREFIXES) and not foreign


def shareable(value: str) -> str:
    """Return a variable's value without addresses, device identifiers and folders; a library keeps its file name."""
    text = _DEVICE_ID.sub("<device>", _ADDRESS.sub("<address>", value))
    return _FOLDER.sub("<path>", _LIBRARY.sub(r"\1", text))


def origin(packages: Iterable[str]) -> str:
    """Return the source of the first installed one of these packages, without a path; "" if it came from an index.

    The source is `editable`, `folder`, `archive`, or the version control system with the commit.
    """
    found = next((distribution for name in packages for distribution in distributions(name=name)), None)
    text = found.read_text("direct_url.json") if found else None
    if not text:
        return ""
    direct_url = msgspec.json.decode(text)
    if vcs := direct_url.get("vcs_info"):
        return f"{vcs['vcs']} {vcs['commit_id']}"
    if "archive_info" in direct_url:
        return "archive"
    return "editable" if direct_url.get("dir_info", {}).get("editable") else "folder"


def instruction_sets(listing: Path = _CPUINFO, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the instruction sets by which kernels are chosen, sorted; () where Linux does not list them.

    They are the processor's without those that a library's own switch turns off, such as `ATEN_CPU_CAPABILITY=avx2`.
    """
    unused = [
        BEYOND_SSE if match[1] == least else BEYOND_AVX2
        for name, value in environment.items()
        for pattern, least in _SWITCHES
        if (match := pattern.fullmatch(f"{name}={value}"))
    ]
    return tuple(
        name for name in _read_instruction_sets(listing) if not any(pattern.fullmatch(name) for pattern in unused)
    )


def level(instructions: Iterable[str]) -> str:
    """Return the kernels that instruction sets allow: "avx512-vnni", "avx512", "avx2", "neon" or "none"."""
    names = {*instructions}
    for name, needed in LEVELS.items():
        if needed <= names:
            return name
    return "none"


def _read_instruction_sets(listing: Path) -> tuple[str, ...]:
    try:
        lines = listing.read_text("utf-8", errors="replace").splitlines()
    except OSError:
        return ()
    cores = [
        set(values.split())
        for key, _, values in (line.partition(":") for line in lines)
        if key.strip() in ("flags", "Features")
    ]
    common = set.intersection(*cores) if cores else set()
    return tuple(sorted(name for name in common if _CHOSEN_BY.fullmatch(name)))


def devices(driver: Path = _DRIVER) -> tuple[str, ...]:
    """Return the devices for the programs of findings: the CPU, and a GPU if NVIDIA's driver is loaded."""
    return ("cpu", "cuda") if driver.is_file() else ("cpu",)


def basics(driver: Path = _DRIVER) -> dict[str, str]:
    """Return the versions of Python and the C library, the architecture, and the number of usable processors.

    If Linux has NVIDIA's driver loaded, its version is included.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    loaded = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", driver.read_text()) if driver.is_file() else None
    return ({"nvidia-driver": loaded[1]} if loaded else {}) | {
        "libc": " ".join(platform.libc_ver()).strip() or platform.system(),
        "machine": platform.machine(),
        "processors": str(usable),
        "python": platform.python_version(),
    }
