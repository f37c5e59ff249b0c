"""An address prints without its secrets, also in errors; what is no address is a path."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitlab.errors import DataError, StorageError, masked
from vitlab.io.address import Address, address_of, is_address, place_of

SECRET = "https://user:pa55word@host.org/data/x.tar?X-Amz-Signature=abc123&part=2#top"


@pytest.mark.parametrize(
    "text",
    [
        SECRET,
        "https://to4ken@host.org/x",
        "http://host/x?token=pa55word",
        "s3://key:pa55word@bucket/x",
        f"cannot read '{SECRET}' and (http://a:pa55word@b/c)",
    ],
)
def test_no_secret_of_an_address_is_printed(text: str) -> None:
    for word in ("pa55word", "abc123", "to4ken"):
        assert word not in masked(text)
        assert word not in str(DataError(text, hint=text))
        assert word not in DataError(text).message


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/a/b.tar",
        "hf://datasets/owner/name@main/x.parquet",
        "abfs://container@account.dfs.core.windows.net/x",
        "C:/x?y=1",
        "a=b",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert masked(text) == text


def test_an_address_has_a_name_a_parent_and_children_that_keep_its_query() -> None:
    address = address_of(SECRET.partition("#")[0])
    assert (address.name, address.suffix, address.scheme) == ("x.tar", ".tar", "https")
    assert (address.parent / "y.tar").text == "https://user:pa55word@host.org/data/y.tar?X-Amz-Signature=abc123&part=2"
    assert str(address / "z") == "https://***@host.org/data/x.tar/z?X-Amz-Signature=***&part=***"


def test_the_printed_form_means_the_address_again_in_the_same_process() -> None:
    address = address_of("https://me:s3cret@host.org/a")
    assert address_of(str(address)) == address
    with pytest.raises(StorageError, match="whose secret was not stored"):
        address_of("https://***@other.org/b")


@pytest.mark.parametrize("text", ["s3://key:secret@bucket/x", "s3://key@bucket/x", "gs://a:b@bucket/x"])
def test_credentials_in_an_address_of_object_storage_are_refused_without_being_printed(text: str) -> None:
    with pytest.raises(StorageError, match="do not belong in an address") as caught:
        address_of(text)
    assert "secret" not in str(caught.value)


def test_only_known_schemes_are_addresses() -> None:
    for text in ("s3://a/b", "gs://a", "az://a", "http://a", "https://a", "hf://a/b", "S3://a"):
        assert is_address(text)
        assert isinstance(place_of(text), Address)
    for text in ("ftp://a", "pipe:cat", "a/b", "/s3://a", "hub:a/b", "s3:/a"):
        assert not is_address(text)
        assert isinstance(place_of(text), Path)
