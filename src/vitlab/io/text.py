"""Text that is safe to print, and to open in a spreadsheet."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text on one line: control characters, line ends and undecodable bytes as escapes, every other letter as it is."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")  # also in full width, as a Japanese keyboard writes them


def csv_cell(text: str) -> str:
    """The text as a cell of a CSV file: `printable`, and with an apostrophe before what a spreadsheet would take for a formula."""
    shown = printable(text)
    return f"'{shown}" if shown.startswith(_FORMULA) else shown
