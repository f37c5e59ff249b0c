"""Training on a CPU: keep freed memory in the process.

An update frees hundreds of megabytes and the next one asks for them again. glibc gives large blocks back to the system each time,
which clears every page of them once more: 11 to 15 % of the time of a ViT-Ti/16 with 64 images of 224 px a batch.
"""

from __future__ import annotations

import ctypes
import platform
import sys

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # names of mallopt's parameters, from malloc.h
_NEVER, _NONE = -1, 0


def keep_memory() -> bool:
    """Let this process keep the memory it frees, for its next allocation; whether that could be asked for.

    It holds for the whole process from then on and changes no number. Where the C library is not glibc nothing is asked.
    """
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return False
    library = ctypes.CDLL(None)
    return bool(library.mallopt(_TRIM_THRESHOLD, _NEVER) and library.mallopt(_MMAP_MAX, _NONE))
