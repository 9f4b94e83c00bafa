"""The page of usage has the table of all examples, so that it says what is read."""

from __future__ import annotations

from tests.core.openai.usage_examples import PAGE, with_table


def test_the_table_of_usage_is_that_of_the_examples() -> None:
    """`python -m tests.core.openai.usage_examples` renews it."""
    page = PAGE.read_text()

    assert page == with_table(page)
