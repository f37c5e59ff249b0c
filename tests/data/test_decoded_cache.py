"""The cache of decoded images: the same batches with and without it, complete files or none, and a note."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import re
import sys
import textwrap
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np
import pytest

from tests import processes
from tests.data.stamps import SHAPE, Counting, Stamps, decode, stamp
from tests.data.test_loader import assert_same, taken
from vitlab.config.data import CachePolicy, LoaderConfig
from vitlab.data import loader as keeping
from vitlab.data.batch import Decode, Pipeline
from vitlab.data.dataset import Dataset, Pixels, RawSample
from vitlab.data.loader import DecodedDataset, Loader, cache_decoded, is_sound, write_decoded
from vitlab.errors import ConfigError, DataError
from vitlab.io.machine import nameless_file

SOURCE = Stamps(count=100)


def config(cache: CachePolicy, folder: Path, *, workers: int = 0) -> LoaderConfig:
    return LoaderConfig(batch_size=8, workers=workers, seed=5, cache=cache, cache_folder=str(folder))


def pipeline(decoder: Decode = decode, settings: str = "full size") -> Pipeline:
    return Pipeline(transform=stamp, shape=SHAPE, decode=decoder, settings=settings)


def made(cache: CachePolicy, folder: Path, *, workers: int = 0, dataset: Dataset = SOURCE, decoder: Decode = decode) -> Loader:
    return Loader(dataset, pipeline(decoder), config=config(cache, folder, workers=workers), train=True)


def only_file(folder: Path) -> Path:
    (file,) = folder.glob("*.images")
    return file


@pytest.mark.parametrize("cache", ["memory", "disk"])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_the_same_with_and_without_a_cache(cache: CachePolicy, workers: int, tmp_path: Path) -> None:
    cached = made(cache, tmp_path, workers=workers)
    assert isinstance(cached.dataset, DecodedDataset)
    assert_same(taken(cached, 30), taken(made("none", tmp_path), 30))


@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_each_image_is_decoded_once_for_all_epochs(cache: CachePolicy, tmp_path: Path) -> None:
    counting = Counting()
    cached = made(cache, tmp_path, decoder=counting)
    sampled = sum(counting.decoded.values()) - 100
    taken(cached, 50)
    assert sum(counting.decoded.values()) == 100 + sampled
    assert 0 < sampled <= 16


def test_a_file_on_disk_serves_the_next_run_too(tmp_path: Path) -> None:
    made("disk", tmp_path)
    counting = Counting()
    again = made("disk", tmp_path, decoder=counting)
    assert sum(counting.decoded.values()) <= 16
    assert "found and verified" in again.notes[0]
    assert_same(taken(again, 30), taken(made("none", tmp_path), 30))


def test_other_images_or_another_way_of_decoding_is_another_file(tmp_path: Path) -> None:
    made("disk", tmp_path)
    made("disk", tmp_path, dataset=Stamps(count=100, version="2"))
    Loader(SOURCE, pipeline(settings="half size"), config=config("disk", tmp_path), train=True)
    assert len(list(tmp_path.glob("*.images"))) == 3


def test_everything_about_an_image_is_kept(tmp_path: Path) -> None:
    for dataset in (Stamps(count=9, multi_label=True), Stamps(count=9, broken=frozenset({4}))):
        cached, _ = cache_decoded(dataset, pipeline(), config("disk", tmp_path))
        assert isinstance(cached, DecodedDataset)
        assert (len(cached), cached.labels, cached.multi_label) == (len(dataset), dataset.labels, dataset.multi_label)
        for index in set(range(9)) - dataset.broken:
            assert (cached.read(index).name, cached.read(index).label) == (dataset.read(index).name, dataset.read(index).label)
            assert cached.label(index) == dataset.label(index)
            np.testing.assert_array_equal(cached.read(index).content, decode(dataset.read(index)))
        with pytest.raises(IndexError):
            cached.read(9)


def test_images_of_different_sizes_and_grey_ones_are_kept_as_they_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (3 + index, 9 - index, 1 + index % 3), np.uint8) for index in range(8)]
    path = tmp_path / "file"
    with path.open("wb") as file:
        write_decoded(Stamps(count=8), lambda sample: images[int(sample.name[6:-4])], file, key="k", threads=3)
    cached = DecodedDataset(path)
    for index, image in enumerate(images):
        np.testing.assert_array_equal(cached.read(index).content, image)


def test_corrupt_images_are_met_as_without_a_cache(tmp_path: Path) -> None:
    dataset = Stamps(count=100, broken=frozenset({4, 30}), missing=frozenset({11}))

    def skipping(cache: CachePolicy, train: bool) -> Loader:
        settings = replace(config(cache, tmp_path), corrupt="skip", corrupt_budget=0.1)
        return Loader(dataset, pipeline(), config=settings, train=train)

    for train in (True, False):
        plain, cached = taken(skipping("none", train), 12), taken(skipping("memory", train), 12)
        assert sum(len(batch.failed) for batch in plain) == 3
        for one, other in zip(plain, cached, strict=True):
            np.testing.assert_array_equal(one.images_BHWC, other.images_BHWC)
            assert [failure.index for failure in one.failed] == [failure.index for failure in other.failed]
            assert [failure.replaced_by for failure in one.failed] == [failure.replaced_by for failure in other.failed]


@pytest.mark.parametrize("place", [0, 100, 400, 700, -70, -60, -30, -1])
def test_a_file_with_one_wrong_byte_is_made_again_and_said(place: int, tmp_path: Path) -> None:
    made("disk", tmp_path)
    path = only_file(tmp_path)
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    assert not is_sound(path)
    again = made("disk", tmp_path)
    assert "made again because it was damaged" in again.notes[0]
    assert is_sound(path)
    assert_same(taken(again, 5), taken(made("none", tmp_path), 5))


@pytest.mark.parametrize("length", [0, 1, 63, 64, 700, -1])
def test_a_file_cut_short_is_made_again(length: int, tmp_path: Path) -> None:
    made("disk", tmp_path)
    path = only_file(tmp_path)
    path.write_bytes(path.read_bytes()[:length])
    assert not is_sound(path)
    made("disk", tmp_path)
    assert is_sound(path)


class StoppedError(Exception):
    """As if the process had been killed."""


def test_a_writer_that_is_stopped_leaves_no_file_under_the_name(tmp_path: Path) -> None:
    def decoder(sample: RawSample) -> Pixels:
        if sample.name == "stamp-90.png":
            raise StoppedError
        return decode(sample)

    with pytest.raises(StoppedError):
        made("disk", tmp_path, decoder=decoder)
    assert [entry.name for entry in tmp_path.iterdir() if not entry.name.endswith(".lock")] == []


def test_what_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    made("disk", tmp_path)
    path = only_file(tmp_path)
    left = path.with_name(f"{path.name}.12345.unfinished")
    path.rename(left)
    made("disk", tmp_path)
    assert not left.exists()
    assert is_sound(path)


def test_a_full_disk_is_reported_with_bytes_and_leaves_nothing(tmp_path: Path, checkout: Path) -> None:
    code = f"""
        import resource
        from pathlib import Path
        from tests.data.test_decoded_cache import made
        from vitlab.errors import DataError

        resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))
        try:
            made("disk", Path({str(tmp_path)!r}))
        except DataError as error:
            print(error)
    """
    done = processes.run([sys.executable, "-c", textwrap.dedent(code)], cwd=checkout)
    assert re.search(r"File too large; about 800 bytes are needed and [\d,]+ are free", done.stdout)
    assert [entry for entry in tmp_path.iterdir() if not entry.name.endswith(".lock")] == []


def full_disk(dataset: Dataset, decoder: Decode, file: IO[bytes], *, key: str, threads: int) -> None:
    file.write(b"the beginning")
    raise OSError(errno.ENOSPC, "No space left on device")


def test_auto_continues_without_a_file_it_cannot_write_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "_MOST_MEMORY", 0)
    monkeypatch.setattr(keeping, "write_decoded", full_disk)
    loader = made("auto", tmp_path)
    assert loader.dataset is SOURCE
    assert "not cached: cannot write" in loader.notes[0]
    assert "No space left" in loader.notes[0]


def test_two_ranks_at_once_make_one_file(tmp_path: Path) -> None:
    counting = Counting()
    ranks = [threading.Thread(target=made, args=("disk", tmp_path), kwargs={"decoder": counting}) for _ in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(processes.LIMIT)
    assert 100 <= sum(counting.decoded.values()) <= 100 + 2 * 16


@pytest.mark.parametrize(
    ("memory", "disk", "where"),
    [(10**9, 10**9, "in memory"), (100, 10**9, "cached in /"), (100, 100, "not cached: about 800")],
)
def test_auto_chooses_by_size_and_says_which(
    memory: int, disk: int, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "_MOST_MEMORY", memory)
    monkeypatch.setattr(keeping, "_MOST_DISK", disk)
    loader = made("auto", tmp_path)
    assert where in loader.notes[0]
    assert_same(taken(loader, 5), taken(made("none", tmp_path), 5))


def test_auto_takes_less_memory_where_ranks_share_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "_MOST_MEMORY", 1000)
    assert "in memory" in (cache_decoded(SOURCE, pipeline(), config("auto", tmp_path), ranks=1)[1] or "")
    assert "in memory" not in (cache_decoded(SOURCE, pipeline(), config("auto", tmp_path), ranks=2)[1] or "")


def test_auto_keeps_nothing_where_that_would_change_a_pixel(tmp_path: Path) -> None:
    def darker(sample: RawSample) -> Pixels:
        return decode(sample) // 2

    loader = made("auto", tmp_path, decoder=darker)
    assert loader.dataset is SOURCE
    assert "would change its pixels" in loader.notes[0]
    assert "pixels of batches differ" in made("memory", tmp_path, decoder=darker).notes[0]


@dataclass(frozen=True, kw_only=True)
class Decoded(Stamps):
    """A source that has pixels."""

    def read(self, index: int) -> RawSample:
        return replace(super().read(index), content=decode(super().read(index)))


def test_auto_keeps_nothing_that_is_decoded_already(tmp_path: Path) -> None:
    loader = made("auto", tmp_path, dataset=Decoded(count=20))
    assert isinstance(loader.dataset, Decoded)
    assert "the dataset holds pixels already" in loader.notes[0]


def test_without_a_decoder_auto_keeps_nothing_and_the_others_are_refused(tmp_path: Path) -> None:
    plain = Pipeline(transform=stamp, shape=SHAPE)
    assert Loader(SOURCE, plain, config=config("auto", tmp_path), train=True).notes == ()
    with pytest.raises(ConfigError, match="cache=disk needs a pipeline that decodes"):
        Loader(SOURCE, plain, config=config("disk", tmp_path), train=True)


def test_more_than_the_memory_there_is_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "memory_available", lambda: 100)
    with pytest.raises(DataError, match=r"about 800 bytes decoded, but only 100 bytes of memory are available"):
        made("memory", tmp_path)


def test_kept_pixels_cannot_be_written_to(tmp_path: Path) -> None:
    cached = made("memory", tmp_path).dataset
    content = cached.read(3).content
    assert isinstance(content, np.ndarray)
    with pytest.raises(ValueError, match="read-only"):
        content[0] = 0


def test_a_kept_dataset_travels_as_its_place_and_closes_what_it_opened() -> None:
    with nameless_file() as file:
        write_decoded(SOURCE, decode, file, key="k", threads=1)
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        first = DecodedDataset(file.fileno())
    sent = pickle.dumps(first)
    assert len(sent) < 200
    second = pickle.loads(sent)
    del first
    gc.collect()
    np.testing.assert_array_equal(second.read(42).content, decode(SOURCE.read(42)))
    del second
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) < before  # noqa: PTH208


def test_what_is_no_file_of_images_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 1000)
    with pytest.raises(DataError, match="not a file of decoded images"):
        DecodedDataset(path)
