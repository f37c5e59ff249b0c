"""`hub:owner/name[@revision]`: a model repository of the Hugging Face Hub as a local folder; and public weights by a model's name.

Without a connection, the files of a repository are taken from `~/.cache/vitlab/weights/owner/name`, where you can put them.
The Hub's protocol is two kinds of requests, which are made here with the downloads of the dataset catalog: huggingface_hub 2.4
neither verifies a file's checksum nor resumes a download that an earlier process began. Its cache, its token and its environment
variables (HF_ENDPOINT, HF_HOME, HF_HUB_CACHE, HF_HUB_OFFLINE, HF_TOKEN) are used where they exist.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import quote

from vitlab.config.public_weights import PublicWeights, find_weights, public_weights
from vitlab.config.serialize import Json, parsed
from vitlab.data.catalog.download import Patience, RefusedError, TemporaryError, ask, download
from vitlab.data.catalog.sets import RemoteFile
from vitlab.errors import CheckpointError, ConfigError, DataError
from vitlab.io.address import is_address
from vitlab.io.atomic import replacing
from vitlab.io.cache import cache_folder
from vitlab.io.display import ProgressCallback, line_on_terminal
from vitlab.io.files import near_name
from vitlab.io.optional import optional_import

PREFIX = "hub:"
_ADDRESS = re.compile(r"hub:(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?", re.ASCII)
_TEXTS = ("config.json", "preprocessor_config.json")
# The first of these that a repository has is downloaded; a pickle only if there is nothing else.
_WEIGHTS = (
    r"model\.safetensors",
    r"model(-\d+-of-\d+\.safetensors|\.safetensors\.index\.json)",
    r"[^/]+\.npz",
    r"pytorch_model\.bin",
)


def is_hub(path: str | Path) -> bool:
    """Whether a path is an address on the Hub."""
    return isinstance(path, str) and path.startswith(PREFIX)


_FILES = (".npz", ".safetensors", ".pt", ".pth", ".bin", ".ckpt")


def _near_name(text: str) -> str | None:
    """The name of a model with public weights that a text is almost, if there is one."""
    names = {name: None for row in public_weights() for name in (row.model, row.name) if name}
    return next(iter(get_close_matches(text, list(names), n=1, cutoff=0.85)), None)


def address_of(path: str | Path) -> tuple[str | Path, tuple[str, ...]]:
    """A path as it is; a model's name (ViT-B/16, vit_base_patch16_224.augreg_in21k) as the address of its public weights.

    The note says which weights these are and how good they are.
    """
    text = os.fspath(path)
    if is_hub(text) or is_address(text) or os.path.lexists(text):
        return path, ()
    try:
        weights = find_weights(text)
    except ConfigError as error:
        if Path(text).suffix not in _FILES and (near := _near_name(text)):
            raise CheckpointError(f"no file, folder or public weights called {text!r}", hint=f"did you mean {near}?") from error
        if Path(text).suffix not in _FILES and "/" not in text:
            raise CheckpointError(
                f"no file, folder or public weights called {text!r}",
                hint=near_name(Path(text)) or "`vitlab models` lists public weights",
            ) from error
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


def fetch(
    address: str, *, patience: Patience | None = None, progress: ProgressCallback | None = None
) -> tuple[Path, tuple[str, ...]]:
    """Download the weights of a repository, or take them from a cache: the folder, and a note of the exact revision.

    In this order: files that you put into `weights_folder`; the cache of huggingface_hub; vitlab's own, where an interrupted
    download is resumed. Without a connection, the caches are asked for the revision that they saw last.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise CheckpointError(f"{address!r} is no address on the Hub", hint="write hub:owner/name or hub:owner/name@revision")
    name, revision = found["name"], found["revision"]
    placed = weights_folder(name)
    if revision is None and placed.is_dir() and _holds_weights(placed):
        return placed, (f"{name} from {placed}",)
    try:
        repository = _asked(name, revision or "main", patience or Patience())
    except TemporaryError as error:
        folder = _cached(name, revision or "main")
        if folder is None:
            raise CheckpointError(
                f"cannot reach the Hub for {name}, and it is not in the local cache: {error}",
                hint=f"go online; or {_by_hand(name)}",
            ) from error
        return folder, (f"from the cache, since the Hub cannot be reached: {name} at revision {folder.name}",)
    wanted = _chosen(repository, address)
    folder = _theirs(name) / "snapshots" / repository.revision
    if not all((folder / file.path).is_file() for file in wanted):
        folder = _ours(name) / repository.revision
        _download(repository, wanted, folder, patience, progress or line_on_terminal)
        _remember(repository, revision or "main")
    return folder, (f"from the Hub: {name} at revision {repository.revision}",)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """A file of a repository, its bytes, and its SHA-256, which the Hub has for large files only."""

    path: str
    size: int | None
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A repository at one revision, which is a commit."""

    name: str
    revision: str
    gated: bool
    files: tuple[HubFile, ...]


def _asked(name: str, revision: str, patience: Patience) -> Repository:
    """What the Hub says about a repository; TemporaryError if it cannot be reached."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        raise TemporaryError("HF_HUB_OFFLINE is set", offline=True)
    address = f"{_endpoint()}/api/models/{name}/revision/{quote(revision, safe='')}?blobs=true"
    try:
        with ask(address, token=_token(), timeout=patience.timeout) as answer:
            text = b"".join(answer.chunks(1 << 16))
    except RefusedError as error:
        if error.code == "RevisionNotFound":
            raise CheckpointError(f"{name} has no revision {revision!r} on the Hub", hint="leave the revision out") from error
        raise CheckpointError(
            f"there is no repository {name} on the Hub that is open to you: {error}",
            hint=f"check owner and name; for a private one, log in with `hf auth login` or set HF_TOKEN; or {_by_hand(name)}",
        ) from error
    try:
        return _described(name, parsed(text.decode()))
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{address} does not answer as the Hub does", hint="check HF_ENDPOINT") from error


