"""The picture: well-formed, true to the numbers, and readable on any ground."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from gateway.demo.show import storm_chart
from tests.demo.support import run_of

SVG = "{http://www.w3.org/2000/svg}"


def parse(chart: str) -> ElementTree.Element:
    return ElementTree.fromstring(chart)  # noqa: S314 - our own text


def numbers(chart: str, tag: str, kind: str, attribute: str) -> list[float]:
    """An attribute of every shape of a kind, panel by panel from left to right, the legend's left out."""
    shapes = [shape for shape in parse(chart).iter(SVG + tag) if shape.get("class") == kind]
    return [float(shape.get(attribute, "")) for shape in shapes[:-1]]


def test_every_second_has_its_bars_in_every_panel() -> None:
    """Answered and refused, in proportion; a bar of the limit's own number ends at the limit."""
    chart = storm_chart([run_of([(10, 5), (5, 0)]), run_of([(10, 0), (10, 0)])])

    answered, tops = numbers(chart, "rect", "answered", "height"), numbers(chart, "rect", "answered", "y")
    full = answered[0]
    assert answered == pytest.approx([full, full / 2, full, full], abs=0.1)
    assert numbers(chart, "rect", "refused", "height") == pytest.approx([full / 2], abs=0.1)
    assert numbers(chart, "line", "limit", "y1") == pytest.approx([tops[0], tops[2]], abs=0.1)


def test_what_is_too_high_is_cut_and_says_so() -> None:
    """Hundreds of refusals leave the limit visible."""
    chart = storm_chart([run_of([(10, 290), (10, 500)]), run_of([(10, 0)] * 10)])

    assert "up to 510 calls a second" in chart
    assert chart.count('class="cut"') == 2
    assert max(numbers(chart, "rect", "answered", "height")) > 30


def test_it_brings_its_own_ground_for_light_and_dark() -> None:
    """Nothing depends on the page."""
    chart = storm_chart([run_of([(1, 0)])])

    assert 'class="ground"' in chart
    assert "prefers-color-scheme: dark" in chart


def test_names_are_text_and_titles_say_the_outcome() -> None:
    """No markup comes out of a name; who cannot see the picture hears its numbers."""
    root = parse(storm_chart([run_of([(1, 3)], name="a <b> & c", calls=4)]))

    assert "A <b> & c: 1 of 4 calls answered, 3 429s" in (root.findtext(f"{SVG}title") or "")


def test_a_run_in_which_nothing_happened_is_still_a_picture() -> None:
    """No division by zero."""
    assert parse(storm_chart([run_of([])])).tag == f"{SVG}svg"
