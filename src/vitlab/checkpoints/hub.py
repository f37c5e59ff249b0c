"""`hub:owner/name[@revision]`: a model repository of the Hugging Face Hub as a local folder."""

from __future__ import annotations

import re
from pathlib import Path

from vitlab.errors import CheckpointError
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


def fetch(address: str) -> tuple[Path, tuple[str, ...]]:
    """Download the weights of a repository, or take them from the local cache: the folder, and a note of the exact revision."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise CheckpointError(f"{address!r} is no address on the Hub", hint="write hub:owner/name or hub:owner/name@revision")
    name, revision = found["name"], found["revision"]
    for weights in _WEIGHTS:
        folder = _download(address, name, revision, [*_TEXTS, *weights])
        if any(entry.name.endswith(_FETCHED) for entry in folder.iterdir()):
            return folder, (f"from the Hub: {name} at revision {folder.name}",)
    raise CheckpointError(
        f"{address} holds no weights that vitlab reads", hint="download the files and give the path of the one you mean"
    )


def _download(address: str, name: str, revision: str | None, patterns: list[str]) -> Path:
    hub = optional_import("huggingface_hub", purpose="hub: addresses", error=CheckpointError)
    errors = optional_import("huggingface_hub.errors", purpose="hub: addresses", error=CheckpointError)
    try:
        return Path(hub.snapshot_download(name, revision=revision, allow_patterns=patterns))
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"there is no repository {name} on the Hub that is open to you",
            hint="check owner and name; for a gated one, accept its terms and log in with `hf auth login`",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(f"{name} has no revision {revision!r} on the Hub") from error
    except errors.HFValidationError as error:
        raise CheckpointError(f"{address!r} is no address on the Hub", hint="write hub:owner/name") from error
    except (OSError, *errors.HfHubHTTPError.__bases__) as error:  # its base is the transport library's, which the versions change
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
        raise CheckpointError(
            f"cannot reach the Hub for {name}, and it is not in the local cache: {reason}",
            hint="go online, or download the files elsewhere and give their folder",
        ) from error
