"""The loader: the same bits for any number of workers, resume point and rank; nothing is lost or counted twice."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.stamps import (
    SHAPE,
    Counting,
    Marking,
    MistakeAt,
    OneByOne,
    Slow,
    Stamps,
    as_it_is,
    decode,
    numbers,
    plain,
    stamp,
    thread_settings,
)
from tests.processes import eventually
from vitlab.config.data import LoaderConfig, SyntheticConfig, WorkerKind
from vitlab.data.batch import Batch, Pipeline, Transform
from vitlab.data.loader import Loader
from vitlab.data.sampler import Share
from vitlab.data.synthetic import SyntheticDataset
from vitlab.errors import ConfigError, DataError

CONFIG = LoaderConfig(batch_size=8, workers=0, seed=5, cache="none")
POOLS: list[tuple[int, WorkerKind]] = [(0, "process"), (1, "process"), (2, "process"), (4, "process"), (1, "thread"), (3, "thread")]


def loader(
    dataset: Stamps,
    config: LoaderConfig = CONFIG,
    *,
    view: Transform = stamp,
    train: bool = True,
    share: Share = Share(),  # noqa: B008
) -> Loader:
    return Loader(dataset, Pipeline(transform=view, shape=SHAPE), config=config, train=train, share=share)


def taken(made: Loader, count: int, position: int = 0) -> list[Batch]:
    with made.batches(position) as stream:
        return [next(stream) for _ in range(count)]


def assert_same(ours: list[Batch], theirs: list[Batch]) -> None:
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one.images_BHWC.dtype == other.images_BHWC.dtype == np.uint8
        np.testing.assert_array_equal(one.images_BHWC, other.images_BHWC)
        np.testing.assert_array_equal(one.labels, other.labels)
        np.testing.assert_array_equal(one.index_B, other.index_B)
        assert (one.epoch, one.position, one.failed) == (other.epoch, other.position, other.failed)


def union(parts: list[Batch]) -> Batch:
    """The batch that the parts of all ranks make."""
    first = parts[0]
    assert len({(part.epoch, part.position) for part in parts}) == 1
    return replace(
        first,
        images_BHWC=np.concatenate([part.images_BHWC for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        index_B=np.concatenate([part.index_B for part in parts]),
        failed=tuple(failure for part in parts for failure in part.failed),
    )


# Workers, resume, ranks


@pytest.mark.parametrize(("workers", "kind"), POOLS[1:])
def test_any_number_of_workers_gives_the_same_batches(workers: int, kind: WorkerKind) -> None:
    dataset = Stamps(count=37, broken=frozenset({4, 30}), missing=frozenset({11}))
    config = replace(CONFIG, batch_size=24, corrupt="skip", corrupt_budget=0.5)
    pooled = replace(config, workers=workers, worker_kind=kind)
    assert_same(taken(loader(dataset, pooled), 7), taken(loader(dataset, config), 7))
    whole = list(loader(dataset, config, train=False))
    assert_same(list(loader(dataset, pooled, train=False)), whole)


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_repeats_and_weights_too_are_the_same_with_workers(kind: WorkerKind) -> None:
    config = replace(CONFIG, batch_size=24, repeats=3, balance=0.5)
    assert_same(
        taken(loader(Stamps(count=37), replace(config, workers=2, worker_kind=kind)), 4), taken(loader(Stamps(count=37), config), 4)
    )


def test_a_dataset_that_makes_many_images_at_once_gives_those_it_makes_one_by_one() -> None:
    whole = SyntheticDataset(SyntheticConfig(classes=5, samples_per_class=6, image_size=(16, 16), channels=3))
    pipeline = Pipeline(transform=as_it_is, shape=(16, 16, 3))
    for train in (True, False):
        alone = Loader(OneByOne(whole), pipeline, config=CONFIG, train=train)
        assert_same(taken(Loader(whole, pipeline, config=CONFIG, train=train), 4), taken(alone, 4))
        assert_same(taken(Loader(whole, pipeline, config=replace(CONFIG, workers=2), train=train), 4), taken(alone, 4))
    with pytest.raises(DataError, match=r"image \d+: the transform returned 16x16x3"):
        next(Loader(whole, replace(pipeline, shape=(8, 8, 3)), config=CONFIG, train=True).batches())


@given(count=st.integers(1, 40), batch=st.integers(1, 16), skipped=st.integers(0, 12), seed=st.integers(0, 2**64 - 1))
@settings(max_examples=50, deadline=None)
def test_a_stream_resumed_anywhere_continues_as_if_never_stopped(count: int, batch: int, skipped: int, seed: int) -> None:
    made = loader(Stamps(count=count), replace(CONFIG, batch_size=batch, seed=seed))
    whole = taken(made, skipped + 3)
    position = whole[skipped - 1].position if skipped else 0
    assert position == skipped * batch
    assert_same(taken(made, 3, position), whole[skipped:])


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_seven_batches_and_thirteen_more_after_a_resume_are_twenty(workers: int) -> None:
    whole = taken(loader(Stamps(count=37)), 20)
    made = loader(Stamps(count=37), replace(CONFIG, workers=workers))
    first = taken(made, 7)
    assert_same([*first, *taken(made, 13, first[-1].position)], whole)


def test_a_resume_reads_nothing_of_what_it_skips() -> None:
    read = Counting()
    made = loader(Stamps(count=1000), view=lambda sample, rng: (read(sample), stamp(sample, rng))[1])
    taken(made, 1, position=800)
    assert sum(read.decoded.values()) == CONFIG.batch_size


def test_a_resume_may_change_the_batch_size() -> None:
    small = taken(loader(Stamps(count=37)), 6)
    large = taken(loader(Stamps(count=37), replace(CONFIG, batch_size=16)), 2, position=16)
    np.testing.assert_array_equal(
        np.concatenate([batch.images_BHWC for batch in small[2:]]), np.concatenate([batch.images_BHWC for batch in large])
    )


@given(
    count=st.integers(1, 40),
    each=st.integers(1, 6),
    ranks=st.integers(1, 4),
    position=st.integers(0, 100),
    broken=st.sets(st.integers(0, 39), max_size=2),
)
@settings(max_examples=50, deadline=None)
def test_the_ranks_together_have_the_batch_of_one(count: int, each: int, ranks: int, position: int, broken: set[int]) -> None:
    config = replace(CONFIG, batch_size=each * ranks, corrupt="skip", corrupt_budget=0.99)
    # So many whole ones beside the broken that eight substitutes in a row are never all broken.
    dataset = Stamps(count=count + 20 * len(broken), broken=frozenset(broken))
    alone = taken(loader(dataset, config), 4, position)
    parts = [taken(loader(dataset, config, share=Share(rank=rank, ranks=ranks)), 4, position) for rank in range(ranks)]
    assert_same([union(list(step)) for step in zip(*parts, strict=True)], alone)


@given(count=st.integers(1, 40), batch=st.integers(1, 12), ranks=st.integers(1, 4))
@settings(max_examples=50, deadline=None)
def test_the_ranks_together_evaluate_every_image_once(count: int, batch: int, ranks: int) -> None:
    config = replace(CONFIG, batch_size=batch)
    alone = list(loader(Stamps(count=count), config, train=False))
    parts = [list(loader(Stamps(count=count), config, train=False, share=Share(rank=r, ranks=ranks))) for r in range(ranks)]
    assert_same([union(list(step)) for step in zip(*parts, strict=True)], alone)
    assert [number for step in alone for number in numbers(step.images_BHWC)] == list(range(count))
    assert len(alone) == len(loader(Stamps(count=count), config, train=False))


def test_a_rank_with_nothing_left_to_do_still_has_its_batch() -> None:
    config = replace(CONFIG, workers=2)
    last = list(loader(Stamps(count=9), config, train=False, share=Share(rank=0, ranks=2)))[-1]
    assert last.images_BHWC.shape == (0, *SHAPE)
    assert last.position == 9


# What a batch is


def test_every_epoch_shows_every_image_once_although_batches_straddle_epochs() -> None:
    rows = np.concatenate([batch.index_B for batch in taken(loader(Stamps(count=37)), 37)])
    epochs = rows.reshape(8, 37)
    assert np.array_equal(np.sort(epochs, axis=1), np.tile(np.arange(37), (8, 1)))
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 8


def test_a_batch_may_be_larger_than_the_dataset() -> None:
    batch = taken(loader(Stamps(count=3)), 1)[0]
    assert np.bincount(batch.index_B).tolist() == [3, 3, 2] or sorted(np.bincount(batch.index_B)) == [2, 3, 3]
    assert taken(loader(Stamps(count=3)), 2)[1].epoch == 2


def test_rows_labels_and_indices_belong_together() -> None:
    batch = taken(loader(Stamps(count=37)), 1, position=20)[0]
    assert numbers(batch.images_BHWC) == batch.index_B.tolist()
    assert batch.labels.dtype == np.int64
    assert batch.labels.tolist() == [index % 3 for index in batch.index_B]


def test_several_classes_become_a_row_of_zeros_and_ones() -> None:
    batch = next(iter(loader(Stamps(count=8, multi_label=True), train=False)))
    assert batch.labels.dtype == np.float32
    assert batch.labels.tolist() == [[index >> code & 1 for code in range(3)] for index in range(8)]


def test_an_image_looks_different_in_another_epoch_and_under_another_seed_but_not_in_another_batch() -> None:
    def randomness(config: LoaderConfig, epoch: int) -> bytes:
        made = loader(Stamps(count=16), config)
        for batch in taken(made, 16 // config.batch_size, epoch * 16):
            for row in np.flatnonzero(batch.index_B == 3):
                return batch.images_BHWC[row, ..., 1].tobytes()
        raise AssertionError("every epoch shows every image")

    assert randomness(CONFIG, 0) == randomness(replace(CONFIG, batch_size=4), 0)
    assert len({randomness(CONFIG, 0), randomness(CONFIG, 1), randomness(replace(CONFIG, seed=6), 0)}) == 3


def test_repeats_of_an_image_are_in_one_batch_and_augmented_differently() -> None:
    batch = taken(loader(Stamps(count=37), replace(CONFIG, batch_size=12, repeats=3)), 1)[0]
    assert np.all(batch.index_B.reshape(4, 3) == batch.index_B[::3, None])
    assert len({row.tobytes() for row in batch.images_BHWC}) == 12


def test_balance_shows_rare_classes_as_often_as_common_ones() -> None:
    dataset = Stamps(count=101, classes=100)  # class 0 has two images, the others one
    labels = np.concatenate([batch.labels for batch in taken(loader(dataset, replace(CONFIG, batch_size=500, balance=1.0)), 20)])
    counts = np.bincount(labels.astype(np.int64), minlength=100)
    assert abs(counts[0] - 100) < 50
    assert counts.min() > 50


def test_what_was_given_out_does_not_change_when_the_next_batch_comes() -> None:
    with loader(Stamps(count=37), replace(CONFIG, workers=2)).batches() as stream:
        first = next(stream)
        before = first.images_BHWC.copy()
        for _ in range(6):
            next(stream)
        np.testing.assert_array_equal(first.images_BHWC, before)
        first.images_BHWC[:] = 0  # and it belongs to whoever has it


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_no_more_is_made_ahead_than_prefetch_says(kind: WorkerKind, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    config = replace(CONFIG, workers=2, worker_kind=kind, prefetch=3)
    with loader(Stamps(count=400), config, view=Marking(str(marks))).batches() as stream:
        next(stream)
        eventually(lambda: marks.stat().st_size >= 8 * (1 + 3))
        time.sleep(0.2)  # for more to come, if more does
    assert marks.stat().st_size == 8 * (1 + 3)


def test_a_worker_process_uses_one_thread_and_needs_no_torch() -> None:
    batch = taken(loader(Stamps(count=37), replace(CONFIG, workers=1), view=thread_settings), 1)[0]
    assert set(batch.images_BHWC[:, 0, 0, 0].tolist()) == {1}
    assert set(batch.images_BHWC[:, 0, 0, 1].tolist()) == {0}


def skipping(budget: float = 0.5, *, workers: int = 0) -> LoaderConfig:
    return replace(CONFIG, corrupt="skip", corrupt_budget=budget, workers=workers)


@pytest.mark.parametrize(("workers", "kind"), POOLS)
def test_a_mistake_in_the_transform_is_no_corrupt_image_and_names_the_one_that_shows_it(workers: int, kind: WorkerKind) -> None:
    config = replace(skipping(), workers=workers, worker_kind=kind)
    with pytest.raises(DataError, match=r"stamp-5.png: ZeroDivisionError: division by zero in the view") as caught:
        list(loader(Stamps(count=20), config, view=MistakeAt(5), train=False))
    assert "stamps.py" in str(caught.value.__cause__)


@pytest.mark.parametrize(("workers", "kind"), POOLS)
def test_memory_that_ends_in_the_transform_is_no_fault_of_the_image(workers: int, kind: WorkerKind) -> None:
    config = replace(skipping(), workers=workers, worker_kind=kind)
    view = MistakeAt(5, RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 16777216 bytes"))
    with pytest.raises(MemoryError, match=r"stamp-5.png: .*can't allocate memory"):
        list(loader(Stamps(count=20), config, view=view, train=False))


# Wrong use


def test_a_transform_of_another_shape_than_promised_is_refused() -> None:
    made = Loader(Stamps(count=8), Pipeline(transform=stamp, shape=(4, 4, 2)), config=CONFIG, train=True)
    with pytest.raises(DataError, match="the transform returned 2x4x2 of uint8, but the pipeline's shape is 4x4x2"):
        next(made.batches())


def test_a_transform_of_another_type_than_uint8_is_refused() -> None:
    made = loader(Stamps(count=8), view=lambda sample, rng: stamp(sample, rng).astype(np.float32))
    with pytest.raises(DataError, match="of float32"):
        next(made.batches())


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(DataError, match="no images"):
        loader(Stamps(count=0))


def test_a_batch_with_fewer_images_than_ranks_is_refused_in_training_only() -> None:
    many = CONFIG.batch_size + 1
    with pytest.raises(ConfigError, match=f"is below the number of ranks, {many}"):
        loader(Stamps(count=20), share=Share(rank=0, ranks=many))
    loader(Stamps(count=20), train=False, share=Share(rank=0, ranks=many))
    loader(Stamps(count=20), share=Share(rank=0, ranks=CONFIG.batch_size))


@pytest.mark.parametrize("together", [1, 2])
def test_ranks_share_every_row_once_and_never_separate_neighbours_that_belong_together(together: int) -> None:
    for count, ranks in ((12, 5), (13, 4), (16, 3), (7, 3)):
        shares = [Share(rank=rank, ranks=ranks, together=together).rows(count) for rank in range(ranks)]
        assert shares[0][0] == 0
        assert shares[-1][1] == count
        assert all(one[1] == other[0] for one, other in pairwise(shares))
        assert all(first % together == 0 for first, _ in shares)
        assert max(last - first for first, last in shares) - min(last - first for first, last in shares) <= together


@pytest.mark.parametrize("position", [-1, 21])
def test_a_position_outside_the_stream_is_refused(position: int) -> None:
    with pytest.raises(ConfigError, match=f"position={position}"):
        loader(Stamps(count=20), train=False).batches(position)


def test_a_training_loader_has_no_length() -> None:
    with pytest.raises(TypeError, match="never ends"):
        len(loader(Stamps(count=20)))


def test_a_transform_that_cannot_be_sent_to_a_process_is_refused_with_a_way_out() -> None:
    with pytest.raises(ConfigError, match="cannot be pickled") as caught:
        loader(Stamps(count=20), replace(CONFIG, workers=1), view=lambda sample, rng: plain(sample, rng)).batches()
    assert "worker_kind=thread" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch_size", 0),
        ("batch_size", 7.0),
        ("batch_size", True),
        ("seed", -1),
        ("seed", 2**64),
        ("workers", -1),
        ("prefetch", 0),
        ("timeout", 0.0),
        ("timeout", float("nan")),
        ("timeout", float("inf")),
        ("repeats", 3),
        ("balance", 1.5),
        ("class_weights", ()),
        ("class_weights", (1.0, -1.0)),
        ("class_weights", (0.0, 0.0)),
        ("corrupt", "ignore"),
        ("corrupt_budget", 1.0),
        ("worker_kind", "fiber"),
        ("cache", "ram"),
        ("cache_folder", ""),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        replace(CONFIG, **{field: value})  # type: ignore[arg-type]


def test_a_slow_transform_is_not_taken_for_one_that_hangs() -> None:
    config = replace(CONFIG, workers=1, timeout=2.0)
    assert len(taken(loader(Stamps(count=37), config, view=Slow(0.3)), 1)[0]) == 8  # 2.4 s in all, 0.3 s an image


def test_the_decoder_of_the_stamps_is_what_the_transform_uses() -> None:
    assert decode(Stamps(count=3).read(2)).ravel().tolist() == [2, 0, 0, 0, 0, 0, 0, 0]
