"""The tools of the checkout."""

import re

import pytest

from frameworks.adapter_file import adapter_file
from frameworks.registry import built_in
from tests.support.suite_runs import ROOT
from tools.commands import WITH_FRAMEWORKS

FRAMEWORKS = {name for framework in built_in() for name in adapter_file(framework).imports}
SKIPPING = {
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "tests").rglob("test_*.py")
    if FRAMEWORKS & {*re.findall(r'importorskip\("(\w+)"\)', path.read_text("utf-8"))}
}


@pytest.mark.parametrize("path", sorted(SKIPPING))
def test_what_is_skipped_without_a_framework_runs_with_it(path: str) -> None:
    assert path in WITH_FRAMEWORKS


def test_tests_with_frameworks_are_there() -> None:
    assert [path for path in WITH_FRAMEWORKS if not (ROOT / path).is_file()] == []
