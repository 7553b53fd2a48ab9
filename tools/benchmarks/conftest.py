"""Loads the framework whose steps are timed, by the suites' own options, and generates the cases."""

import pytest

from frameworks.contract import Framework, MissingDevice
from frameworks.registry import UnknownFramework, load
from tools.benchmarks import FIXTURES, techniques

_FRAMEWORK = pytest.StashKey[Framework]()


def pytest_configure(config: pytest.Config) -> None:
    """Loads the framework; what cannot be loaded ends the run with one line and exit status 2."""
    option = config.option
    try:
        config.stash[_FRAMEWORK] = load(option.framework, option.device, option.mode)
    except (UnknownFramework, MissingDevice, ValueError) as error:
        pytest.exit(" ".join(str(error).split()), returncode=2)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Every fixture with every technique; ids begin with the framework, its mode and its device."""
    if "technique" in metafunc.fixturenames:
        framework = metafunc.config.stash[_FRAMEWORK]
        name = f"{framework.name}-{framework.mode}-{framework.device}"
        metafunc.parametrize("framework", [framework], ids=[name])
        metafunc.parametrize("fixture", FIXTURES)
        metafunc.parametrize("technique", techniques(framework.recompute_variants()))
