"""Any history of changes and questions, on every engine, is answered as the oracle answers it."""

from __future__ import annotations

import pytest

from history import SEARCHES, History, run_histories


@pytest.mark.parametrize("search", SEARCHES)
def test_answers_are_those_of_the_oracle_after_any_history(engine, search, campaign):
    examples = {"part": max(1, 20 // engine.effort), "all": 400}[campaign]
    name = f"{engine.name} {search}"
    run_histories(lambda: History(engine, *SEARCHES[search], many=False), name, campaign, examples, steps=30)


@pytest.mark.parametrize("search", ["32 bits", "default", "faiss"])
def test_answers_are_those_of_the_oracle_where_the_search_is_trained(engine, search, campaign):
    examples = {"part": max(1, 3 // engine.effort), "all": 40}[campaign]
    name = f"{engine.name} {search} trained"
    run_histories(lambda: History(engine, *SEARCHES[search], many=True), name, campaign, examples, steps=12)
