"""Addresses of object storage and of web servers: `s3://bucket/key`, `gs://`, `az://`, `http(s)://`, `hf://`.

An address prints without its secrets (`user:password@`, the values of a query). io/remote.py reads and writes what is there.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from vitlab.errors import StorageError, masked

_ADDRESS = re.compile(r"(s3|gs|gcs|az|abfs|abfss|https?|hf|memory)://", re.IGNORECASE)
_WEB = ("http", "https")
_KNOWN: dict[str, str] = {}  # printed form -> the address with its secret, for a run that opens again what it was given


def is_address(value: object) -> bool:
    """Whether this names something in object storage or on a web server."""
    return isinstance(value, Address) or (isinstance(value, str) and _ADDRESS.match(value) is not None)


@dataclass(frozen=True, slots=True)
class Address:
    """One address. `text` has its secrets; `str()` does not. Make it with `address_of`."""

    text: str

    @property
    def scheme(self) -> str:
        """`s3`, `gs`, `az`, `http`, `https`, `hf`, ..."""
        return self.text.partition("://")[0].lower()

    @property
    def path(self) -> str:
        """The address without its query."""
        return self.text.partition("?")[0] if self.scheme in _WEB else self.text

    @property
    def name(self) -> str:
        """The last word of the path."""
        return self.path.rstrip("/").rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The ending of the name, with its dot."""
        return os.path.splitext(self.name)[1]  # noqa: PTH122 (this is no path)

    @property
    def parent(self) -> Address:
        """The folder around it; the query stays."""
        return self._with(self.path.rstrip("/").rpartition("/")[0])

    @property
    def is_folder(self) -> bool:
        """Whether it is written as a folder, with a slash at its end."""
        return self.path.endswith("/")

    @property
    def as_folder(self) -> Address:
        """The same with a slash at its end."""
        return self._with(self.path.rstrip("/") + "/")

    def __truediv__(self, name: str) -> Address:
        return self._with(f"{self.path.rstrip('/')}/{name}")

    def _with(self, path: str) -> Address:
        return Address(path + self.text[len(self.path) :])

    def __str__(self) -> str:
        return _shown(self.text)


_shown = lru_cache(maxsize=4096)(masked)  # the name of each image begins with it

Place = Path | Address
"""Where data is: on disk or at an address."""


def address_of(value: str | Address) -> Address:
    """The address that a text spells; StorageError for credentials in an address that does not carry them.

    In one process, the printed form of an address with a secret means that address again.
    """
    if isinstance(value, Address):
        return value
    text = _KNOWN.get(value, value)
    address = Address(text)
    user, at, _ = text.partition("://")[2].partition("/")[0].rpartition("@")
    if at and address.scheme not in _WEB and (":" in user or not address.scheme.startswith("abfs")):  # abfs://container@account
        raise StorageError(
            f"{address} holds credentials, which do not belong in an address of {address.scheme}",
            hint="put them into the environment or into the file of the cloud's own tool, as docs/guides/storage.md says",
        )
    if "***" in text:
        raise StorageError(f"{address} is an address whose secret was not stored", hint="give the address again, with its secret")
    if str(address) != text:
        _KNOWN[str(address)] = text
    return address


def place_of(value: str | os.PathLike[str] | Address) -> Place:
    """The address that is given, or the path on disk."""
    if isinstance(value, Address):
        return value
    text = os.fspath(value)
    return address_of(text) if is_address(text) else Path(text)
