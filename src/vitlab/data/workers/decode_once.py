"""Whether decoded pictures are worth keeping, and where: in memory, on disk, or not at all, by their size, and said.

A cache must not change what comes out. So `auto` keeps nothing whose view, tried on some pictures, differs by a bit (a view that
decodes only what it needs of a JPEG does differ), and a file on disk is whole and verified or it is made again.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

import numpy as np

from vitlab.config.loader import CachePolicy, LoaderConfig
from vitlab.data.batch import Decode, Feed
from vitlab.data.files.cache import cache_folder
from vitlab.data.randomness import rng_of
from vitlab.data.source import Source
from vitlab.data.workers.decoded import DecodedSource, is_sound, write_decoded
from vitlab.data.workers.memory import memory_available, nameless_file
from vitlab.errors import ConfigError, DataError

if sys.platform != "win32":
    import fcntl

_SAMPLES = 16
_GIB = 2**30
_MOST_MEMORY = 4 * _GIB  # that `auto` takes, and not more than a quarter of what is available
_MOST_DISK = 64 * _GIB  # likewise
_UNFINISHED = ".unfinished"


def decode_once(source: Source, feed: Feed, config: LoaderConfig, *, ranks: int = 1) -> tuple[Source, str | None]:
    """The source to read from, decoded once where that is asked for or (`auto`) pays, and a sentence that says so."""
    if config.cache == "none" or (config.cache == "auto" and feed.decode is None):
        return source, None
    if feed.decode is None:
        raise ConfigError(f"cache={config.cache} needs to be told how to decode", hint="set cache=none")
    sample = _sampled(source, feed, feed.decode, config.seed, enough_if_useless=config.cache == "auto")
    size = f"{len(source):,} pictures, about {_bytes(sample.total)} decoded"
    where: CachePolicy = config.cache
    if config.cache == "auto":
        where, why = _choice(sample, config, ranks)
        if where == "none":
            return source, f"decoded pictures are not kept: {why}"
    elif config.cache == "memory" and sample.total > memory_available():
        raise DataError(
            f"cache=memory: {size}, but {_bytes(memory_available())} of memory are available", hint="set cache=disk or cache=none"
        )
    changed = "; views of decoded pictures differ in their pixels from views without this cache" if sample.differs else ""
    key = blake2b(f"{source.fingerprint()}\0{feed.settings}".encode(), digest_size=16).hexdigest()
    threads = max(1, config.workers)
    if where == "memory":
        with nameless_file() as file:
            write_decoded(source, feed.decode, file, key=key, threads=threads)
            return DecodedSource(file.fileno()), f"{size}, kept in memory{changed}"
    path = _folder(config) / f"{key}.pictures"
    try:
        again = _on_disk(path, source, feed.decode, threads)
    except OSError as error:
        said = f"cannot write {path}: {os.strerror(error.errno or 0)}"
        if config.cache == "auto":
            return source, f"decoded pictures are not kept: {said}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            said += f"; about {sample.total:,} bytes are needed and {shutil.disk_usage(path.parent).free:,} are free"
        raise DataError(said, hint="make room, name another cache_folder, or set cache=none") from error
    return DecodedSource(path), f"{size}, kept in {path}{again}{changed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    total: int  # bytes of all pictures decoded, estimated
    differs: bool  # whether a view of decoded pixels is another picture than a view of the file
    pixels: bool  # whether the source gives pixels anyway


def _sampled(source: Source, feed: Feed, decode: Decode, seed: int, *, enough_if_useless: bool) -> _Sample:
    """Some pictures, evenly spread, decoded and viewed both ways; or fewer, as soon as one shows that keeping is no use."""
    sizes: list[int] = []
    differs = pixels = False
    for index in np.unique(np.linspace(0, len(source) - 1, _SAMPLES).astype(np.int64)).tolist():
        try:
            example = source[index]
            decoded = replace(example, content=decode(example))
        except (DataError, OSError):
            continue  # the policy for corrupt pictures will meet it
        assert isinstance(decoded.content, np.ndarray)
        sizes.append(decoded.content.nbytes)
        pixels = pixels or not isinstance(example.content, bytes)
        for epoch in range(2):
            plain = feed.view(example, rng_of(seed, epoch, index))
            differs = differs or not np.array_equal(plain, feed.view(decoded, rng_of(seed, epoch, index)))
        if enough_if_useless and (pixels or differs):
            break
    return _Sample(total=round(float(np.mean(sizes or [0])) * len(source)), differs=differs, pixels=pixels)


def _choice(sample: _Sample, config: LoaderConfig, ranks: int) -> tuple[CachePolicy, str]:
    """Where `auto` keeps them: memory, disk or none; and why not, if none."""
    if sample.pixels:
        return "none", "the source has them decoded"
    if sample.differs:
        return "none", "the view decodes only what it needs of a picture, so keeping all of it would change its pixels"
    # Ranks of one machine each keep their own in memory, and share one file on disk.
    memory = min(_MOST_MEMORY, memory_available() // 4) / ranks
    if sample.total <= memory:
        return "memory", ""
    disk = min(_MOST_DISK, shutil.disk_usage(_existing(_folder(config))).free // 4)
    if sample.total <= disk:
        return "disk", ""
    return "none", f"about {_bytes(sample.total)}, more than {_bytes(memory)} of memory or {_bytes(disk)} of disk"


def _folder(config: LoaderConfig) -> Path:
    return cache_folder() / "decoded" if config.cache_folder is None else Path(config.cache_folder).expanduser()


def _existing(folder: Path) -> Path:
    return next(place for place in (folder.absolute(), *folder.absolute().parents) if place.is_dir())


def _on_disk(path: Path, source: Source, decode: Decode, threads: int) -> str:
    """See that the file is there and sound, making it where it is not; what to add to the note."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path):
        if is_sound(path):
            return ", found and verified"
        damaged = path.exists()
        for left in path.parent.glob(f"{path.name}.*{_UNFINISHED}"):  # by a writer that was killed: we hold the lock
            left.unlink()
        unfinished = path.with_name(f"{path.name}.{os.getpid()}{_UNFINISHED}")
        try:
            with unfinished.open("xb") as file:
                write_decoded(source, decode, file, key=path.stem, threads=threads)
                os.fsync(file.fileno())
            unfinished.replace(path)
            _sync(path.parent)
        finally:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
        return ", made again because it was damaged" if damaged else ""


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold others off while the file is checked and made: the second rank waits and then finds it."""
    if sys.platform == "win32":
        yield
        return
    with path.with_name(f".{path.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the file, also by the death of the process
        yield


def _sync(folder: Path) -> None:
    if sys.platform == "win32":  # a folder cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _bytes(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