def _described(name: str, data: Json) -> Repository:
    """The repository in the Hub's answer; ValueError, KeyError or TypeError if it is none."""
    if not isinstance(data, dict) or not isinstance(data["siblings"], list):
        raise TypeError("no list of files")
    files = []
    for entry in data["siblings"]:
        if not isinstance(entry, dict):
            raise TypeError("a file that is no object")
        stored = entry.get("lfs")
        digest = stored.get("sha256") if isinstance(stored, dict) else None
        size = entry.get("size")
        sized = size if isinstance(size, int) else None
        files.append(HubFile(path=str(entry["rfilename"]), size=sized, sha256=digest if isinstance(digest, str) else None))
    revision = str(data["sha"])
    if not re.fullmatch(r"[0-9a-f]{7,64}", revision):
        raise ValueError("no revision")
    return Repository(name=name, revision=revision, gated=bool(data.get("gated")), files=tuple(files))


def _chosen(repository: Repository, address: str) -> list[HubFile]:
    """The texts and the first kind of weights that the repository has, the weights last."""
    for pattern in _WEIGHTS:
        weights = [file for file in repository.files if re.fullmatch(pattern, file.path)]
        if weights:
            return [*(file for file in repository.files if file.path in _TEXTS), *weights]
    raise CheckpointError(
        f"{address} holds no weights that vitlab reads", hint="download the files and give the path of the one you mean"
    )


