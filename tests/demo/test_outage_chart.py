"""The picture of an outage: true to the numbers, with what happened marked."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from gateway.demo.record import Fate, Trial
from gateway.demo.show import LEFT, PLOT, outage_chart
from gateway.demo.storm import Act, Outage
from tests.demo.support import trial_of

SVG = "{http://www.w3.org/2000/svg}"
OUTAGE = Outage(seconds=4.0, acts=(Act("dead", 0.25, 0.75), Act("<slow>", 0.75, 1.0)))


def rects(chart: str, kind: str) -> list[ElementTree.Element]:
    """The rectangles of a kind, the legend's left out."""
    root = ElementTree.fromstring(chart)  # noqa: S314 - our own text
    return [each for each in root.iter(f"{SVG}rect") if each.get("class") == kind and each.get("width") != "12"]


def test_every_second_stacks_its_fates() -> None:
    """Heights in proportion, one on the other, on the same base."""
    chart = outage_chart(OUTAGE, [trial_of([Fate(6, 3, 1), Fate(10, 0, 0)])])

    heights = {
        kind: [float(each.get("height", "")) for each in rects(chart, kind)] for kind in ("answered", "late", "failed")
    }
    unit = heights["failed"][0]
    assert heights["answered"] == pytest.approx([6 * unit, 10 * unit], rel=0.02)
    assert heights["late"] == pytest.approx([3 * unit], rel=0.02)
    tops = [float(rects(chart, kind)[0].get("y", "")) for kind in ("failed", "late", "answered")]
    assert tops == sorted(tops)


def test_what_happened_is_marked_in_every_panel() -> None:
    """At its time, by its name, which is text."""
    chart = outage_chart(OUTAGE, [trial_of([Fate(1, 0, 0)]), trial_of([Fate(0, 0, 1)])])

    acts = rects(chart, "act")
    assert len(acts) == 4
    assert float(acts[0].get("x", "")) == pytest.approx(LEFT + PLOT / 4, abs=0.1)
    assert float(acts[0].get("width", "")) == pytest.approx(PLOT / 2, abs=0.1)
    assert chart.count("&lt;slow&gt;") == 2


def test_who_cannot_see_it_hears_the_numbers() -> None:
    """In the title."""
    chart = outage_chart(OUTAGE, [trial_of([Fate(5, 2, 1)], name="straight")])

    assert "Straight: 7 of 8 calls answered, 2 of them late, 1 failed" in chart.partition("</title>")[0]


def test_a_trial_in_which_nothing_happened_is_still_a_picture() -> None:
    """No division by zero."""
    assert outage_chart(OUTAGE, [Trial("a run", 1, 1.0)]).startswith("<svg ")
