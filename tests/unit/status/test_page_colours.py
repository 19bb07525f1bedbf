"""That the page can be read: WCAG 2.2, 1.4.3 and 1.4.11, of the colours of its style sheet."""

import re

import pytest

from relay.status import page

PAGES = ("page", "card")
TEXTS = ("text", "soft", "ink", "good", "warn", "bad")
ON = [(text, back) for text in TEXTS for back in PAGES] + [
    *((each, f"{each}-back") for each in ("good", "warn", "bad")),
    *(("text", back) for back in ("rail", "warn-back", "bad-back")),
]
GRAPHICS = [
    ("ink", "card"),
    ("ink", "rail"),
    ("ink", "fill"),
    ("good", "page"),
    ("warn", "page"),
    ("bad", "page"),
]
TEXT_AT_LEAST, GRAPHICS_AT_LEAST = 4.5, 3.0


def colours(theme: str) -> dict[str, str]:
    light, dark = re.findall(r":root \{(.*?)\}", page.STYLE, re.DOTALL)
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", light + (dark if theme == "dark" else "")))


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2.2's glossary."""
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_and_graphics_have_contrast_enough(theme: str) -> None:
    its = colours(theme)

    weak = [pair for pair in ON if contrast(its[pair[0]], its[pair[1]]) < TEXT_AT_LEAST]
    weak += [pair for pair in GRAPHICS if contrast(its[pair[0]], its[pair[1]]) < GRAPHICS_AT_LEAST]
    assert weak == []
