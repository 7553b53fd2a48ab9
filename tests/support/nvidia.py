"""Fakes of NVIDIA's driver: a libcuda.so.1 of machine code and an nvidia-smi, first on the paths of a process."""

from __future__ import annotations

import os
import platform
import struct
from collections.abc import Mapping
from pathlib import Path

_X86 = platform.machine() in ("x86_64", "AMD64")


def _returns(value: int) -> bytes:
    """A function that returns a number."""
    if _X86:  # mov eax, value; ret
        return b"\xb8" + struct.pack("<I", value) + b"\xc3"
    return struct.pack("<II", 0x52800000 | (value & 0xFFFF) << 5, 0xD65F03C0)  # mov w0, #value; ret


def _stores(value: int) -> bytes:
    """A function that writes a number to the address of its first argument, and returns 0."""
    if _X86:  # mov dword [rdi], value; xor eax, eax; ret
        return b"\xc7\x07" + struct.pack("<I", value) + b"\x31\xc0\xc3"
    words = (0x52800001 | (value & 0xFFFF) << 5, 0xB9000001, 0x52800000, 0xD65F03C0)
    return struct.pack("<4I", *words)  # mov w1, #value; str w1, [x0]; mov w0, #0; ret


CRASH = b"\x0f\x0b" if _X86 else struct.pack("<I", 0)
"""An instruction that does not exist."""


def libcuda(version: int = 13000, gpus: int = 1, status: int = 0) -> dict[str, bytes]:
    """Functions of a library whose `cuInit` returns a status."""
    return {"cuInit": _returns(status), "cuDriverGetVersion": _stores(version), "cuDeviceGetCount": _stores(gpus)}


def write_library(path: Path, functions: Mapping[str, bytes]) -> None:
    """Writes a shared object of 64 bits with these functions and nothing else."""
    strings, symbols, code = b"\0", struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0), b""
    base = 0x1000
    for name, body in functions.items():
        code += b"\0" * (-len(code) % 16)
        symbols += struct.pack("<IBBHQQ", len(strings), 0x12, 0, 1, base + len(code), len(body))
        strings += name.encode() + b"\0"
        code += body
    count = 1 + len(functions)
    table = struct.pack(f"<II{1 + count}I", 1, count, 1, 0, *range(2, count), 0)  # one chain of all symbols
    hash_at = 64 + 3 * 56
    symbols_at = hash_at + len(table) + (-len(table) % 8)
    strings_at = symbols_at + len(symbols)
    dynamic_at = strings_at + len(strings) + (-(strings_at + len(strings)) % 8)
    entries = ((4, hash_at), (5, strings_at), (6, symbols_at), (10, len(strings)), (11, 24), (0, 0))
    dynamic = b"".join(struct.pack("<QQ", *each) for each in entries)
    data = dynamic_at + len(dynamic)
    segments = (
        struct.pack("<IIQQQQQQ", 1, 6, 0, 0, 0, data, data, 0x1000),
        struct.pack("<IIQQQQQQ", 1, 5, base, base, base, len(code), len(code), 0x1000),
        struct.pack("<IIQQQQQQ", 2, 4, dynamic_at, dynamic_at, dynamic_at, len(dynamic), len(dynamic), 8),
    )
    machine = 62 if _X86 else 183
    head = (
        b"\x7fELF\x02\x01\x01"
        + b"\0" * 9
        + struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, len(segments), 64, 0, 0)
    )
    content = head + b"".join(segments) + table
    content = content.ljust(symbols_at, b"\0") + symbols + strings
    content = content.ljust(dynamic_at, b"\0") + dynamic
    path.write_bytes(content.ljust(base, b"\0") + code)


def write_program(folder: Path, text: str) -> None:
    """Writes an nvidia-smi, a shell script."""
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def first_on_paths(folder: Path) -> dict[str, str]:
    """Variables that put a folder first on the loader's path and on PATH."""
    return {"LD_LIBRARY_PATH": str(folder), "PATH": os.pathsep.join((str(folder), os.environ["PATH"]))}
