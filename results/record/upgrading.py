"""Records of earlier versions of the schema as documents of the present one.

Version 1 had observations, measurements, traces and tensors in objects by a name that clause, key and case were glued
into ("CLAUSE/KEY/CASE", "KEY/CASE"), and some measured and expected numbers as their text.
"""

from __future__ import annotations

import re
from typing import Any

from results.record.values import as_number

_PLAIN = re.compile(r"/(test_\w+)\Z")
_WITH_CASE = re.compile(r"/(test_\w+\[.*\])\Z", re.DOTALL)
"""Takes linear time where the name ends in "]"; of others it is not asked."""


def upgrade(document: dict[str, Any]) -> dict[str, Any]:
    """The document of version 2 of a record of version 1, which stays as it is.

    Raises:
        ValueError: it is no record of version 1.
    """
    try:
        return {
            **document,
            "schema_version": 2,
            "verdicts": [_verdict(verdict) for verdict in document["verdicts"]],
            "observations": _sorted(_observation(*item) for item in document["observations"].items()),
            "measurements": _sorted({**_place(name), **each} for name, each in document["measurements"].items()),
            "traces": _sorted({**_place(name), "curves": each} for name, each in document["traces"].items()),
            "tensors": _sorted({**_place(name), "arrays": each} for name, each in document.get("tensors", {}).items()),
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"no record of version 1 ({type(error).__name__}: {error})") from None


def _verdict(verdict: dict[str, Any]) -> dict[str, Any]:
    return {**verdict, "checks": [_check(check) for check in verdict["checks"]]}


def _check(check: dict[str, Any]) -> dict[str, Any]:
    texts = {name: check[name] for name in ("measured", "expected") if isinstance(check.get(name), str)}
    return {**check, **{name: as_number(text) for name, text in texts.items() if text not in ("inf", "-inf", "nan")}}


def _observation(name: str, value: Any) -> dict[str, Any]:
    clause, _, rest = name.partition("/")
    return {"clause": clause, **_place(rest), "value": value}


def _place(name: str) -> dict[str, str]:
    """The key and the case of a glued name: a test's at its end, else what follows the first "/", as of scenarios."""
    test = (_WITH_CASE if name.endswith("]") else _PLAIN).search(name)
    key, case = (name[: test.start()], test[1]) if test else name.partition("/")[::2]
    return {"key": key, "case": case} if key and case else {"key": name, "case": ""}


def _sorted(parts: Any) -> list[dict[str, Any]]:
    return sorted(parts, key=lambda part: (str(part.get("clause", "")), part["key"], part["case"]))
