"""`hub:owner/name[@revision]`: a model repository of the Hugging Face Hub as a local folder; and public weights by a model's name.

Without a connection, the files of a repository are taken from `~/.cache/vitlab/weights/owner/name`, where you can put them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vitlab.config.public_weights import PublicWeights, find_weights
from vitlab.errors import CheckpointError, ConfigError
from vitlab.io.cache import cache_folder
from vitlab.io.optional import optional_import

PREFIX = "hub:"
_ADDRESS = re.compile(r"hub:(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?", re.ASCII)
_TEXTS = ["config.json", "preprocessor_config.json"]
# The first of these that a repository has is downloaded; a pickle only if there is nothing else.
_WEIGHTS = (["model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"], ["*.npz"], ["pytorch_model.bin"])
_FETCHED = (".safetensors", ".npz", ".bin", ".index.json")


def is_hub(path: str | Path) -> bool:
    """Whether a path is an address on the Hub."""
    return isinstance(path, str) and path.startswith(PREFIX)


def address_of(path: str | Path) -> tuple[str | Path, tuple[str, ...]]:
    """A path as it is; a model's name (ViT-B/16, vit_base_patch16_224.augreg_in21k) as the address of its public weights.

    The note says which weights these are and how good they are.
    """
    text = os.fspath(path)
    if is_hub(text) or os.path.lexists(text):
        return path, ()
    try:
        weights = find_weights(text)
    except ConfigError:
        return path, ()  # whoever reads it says that there is no such file
    if weights.needs is not None:
        raise CheckpointError(f"{weights.name} is not a model that vitlab builds: it needs {weights.needs}")
    return weights.address, (f"{text}: {_told(weights)}",)


def _told(weights: PublicWeights) -> str:
    """`public weights timm/vit_base_patch16_224.augreg_in21k, trained on ImageNet-21k, ...`."""
    score = "" if weights.score is None else f", {weights.score:.1f} % {weights.metric} on ImageNet-1k"
    licence = "" if weights.licence is None else f", licence {weights.licence}"
    head = f"{weights.num_classes:,} classes" if weights.num_classes else "no head"
    return f"public weights {weights.address}, trained on {weights.data}, {weights.image_size} pixels, {head}{score}{licence}"


def weights_folder(name: str) -> Path:
    """Where the files of the repository `owner/name` are taken from if they are there."""
    return cache_folder() / "weights" / name


def fetch(address: str) -> tuple[Path, tuple[str, ...]]:
    """Download the weights of a repository, or take them from the local cache: the folder, and a note of the exact revision."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise CheckpointError(f"{address!r} is no address on the Hub", hint="write hub:owner/name or hub:owner/name@revision")
    name, revision = found["name"], found["revision"]
    placed = weights_folder(name)
    if revision is None and placed.is_dir() and any(entry.name.endswith(_FETCHED) for entry in placed.iterdir()):
        return placed, (f"{name} from {placed}",)
    for weights in _WEIGHTS:
        try:
            folder = _download(address, name, revision, [*_TEXTS, *weights])
        except CheckpointError as error:
            by_hand = f"download config.json and model.safetensors of {name} elsewhere and put them into {placed}"
            raise CheckpointError(error.message, hint=f"{error.hint}; or {by_hand}") from error
        if any(entry.name.endswith(_FETCHED) for entry in folder.iterdir()):
            return folder, (f"from the Hub: {name} at revision {folder.name}",)
    raise CheckpointError(
        f"{address} holds no weights that vitlab reads", hint="download the files and give the path of the one you mean"
    )


def upload(folder: Path, name: str, *, private: bool) -> str:
    """Upload the files of a folder as one commit to the repository `owner/name`, which is made if need be; the commit's address."""
    if _ADDRESS.fullmatch(PREFIX + name) is None or "@" in name:
        raise CheckpointError(f"{name!r} is no name on the Hub", hint="write owner/name")
    hub = optional_import("huggingface_hub", purpose="uploads to the Hub", error=CheckpointError)
    with _plain_errors(name, None, invalid=f"{name!r} is no name on the Hub", failed=f"cannot upload {name} to the Hub"):
        api = hub.HfApi()
        api.create_repo(name, repo_type="model", private=private, exist_ok=True)
        made = api.upload_folder(folder_path=folder, repo_id=name, repo_type="model", commit_message="Upload with vitlab")
    return str(made)


def _download(address: str, name: str, revision: str | None, patterns: list[str]) -> Path:
    hub = optional_import("huggingface_hub", purpose="hub: addresses", error=CheckpointError)
    failed = f"cannot reach the Hub for {name}, and it is not in the local cache"
    with _plain_errors(name, revision, invalid=f"{address!r} is no address on the Hub", failed=failed):
        return Path(hub.snapshot_download(name, revision=revision, allow_patterns=patterns))


@contextmanager
def _plain_errors(name: str, revision: str | None, *, invalid: str, failed: str) -> Iterator[None]:
    """What can go wrong between here and the Hub, each as one sentence."""
    errors = optional_import("huggingface_hub.errors", purpose="hub: addresses", error=CheckpointError)
    try:
        yield
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"there is no repository {name} on the Hub that is open to you",
            hint="check owner and name; for a gated one, accept its terms and log in with `hf auth login`",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(f"{name} has no revision {revision!r} on the Hub", hint="leave the revision out") from error
    except errors.HFValidationError as error:
        raise CheckpointError(invalid, hint="write owner/name") from error
    except (OSError, *errors.HfHubHTTPError.__bases__) as error:  # its base is the transport library's, which the versions change
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
        denied = "401" in reason or "403" in reason
        hint = "log in with `hf auth login`, or set HF_TOKEN, with the right to write" if denied else "go online"
        raise CheckpointError(f"{failed}: {reason}", hint=hint) from error
