"""What has a version of its own: an adapter that is written for another version of the contract is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from frameworks.contract import CONTRACT_VERSION
from frameworks.registry import UnknownFramework, load
from tests.support.suite_runs import ROOT, judge

HERE = "tests.adapters.test_versioning"


class OfAnotherContract:
    """An adapter that says so."""

    contract = CONTRACT_VERSION + 1

    def __init__(self, *_: object) -> None:
        raise AssertionError("it is refused before it is made")


def test_an_adapter_of_another_contract_is_refused_in_one_line() -> None:
    ended = judge(f"--framework={HERE}:OfAnotherContract", "-k", "automaton")
    assert ended.status == 2
    (line,) = [line for line in ended.lines if "contract" in line]
    assert f"got {CONTRACT_VERSION + 1}, want {CONTRACT_VERSION}; update the adapter" in line


def test_an_adapter_of_this_contract_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "from frameworks.reference import ReferenceFramework\n\n\nclass Mine(ReferenceFramework):\n    contract = {}\n"
    )
    for name, version in (("current", CONTRACT_VERSION), ("older", CONTRACT_VERSION - 1)):
        (tmp_path / f"contract_{name}.py").write_text(source.format(version), "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert load("contract_current:Mine").name == "reference"
    with pytest.raises(UnknownFramework, match=f"got {CONTRACT_VERSION - 1}, want {CONTRACT_VERSION}; "):
        load("contract_older:Mine")


def test_the_page_says_which_version_the_contract_has() -> None:
    assert f"    contract = {CONTRACT_VERSION}\n" in (ROOT / "docs" / "versioning.md").read_text("utf-8")
