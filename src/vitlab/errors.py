"""What vitlab says when it cannot go on: one sentence, and one hint of what to do about it."""


class VitlabError(Exception):
    """An error a user can understand and act on; the command line prints it as `error:` and `hint:` lines.

    `message` is one sentence that names the thing at fault; `hint` says what to do, or is None.
    """

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message} (hint: {self.hint})"


class ConfigError(VitlabError):
    """A setting that is unknown, of the wrong type, or impossible beside the others."""


class DataError(VitlabError):
    """A picture, folder, archive or label that cannot be used as it is."""


class CheckpointError(VitlabError):
    """A weights file that is damaged, unknown, unsafe, or does not fit the model."""


class TrainingError(VitlabError):
    """A run that cannot start or go on."""


class DivergedError(TrainingError):
    """A run whose loss or weights are no longer finite numbers: what it was told to do does not work, and nothing is broken."""


class ExportError(VitlabError):
    """An exported model that could not be written or does not match its original."""