def upload(folder: Path, name: str, *, private: bool) -> str:
    """Upload the files of a folder as one commit to the repository `owner/name`, which is made if need be; the commit's address."""
    if _ADDRESS.fullmatch(PREFIX + name) is None or "@" in name:
        raise CheckpointError(f"{name!r} is no name on the Hub", hint="write owner/name")
    hub = optional_import("huggingface_hub", purpose="uploads to the Hub", error=CheckpointError)
    errors = optional_import("huggingface_hub.errors", purpose="uploads to the Hub", error=CheckpointError)
    try:
        api = hub.HfApi()
        api.create_repo(name, repo_type="model", private=private, exist_ok=True)
        made = api.upload_folder(folder_path=folder, repo_id=name, repo_type="model", commit_message="Upload with vitlab")
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"there is no repository {name} on the Hub that is open to you",
            hint="check owner and name; for a gated one, accept its terms and log in with `hf auth login`",
        ) from error
    except errors.HFValidationError as error:
        raise CheckpointError(f"{name!r} is no name on the Hub", hint="write owner/name") from error
    except (OSError, *errors.HfHubHTTPError.__bases__) as error:  # its base is the transport library's, which the versions change
        reason = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
        denied = "401" in reason or "403" in reason
        hint = "log in with `hf auth login`, or set HF_TOKEN, with the right to write" if denied else "go online"
        raise CheckpointError(f"cannot upload {name} to the Hub: {reason}", hint=hint) from error
    return str(made)


def _download(
    repository: Repository, files: list[HubFile], folder: Path, patience: Patience | None, progress: ProgressCallback
) -> None:
    """Download the files that are not there yet, each verified before it gets its name."""
    name = repository.name
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        if (folder / file.path).is_file():
            continue
        remote = RemoteFile(
            name=f"{file.path} of {name}",
            addresses=(f"{_endpoint()}/{name}/resolve/{repository.revision}/{quote(file.path)}",),
            size=file.size,
            checksum=None if file.sha256 is None else f"sha256:{file.sha256}",
            token=_token(),
        )
        try:
            download(remote, folder / file.path, patience=patience, progress=progress)
        except DataError as error:
            if repository.gated:
                raise CheckpointError(
                    f"{name} is gated on the Hub, and its files are not open to you",
                    hint=f"accept its terms on its page, then log in with `hf auth login` or set HF_TOKEN; or {_by_hand(name)}",
                ) from error
            raise CheckpointError(error.message, hint=f"run this again, it resumes; or {_by_hand(name)}") from error


def _remember(repository: Repository, revision: str) -> None:
    """Keep which commit a branch or tag is, for when there is no connection."""
    place = _ours(repository.name) / "refs" / quote(revision, safe="")
    place.parent.mkdir(parents=True, exist_ok=True)
    with replacing(place, needed=len(repository.revision)) as out:
        out.write(repository.revision.encode())


def _cached(name: str, revision: str) -> Path | None:
    """The folder in a cache that has weights of this revision, a commit or the branch that was seen last; None if there is none."""
    for folder, ref in (
        (_theirs(name) / "snapshots", _theirs(name) / "refs" / revision),
        (_ours(name), _ours(name) / "refs" / quote(revision, safe="")),
    ):
        commit = ref.read_text(errors="replace").strip() if ref.is_file() else revision
        if re.fullmatch(r"[0-9a-f]{7,64}", commit) and (folder / commit).is_dir() and _holds_weights(folder / commit):
            return folder / commit
    return None


def _holds_weights(folder: Path) -> bool:
    return any(re.fullmatch(pattern, entry.name) for pattern in _WEIGHTS for entry in folder.iterdir())


def _ours(name: str) -> Path:
    return cache_folder() / "hub" / name


def _theirs(name: str) -> Path:
    """Where huggingface_hub keeps a repository."""
    home = Path(os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{name.replace('/', '--')}"


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def _token() -> str | None:
    """The user's own access token: HF_TOKEN, or what `hf auth login` stored."""
    if token := os.environ.get("HF_TOKEN"):
        return token.strip()
    place = os.environ.get("HF_TOKEN_PATH") or _theirs("x/y").parents[1] / "token"
    try:
        return Path(place).read_text().strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def _by_hand(name: str) -> str:
    return f"download config.json and model.safetensors of {name} elsewhere and put them into {weights_folder(name)}"
