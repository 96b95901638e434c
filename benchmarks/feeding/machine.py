"""What machine is this, and what stands on it?"""

from __future__ import annotations

import os
import platform
from pathlib import Path


def machine() -> dict[str, str | int | float]:
    """Processor, cores that this process may use, memory, kernel, Python."""
    about = Path("/proc/cpuinfo").read_text()
    models = [line.partition(":")[2].strip() for line in about.splitlines() if "model name" in line]
    memory = Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0]
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(int(memory) / 1e6, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
    }
