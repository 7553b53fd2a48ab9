"""The version of the contract that an adapter states."""

from pathlib import Path

import pytest

from frameworks.contract import CONTRACT_VERSION
from frameworks.registry import UnknownFramework, load
from tests.support.suite_runs import ROOT, judge

HERE = "tests.adapters.test_versioning"


class LaterContract:
    """An adapter of a later version."""

    contract = CONTRACT_VERSION + 1

    def __init__(self, *_: object) -> None:
        raise AssertionError("an adapter of another version is refused before it is made")


def test_judge_adapter_of_later_contract_is_refused_in_one_line() -> None:
    ended = judge(f"--framework={HERE}:LaterContract", "-k", "automaton")
    assert ended.status == 2
    (line,) = [line for line in ended.lines if "contract" in line]
    assert f"got {CONTRACT_VERSION + 1}, want {CONTRACT_VERSION}; update the adapter" in line


def test_load_adapter_of_this_contract_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import frameworks.reference as r\n\nclass Mine(r.ReferenceFramework):\n    contract = {}\n"
    monkeypatch.syspath_prepend(tmp_path)
    for version in range(CONTRACT_VERSION + 1):
        (tmp_path / f"contract_{version}.py").write_text(source.format(version), "utf-8")
    assert load(f"contract_{CONTRACT_VERSION}:Mine").name == "reference"
    for version in range(CONTRACT_VERSION):
        with pytest.raises(UnknownFramework, match=f"got {version}, want {CONTRACT_VERSION}; update") as refusal:
            load(f"contract_{version}:Mine")
        assert len(str(refusal.value).splitlines()) == 1


def test_versioning_page_has_the_version_of_the_contract() -> None:
    assert f"    contract = {CONTRACT_VERSION}\n" in (ROOT / "docs" / "versioning.md").read_text("utf-8")
