"""The version of the contract that an adapter states."""

from pathlib import Path

import pytest

from frameworks.contract import CONTRACT_VERSION
from frameworks.registry import UnknownFramework, load


def test_load_adapter_of_this_contract_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import frameworks.reference as r\n\nclass Mine(r.ReferenceFramework):\n    contract = {}\n"
    monkeypatch.syspath_prepend(tmp_path)
    for version in range(CONTRACT_VERSION + 2):
        (tmp_path / f"contract_{version}.py").write_text(source.format(version), "utf-8")
    assert load(f"contract_{CONTRACT_VERSION}:Mine").name == "reference"
    for version in (*range(CONTRACT_VERSION), CONTRACT_VERSION + 1):
        with pytest.raises(UnknownFramework, match=f"got {version}, want {CONTRACT_VERSION}; update") as refusal:
            load(f"contract_{version}:Mine")
        assert len(str(refusal.value).splitlines()) == 1
