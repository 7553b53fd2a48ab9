"""Templates, styles and scripts of pages, and the content security policy that allows them alone."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache, partial
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined


@cache
def asset(package: str, name: str) -> str:
    """A file of a package's folder `templates`."""
    return files(package).joinpath("templates", name).read_text("utf-8")


@cache
def environment(package: str) -> Environment:
    """The templates of a package, which escape every text."""
    return Environment(
        loader=FunctionLoader(partial(asset, package)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def policy(style: str, scripts: Sequence[str]) -> str:
    """A policy under which a page makes no request and runs these scripts and styles alone."""
    allowed = " ".join(map(_hash, scripts)) or "'none'"
    return (
        f"default-src 'none'; script-src {allowed}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode('utf-8')).digest()).decode('ascii')}'"
