"""What recalls take if a filter is given: measured with filters like those that users have.

A walk through the graph drops what does not match, so it has to keep more candidates, the fewer sets a filter leaves:
those that it keeps without a filter, and those that it would pass if the sets that match lay anywhere. How many times
as many is measured: with filters that leave sets at random, and with `field = value` for values that the stored sets
have, whose sets may lie together or elsewhere.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from ...search import Calibration
from ...search.calibration import CHOOSING_SHARE, Setting, Trial, first_that_holds
from ..base import Float64, Mask
from . import scanning, search
from .scanning import Condition

if TYPE_CHECKING:
    from .view import PostgresView

DRAWN_SHARES = (1 / 2, 1 / 4, 1 / 10)
"""What the filters leave that have nothing to do with the sets."""
LOOKED_AT = 500
"""Sets whose metadata say which filters there may be."""
OWN_FILTERS = 5
SELDOM, OFTEN = 0.02, 0.9
"""Parts of the sets that the filters made of metadata leave."""
FACTORS = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
USUAL_FACTOR = 1.25


Plain: TypeAlias = Mapping[float, int]


class Filter(NamedTuple):
    """A filter, how many sets it leaves, and whether it has nothing to do with the sets."""

    condition: Condition
    left: int
    drawn: bool


class FilterTrial(Trial):
    """Pairs of a query and a filter whose true neighbours are known, and what walks find of them.

    `plain` says for each recall how many candidates the graph keeps without a filter. Every query comes with a filter
    that was drawn, and with one of the metadata's, if there is any.
    """

    def __init__(self, view: PostgresView, queries: Any, filters: list[Filter], k: int, plain: Plain) -> None:
        queries = queries[: len(queries) // CHOOSING_SHARE * CHOOSING_SHARE]
        turn, kinds = np.arange(len(queries)) // CHOOSING_SHARE, {True: list[int](), False: list[int]()}
        for number, each in enumerate(filters):
            kinds[each.drawn].append(number)
        given = [np.array(numbers)[turn % len(numbers)] for numbers in kinds.values() if numbers]
        super().__init__(len(given) * len(queries))
        self._view, self._filters, self._plain = view, filters, plain
        self._queries, self._of = np.concatenate([queries] * len(given)), np.concatenate(given)
        self._truth: Float64 = np.full((len(self._queries), k), np.nan)
        for number, each in enumerate(filters):
            rows = np.flatnonzero(self._of == number)
            answers = search.by_scan(view, self._queries[rows], k, each.condition) if len(rows) else []
            self._truth[rows] = [answer.distances[:k] for answer in answers]
        self._known: dict[tuple[Setting, bool, int], Mask] = {}

    @classmethod
    def of(cls, view: PostgresView, queries: Any, filters: list[Filter], k: int, plain: Plain) -> FilterTrial | None:
        """Return a trial for up to k neighbours; None if all that the filters leave is compared anyway."""
        n, usual = view.header.sets, _setting(USUAL_FACTOR, max(plain.values(), default=0))
        walked = [each for each in filters if _walk(k, usual, n, each).pays] if usual.depth else []
        return cls(view, queries, walked, k, plain) if walked else None

    def choose(self, k: int, recall: float, enough: Callable[[Mask], bool], tried: Setting) -> Setting | None:
        if not self._plain[recall]:
            return None
        settings = [_setting(factor, self._plain[recall]) for factor in FACTORS if factor > tried.reach]
        at = first_that_holds(len(settings), lambda i: enough(self._found(settings[i], True, k)))
        return None if at == len(settings) else settings[at]

    def found(self, setting: Setting, k: int, recall: float) -> Mask:
        return self._found(setting, False, k)

    def _found(self, setting: Setting, choosing: bool, k: int) -> Mask:
        """Return which of the k neighbours are found, by queries whose walk comes to an end: others are exact."""
        if (setting, choosing, k) not in self._known:
            parts = [np.zeros((0, k), np.bool_)]
            for number, each in enumerate(self._filters):
                rows = np.flatnonzero((self.choosing if choosing else self.measuring) & (self._of == number))
                walk = _walk(k, setting, self._view.header.sets, each)
                answers = search.by_walk(self._view, self._queries[rows], walk, each.condition) if len(rows) else []
                ended = [(row, answer) for row, answer in zip(rows, answers, strict=True) if len(answer.keys) >= k]
                parts += [np.isin(self._truth[row, :k], answer.distances)[None] for row, answer in ended]
            found = np.concatenate(parts)
            self._known[setting, choosing, k] = found if len(found) > 2 else np.zeros((3, k), np.bool_)
        return self._known[setting, choosing, k]


def _setting(factor: float, plain: int) -> Setting:
    return Setting(factor, plain, factor * plain)


def _walk(k: int, setting: Setting, n: int, filter_: Filter) -> search.Walk:
    plan = Calibration(k, 0.0, setting.reach, setting.depth, 0.0, 0.0, 0, n)
    return search.filtered_walk(plan, n, filter_.left)


def likely_filters(view: PostgresView) -> list[Filter]:
    """Return filters like those that users may have."""
    return [*_drawn(view), *_own(view)]


def _drawn(view: PostgresView) -> list[Filter]:
    """Return filters that leave sets at random."""
    draw = "(hashint8(key) & 1048575) < %s"
    return [_counted(view, Condition(draw, (round(share * (1 << 20)),)), True) for share in DRAWN_SHARES]


def _own(view: PostgresView) -> list[Filter]:
    """Return filters by values that stored sets have, from those that leave few to those that leave many."""
    keys = view.select()
    keys = keys[np.unique(np.linspace(0, len(keys) - 1, LOOKED_AT).astype(np.int64))]
    sql = f"SELECT fields::text FROM {view.tables.sets} WHERE key = ANY (%s)"
    seen: Counter[str] = Counter()
    for (text,) in view.execute(sql, (keys.tolist(),)):
        pairs = ((name, value) for name, values in json.loads(text).items() for value in values)
        seen.update({json.dumps({name: [value]}, ensure_ascii=False, sort_keys=True) for name, value in pairs})
    usual = [text for text, n in seen.most_common() if SELDOM <= n / len(keys) <= OFTEN]
    chosen = {usual[i] for i in np.linspace(0, len(usual) - 1, OWN_FILTERS).astype(int)} if usual else set()
    return [_counted(view, Condition("fields @> %s::jsonb", (text,)), False) for text in sorted(chosen)]


def _counted(view: PostgresView, condition: Condition, drawn: bool) -> Filter:
    view.set_modes(scanning.SCAN_MODES)
    sql = f"SELECT count(*) FROM {view.tables.sets} WHERE {condition.sql}"
    (left,) = view.execute(sql, condition.parameters, prepare=False).fetchone()
    return Filter(condition, left, drawn)
