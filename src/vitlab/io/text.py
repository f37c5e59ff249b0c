"""Text that is safe to print."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text on one line: control characters, line ends and undecodable bytes as escapes, every other letter as it is."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
