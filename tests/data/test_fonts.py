"""Names in any script are drawn, or written by code point: never a row of question marks."""

from __future__ import annotations

import pytest
from PIL import ImageFont

from vitlab.data.contact_sheet import drawable, font_for, has, undrawable

LATIN = ImageFont.load_default(12)


def test_a_letter_that_no_font_has_is_its_code_point() -> None:
    assert drawable("cat", LATIN) == "cat"
    assert drawable("caf\u00e9", LATIN) in ("caf\u00e9", "cafe")
    assert drawable("\U000f0000", LATIN) in (" ", "U+F0000", "")
    lacking = next(letter for letter in ("\u732b", "\u10d9") if not has(LATIN, letter))
    assert drawable(f"{lacking}!", LATIN) == f"U+{ord(lacking):04X} !"
    assert "?" not in drawable("\u043a\u043e\u0442 \u732b", LATIN)


def test_undrawable_letters_are_those_that_become_code_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitlab.data.contact_sheet.font_for", lambda text, size: LATIN)
    lacking = next(letter for letter in ("\u732b", "\u10d9") if not has(LATIN, letter))
    assert undrawable([f"a {lacking}", f"cat{lacking}"]) == lacking
    assert undrawable(["cat", "caf\u00e9"]) == ""


def test_a_font_of_this_machine_that_has_the_letters_is_taken() -> None:
    assert isinstance(font_for("plain text", 12), ImageFont.FreeTypeFont | ImageFont.ImageFont)
    try:
        ImageFont.truetype("DejaVuSans.ttf", 12)
    except OSError:
        pytest.skip("DejaVu Sans is not installed")
    font = font_for("\u043a\u043e\u0442", 12)
    assert drawable("\u043a\u043e\u0442", font) == "\u043a\u043e\u0442"
    assert all(has(font, letter) for letter in "\u043a\u043e\u0442")
