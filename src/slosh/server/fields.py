"""The fields of the metadata and their values, for filters and colours on the page."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.responses import Response

from ..where import NO_VALUE, fields_of
from .answer_types import FieldLine, FieldsAnswer, FieldValue
from .answers import json_response
from .dependencies import ReaderOf, query
from .drawing import spread
from .openapi import described
from .request_types import FieldValues

router = APIRouter()

SAMPLED_SETS = 10_000
MAX_FIELDS, MAX_COUNTED = 200, 20_000
"""Fields that are listed, and different values of one that are counted."""
MAX_TEXT = 200
"""Characters of a value that is listed."""


@router.get(
    "/v1/indexes/{name:quoted}/fields",
    **described("Fields of the metadata, with their values.", FieldsAnswer, query=FieldValues),
)
def fields(asking: ReaderOf, given: Annotated[FieldValues, Depends(query(FieldValues))]) -> Response:
    most, index = given.values, asking.open()
    total = len(index)
    n_seen = 0
    counts: dict[str, Counter[Any]] = {}
    sets: Counter[str] = Counter()
    for limit, offset in spread(total, SAMPLED_SETS):
        found = index.describe(limit=limit, offset=offset)
        n_seen += len(found.ids)
        for about in found.metadata:
            pairs = [(name, value) for name, value in fields_of(about, "metadata") if value != NO_VALUE]
            sets.update({name for name, _ in pairs})
            for name, value in pairs:
                if name not in counts and len(counts) >= MAX_FIELDS:
                    continue
                counter = counts.setdefault(name, Counter())
                key = (type(value) is bool, value)  # True is 1, and a field of both is not one of numbers
                if key in counter or len(counter) < MAX_COUNTED:
                    counter[key] += 1
    lines = [_line(name, counter, sets[name], most) for name, counter in sorted(counts.items())]
    return json_response(FieldsAnswer(n_seen, total, lines))


def _line(name: str, counter: Counter[Any], n_sets: int, most: int) -> FieldLine:
    kinds = {"boolean" if is_bool else "text" if isinstance(value, str) else "number" for is_bool, value in counter}
    numbers = [float(value) for is_bool, value in counter if not is_bool and not isinstance(value, str)]
    top = sorted(counter.items(), key=lambda item: (-item[1], isinstance(item[0][1], str), item[0][1]))[:most]
    values = [FieldValue(value[:MAX_TEXT] if isinstance(value, str) else value, n) for (_, value), n in top]
    least, greatest = (min(numbers), max(numbers)) if numbers else (None, None)
    kind: Any = kinds.pop() if len(kinds) == 1 else "mixed"
    return FieldLine(name, kind, n_sets, len(counter), least, greatest, values)
