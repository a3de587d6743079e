"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def facts(postgres: str) -> dict[str, str]:
    """By name, for the head of a report."""
    return {
        "cores": str(os.cpu_count()),
        "CPU": _first("/proc/cpuinfo", "model name") or platform.processor() or "unknown",
        "memory": _memory(),
        "system": f"{platform.system()} {platform.release()}",
        "PostgreSQL": f"{postgres}, embedded, default settings and durability",
    }


def _memory() -> str:
    kilobytes = _first("/proc/meminfo", "MemTotal").removesuffix(" kB")
    return f"{int(kilobytes) / 1024**2:.1f} GiB" if kilobytes else "unknown"


def _first(path: str, name: str) -> str:
    """The value after the first ``name:`` of a file under /proc; empty where there is none."""
    if Path(path).exists():
        for line in Path(path).read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""
