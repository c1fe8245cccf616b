"""FAISS's factory strings, as far as `FaissSearch` takes them: parsed and bounded before FAISS sees anything of them.

A string comes from a user, or with an index from other people. FAISS's own parser would allocate whatever a string says
and trains for as long as it takes; so only the parts that are named here go on, with sizes in bounds.

    [TRANSFORM,]IVFn,CODES     inverted lists
    [TRANSFORM,]HNSWm[,CODES]  a graph
    [TRANSFORM,]CODES          a scan: Flat and SQ only
    TRANSFORM                  PCAn, PCARn, RRn, OPQm, OPQm_n
    CODES                      Flat, SQ4, SQ6, SQ8, SQfp16, SQbf16, PQm, PQmxb, PQmx4fs, PQmx4fsr, RaBitQ
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from ..errors import InputError

LONGEST_FACTORY = 100
"""Characters of a factory string."""
MAX_LISTS, MAX_LINKS, MAX_PARTS, MAX_WIDTH = 1 << 18, 128, 1 << 12, 1 << 12
"""Lists; links of a row in a graph; parts of a product code; numbers that a transform gives: at most."""
MAX_TURNED = 1 << 12
"""Numbers of vectors that are rotated whole, by RR or OPQ: the rotation has as many squared."""
MIN_BITS, MAX_BITS = 4, 10
"""Bits of a part of a product code."""
TRAIN_FROM_ROWS = 1024
"""With fewer rows every search is exact."""
ROWS_FOR_OPQ = 39 * 256
"""With fewer rows FAISS warns that its 256 codes of a part, which OPQ is learnt with, are learnt from too few."""
ROWS_PER_LIST, ROWS_PER_CODE = 8, 4
"""Rows that are needed to train, for each list, and for each code of a part."""
LONG_VECTOR, KEPT_DIRECTIONS = 128, 64
"""Longer vectors are cut to this many directions where the factory is left to slosh."""
SHORT_VECTOR = 16
"""Shorter ones lie in the lists as they are."""
LISTS_EXPONENT, FEWEST_FOR_LISTS = 0.62, 4096
"""So many lists, as a power of the rows, from so many rows on."""

_TRANSFORM = r"(?:(?P<transform>PCAR?|RR|OPQ)(?P<first>\d{1,6})(?:_(?P<second>\d{1,6}))?,)?"
_SCALARS = r"Flat|SQ[468]|SQfp16|SQbf16"
_CODES = rf"{_SCALARS}|RaBitQ|PQ(?P<parts>\d{{1,6}})(?:x(?P<bits>\d{{1,2}}))?(?P<fast>fsr?)?"
_FACTORY = re.compile(
    rf"{_TRANSFORM}(?:IVF(?P<lists>\d{{1,7}}),(?P<codes>{_CODES})|HNSW(?P<links>\d{{1,4}})(?:,(?P<stored>{_SCALARS}))?"
    rf"|(?P<scanned>{_SCALARS}))"
)
_KNOWN = 'give one such as "HNSW32", "IVF1024,SQ8", "IVF256,PQ32x4fs" or "PCA32,IVF512,Flat", or None'
_REMEDIES = (
    (r"(?i),R(?:Flat|efine)", "leave the refinement out: the candidates are always compared by their vectors"),
    (r"(?i)^B", "binary indexes hold codes, not vectors: use HammingSearch for sign codes"),
    (r"(?i)IDMap", "leave IDMap out: rows are counted by slosh"),
    (r"^(?:.*,)?PQ", 'put product codes into lists, as in "IVF1,PQ16": FAISS takes no filter without'),
    (r"(?i)L2norm", "bring the vectors to unit length before you add them"),
)


@dataclass(frozen=True)
class Factory:
    """The parts of a factory string.

    transform : "PCA", "PCAR" (with a random rotation), "RR" (a random rotation), "OPQ", or "" for none.
    n_out : numbers that the transform gives; 0 for OPQ: as many as there are.
    n_turned : parts of a product code that OPQ turns the vectors for.
    n_lists : inverted lists, 0 for none.
    n_links : links of a row in the graph, 0 for none.
    codes : how vectors are stored.
    n_parts, n_bits : of a product code, 0 for others.
    """

    text: str
    transform: str
    n_out: int
    n_turned: int
    n_lists: int
    n_links: int
    codes: str
    n_parts: int
    n_bits: int

    @property
    def is_fast_scan(self) -> bool:
        """Whether the product codes are scanned in registers."""
        return "fs" in self.codes

    @property
    def rows_needed(self) -> int:
        """Rows that it takes to train."""
        least = ROWS_FOR_OPQ if self.transform == "OPQ" else TRAIN_FROM_ROWS
        return max(least, ROWS_PER_LIST * self.n_lists, ROWS_PER_CODE * (1 << self.n_bits), self.n_out + 1)

    def transformed_width(self, dim: int) -> int:
        """Return how many numbers the transform makes of vectors of `dim` numbers."""
        if self.transform == "OPQ" and not self.n_out:
            return dim // self.n_turned * self.n_turned
        return self.n_out if self.transform else dim

    def padded_width(self, width: int) -> int:
        """Return the length of what FAISS gets: filled up with zeros to a multiple of the parts of a product code."""
        return -(-width // self.n_parts) * self.n_parts if self.n_parts else width

    def check_dim(self, dim: int) -> None:
        """Refuse (InputError) vectors that are too short for it."""
        width = self.transformed_width(dim)
        if not 1 <= width <= dim:
            raise _wrong(self.text, f"{self.transform} gives {width or self.n_turned} numbers, vectors have {dim}")
        if self.transform in ("RR", "OPQ") and dim > MAX_TURNED:
            problem = f"factory={self.text!r}: {self.transform} rotates vectors of {dim:,} numbers"
            raise InputError(problem, f"use PCA or PCAR from {MAX_TURNED:,} numbers on", argument="factory")
        if self.n_parts > width:
            raise _wrong(self.text, f"a product code of {self.n_parts} parts is made of {width} numbers")


def parse_factory(text: Any) -> Factory:
    """Return the parts of a factory string; refuse (InputError) what is not known, or too large."""
    if not isinstance(text, str) or len(text) > LONGEST_FACTORY or not text.isascii():
        raise InputError(f"factory={text!r:.60} is no factory string", _KNOWN, argument="factory")
    found = _FACTORY.fullmatch(text)
    if found is None:
        remedy = next((remedy for pattern, remedy in _REMEDIES if re.search(pattern, text)), _KNOWN)
        raise InputError(f"factory={text!r} is not known", remedy, argument="factory")
    parts = found.groupdict()
    number = {name: int(parts[name] or 0) for name in ("first", "second", "lists", "links", "parts", "bits")}
    transform, is_opq = parts["transform"] or "", parts["transform"] == "OPQ"
    if parts["second"] and not is_opq:
        raise InputError(f"factory={text!r} is not known", _KNOWN, argument="factory")
    codes = parts["codes"] or parts["stored"] or parts["scanned"] or "Flat"
    n_bits = (number["bits"] or 8) if number["parts"] else 0
    made = Factory(
        text, transform, number["second" if is_opq else "first"], number["first"] if is_opq else 0, number["lists"],
        number["links"], codes, number["parts"], n_bits,
    )  # fmt: skip
    _check_sizes(made, parts)
    return made


def _check_sizes(made: Factory, parts: dict[str, str | None]) -> None:
    bounds = [
        ("lists", parts["lists"], made.n_lists, 1, MAX_LISTS),
        ("links", parts["links"], made.n_links, 2, MAX_LINKS),
        ("parts of a product code", parts["parts"], made.n_parts, 1, MAX_PARTS),
        ("bits of a part", parts["parts"], made.n_bits, MIN_BITS, MAX_BITS),
        ("parts of OPQ", made.n_turned or parts["transform"] == "OPQ", made.n_turned, 1, MAX_PARTS),
        ("numbers of the transform", made.n_out or (made.transform not in ("", "OPQ")), made.n_out, 1, MAX_WIDTH),
    ]
    for what, given, number, least, most in bounds:
        if given and not least <= number <= most:
            raise InputError(f"factory={made.text!r}: {number} {what}", f"give {least} to {most:,}", argument="factory")
    if made.is_fast_scan and made.n_bits != 4:
        raise InputError(f"factory={made.text!r}: fast scan is for 4 bits", "give PQmx4fs", argument="factory")
    if made.n_turned and made.n_out % made.n_turned:
        raise _wrong(made.text, f"OPQ turns {made.n_out} numbers into {made.n_turned} equal parts")


def default_factory(n: int, dim: int) -> str:
    """Return the factory of n rows of `dim` numbers: lists, and four bits for every two numbers.

    >>> default_factory(60_000, 64), default_factory(1_000_000, 1025), default_factory(5000, 8)
    ('IVF1024,PQ32x4fs', 'PCAR64,IVF4096,PQ32x4fs', 'IVF256,Flat')
    """
    n_lists = max(16, min(2 ** round(LISTS_EXPONENT * math.log2(n)), MAX_LISTS)) if n >= FEWEST_FOR_LISTS else 16
    if dim > LONG_VECTOR:
        return f"PCAR{KEPT_DIRECTIONS},IVF{n_lists},PQ{KEPT_DIRECTIONS // 2}x4fs"
    return f"IVF{n_lists}," + ("Flat" if dim < SHORT_VECTOR else f"PQ{-(-dim // 2)}x4fs")


def _wrong(text: str, why: str) -> InputError:
    return InputError(f"factory={text!r}: {why}", "give a smaller number, or longer vectors", argument="factory")
