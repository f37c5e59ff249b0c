"""A few hundred bytes of .pt ask for gigabytes or for endless work: vitlab refuses the file before it allocates anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.checkpoints.containers.measured import assert_refused_flat
from tests.checkpoints.containers.pickles import edited, endless, pickled, replaced, saves
from vitlab.checkpoints.containers import read_file
from vitlab.errors import CheckpointError

THOUSAND = b"M\xe8\x03"  # 1000 as a pickle says it
BILLION = b"J\x00\xca\x9a\x3b"
NESTED_KEY = b"\x80\x02})" + b"q\x00h\x00\x86" * 1000 + b"K\x01s."  # its hash takes 2^1000 steps

# A list of 20,000 pairs, made into a dict 20,000 times; a tuple of 50,000, given to a function 20,000 times.
PAIRS = b"]q\x00(" + b"".join(b"K\x01M%c%c\x86" % (n & 255, n >> 8) for n in range(20_000)) + b"e"
MANY_DICTS = b"\x80\x02" + PAIRS + b"]" + b"ccollections\nOrderedDict\nh\x00\x85Ra" * 12_000 + b"."
MANY_ARGUMENTS = b"\x80\x02(" + b"N" * 50_000 + b"tq\x00]" + b"ctorch._utils\n_rebuild_tensor_v2\nh\x00Ra" * 10_000 + b"."
ONE = torch.ones(1)


def many_names(data: bytes) -> bytes:
    """The pickle of a dict with the dict under 30,000 numbers."""
    return (
        data.removesuffix(b".")
        + b"r\xff\xff\xff\x00"
        + b"}"
        + b"".join(b"M%c%cj\xff\xff\xff\x00s" % (n & 255, n >> 8) for n in range(30_000))
        + b"."
    )


# name of the attack -> what makes the file, and a word of the message
CORPUS: dict[str, tuple[Callable[[Path], None], str]] = {
    "a bytearray of 10 TB": (pickled(b"\x80\x02cbuiltins\nbytearray\n\x8a\x07\x00\x00\xa0\x72\x4e\x18\x09\x85R."), "bytearray"),
    "a bytearray of 1 GB": (pickled(b"\x80\x02c__builtin__\nbytearray\n" + BILLION + b"\x85R."), "asks for builtins.bytearray"),
    "a tensor of 40 GB out of nothing": (pickled(b"\x80\x02ctorch\nFloatTensor\n\x8a\x05\x00\xe4\x0b\x54\x02\x85R."), "asks for"),
    "a range of 10^9": (pickled(b"\x80\x02c__builtin__\nxrange\n" + BILLION + b"\x85R."), "asks for builtins.xrange"),
    "a set": (pickled(b"\x80\x02c__builtin__\nset\n]K\x01a\x85R."), "holds a builtins.set"),
    "10^12 numbers out of one": (saves(lambda _: {"a": torch.zeros(1).expand(10**6, 10**6)}), "claims more than the 1 numbers"),
    "2 numbers out of one": (saves(lambda _: {"a": torch.zeros(1).expand(2)}), "claims more"),
    "10^12 numbers out of one, old format": (saves(lambda _: {"a": torch.zeros(1).expand(10**12)}, legacy=True), "claims more"),
    "2,000 tensors on the same 10 MB": (
        saves(lambda _: {f"a{number}": whole for whole in (torch.zeros(2_500_000),) for number in range(2000)}),
        "claim far more",
    ),
    "a storage that claims 4 GB": (lambda path: edited(path, replaced(THOUSAND, BILLION)), "claim far more"),
    "a storage that claims 4 GB, old format": (
        lambda path: edited(path, replaced(THOUSAND, BILLION), legacy=True),
        "has another size",
    ),
    "a pickle of 3 MB": (pickled(b"\x80\x02" + b"N0" * 1_500_000 + b"}."), "pickle has"),
    "a pickle of half a MB of nothing": (pickled(b"\x80\x02}" + b"q\x00" * 250_000 + b"."), "opcodes"),
    "a pickle of 20 MB of nothing, old format": (endless, "opcodes"),
    "a pickle without an end": (pickled(b"\x80\x02}q\x00"), "refuses"),
    "an empty pickle": (pickled(b""), "refuses"),
    "a memo that is not there": (pickled(b"\x80\x02h\x07."), "refuses"),
    "an empty stack": (pickled(b"\x80\x02R."), "refuses"),
    "nested 90,000 deep": (pickled(b"\x80\x02" + b"]" * 90_000 + b"a" * 89_999 + b"."), "holds a list"),
    "90,000 memo entries": (
        pickled(b"\x80\x02}" + b"".join(b"r%c%c%c\0" % (n & 255, n >> 8 & 255, n >> 16) for n in range(90_000)) + b"."),
        "no named",
    ),
    "a key whose hash takes forever": (pickled(NESTED_KEY), "a key of a dict is a tuple"),
    "a number of 250 bytes for a size": (
        lambda path: edited(path, replaced(THOUSAND, b"\x8a\xfa" + b"\x7f" * 250)),
        "impossible size",
    ),
    "one list as 20,000 dicts": (pickled(MANY_DICTS), "holds a list"),
    "one dict under 30,000 names": (lambda path: edited(path, many_names), "several sets of weights"),
    "20,000 tensors of the same number": (saves(lambda _: {f"a{number}": ONE for number in range(20_000)}), "20,000 tensors"),
    "a tensor of 50,000 arguments, 20,000 times": (pickled(MANY_ARGUMENTS), "refuses"),
    "calls of a call": (pickled(b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\nN\x85R."), "refuses"),
}


@pytest.mark.parametrize("attack", CORPUS)
def test_it_is_refused_by_what_it_asks_for(tmp_path: Path, attack: str) -> None:
    make, word = CORPUS[attack]
    path = tmp_path / "model.pt"
    make(path)
    for values in (True, False):  # loading, describing
        with pytest.raises(CheckpointError) as refused:
            read_file(path, values=values)
        assert word in refused.value.message, refused.value.message
        assert len(str(refused.value)) < 600


def test_all_of_them_are_refused_with_flat_memory(warm: Path, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.pt" for number in range(len(CORPUS))]
    for path, (make, _) in zip(paths, CORPUS.values(), strict=True):
        make(path)
    assert_refused_flat(paths, warm)


def test_tied_weights_are_no_attack(tmp_path: Path) -> None:
    whole = torch.arange(10.0)
    torch.save({"a": whole, "b": whole, "c": whole[2:4], "d": whole.view(2, 5).T}, tmp_path / "model.pt")
    read = read_file(tmp_path / "model.pt").tensors
    assert torch.equal(read["d"], whole.view(2, 5).T)
    assert torch.equal(read["b"], whole)
    assert len({tensor.data_ptr() for tensor in read.values()}) == 4
