"""Filters from text: `kind = chair and 2010 < year <= 2020` comes in, the tree goes out, or an error that points at the
character. What str() of a tree writes is read back as an equal tree.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from ..errors import InputError
from .metadata import MAX_DEPTH, checked, filter_value
from .tree import (
    ALL,
    EMPTY_ID,
    EMPTY_PREFIX,
    ID,
    KEYWORDS,
    OPERATORS,
    OTHER_SIDE,
    Equal,
    Key,
    Node,
    Value,
    all_of,
    any_of,
    between,
    exists,
    not_,
    one_of,
    unquoted,
)

_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"]|"")*"|'(?:[^']|'')*')|(?P<operator>[=!<>]+)|(?P<mark>[(),])"""
    r"""|(?P<word>[^\s"'=!<>(),]+)|(?P<end>$)|(?P<open>["']))"""
)
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


def parse_number(text: str) -> int | float | None:
    """Return the number that a text stands for, which may be too large to be stored; None if it is not a number.

    >>> parse_number("-2"), parse_number("1e3"), parse_number("1_000"), parse_number("nan")
    (-2, 1000.0, None, None)
    """
    if not _NUMBER.fullmatch(text):
        return None
    digits = text.lstrip("+-")
    if not digits.isdigit():
        return float(text)
    size = int(digits.lstrip("0")[:30] or 0)  # more digits are beyond 64 bits in any case
    return -size if text[0] == "-" else size


class _Token(NamedTuple):
    kind: str
    text: str
    start: int

    @property
    def keyword(self) -> str:
        word = self.text.lower()
        return word if self.kind == "word" and word in KEYWORDS else ""


def parse_text(text: str) -> Node:
    """Return the tree of a filter in the text form. Every set passes (), and empty text is refused.

    >>> from slosh.where import parse
    >>> parse_text("kind = chair and not (year > 2010)") == parse({"kind": "chair", "not": {"year": {">": 2010}}})
    True
    """
    parser = _Parser(str(checked(text, "where")))
    if parser.token.kind == "end":  # where a variable was not set, "all sets" would be a disaster
        raise InputError("where is empty text", "give a condition, such as 'kind = chair'", argument="where")
    node = parser.expression(0)
    if parser.token.kind != "end":
        parser.fail("expected and, or, or the end here")
    return node


class _Parser:
    """Recursive descent, one token ahead."""

    def __init__(self, text: str) -> None:
        self.text, self.stop = text, 0
        self.token = self.read()

    def read(self) -> _Token:
        match = _TOKEN.match(self.text, self.stop)
        assert match is not None  # every character begins a token
        kind = str(match.lastgroup)
        self.stop = match.end()
        if kind == "open":
            self.fail("this quote is not closed; a quote inside of quotes is doubled", match.start(kind))
        return _Token(kind, match[kind], match.start(kind))

    def advance(self) -> _Token:
        before, self.token = self.token, self.read()
        return before

    def accept(self, text: str) -> bool:
        """Takes the next token if it is this keyword or mark."""
        found = self.token.keyword == text or (self.token.kind == "mark" and self.token.text == text)
        if found:
            self.advance()
        return found

    def operand(self, expected: str) -> _Token:
        if self.token.kind not in ("word", "string"):
            self.fail(f"expected {expected}")
        return self.advance()

    def fail(self, why: str, start: int | None = None) -> NoReturn:
        at = self.token.start if start is None else start
        first = max(0, at - 70)
        line = re.sub(r"\s", " ", self.text[first : at + 40])
        raise InputError(f"where, character {at + 1}: {why}\n    {line}\n    {' ' * (at - first)}^", argument="where")

    def expression(self, depth: int) -> Node:
        parts = [self.term(depth)]
        while self.accept("or"):
            parts.append(self.term(depth))
        return any_of(parts)

    def term(self, depth: int) -> Node:
        parts = [self.factor(depth)]
        while self.accept("and"):
            parts.append(self.factor(depth))
        return all_of(parts)

    def factor(self, depth: int) -> Node:
        negated = False
        while self.accept("not"):
            negated = not negated
        start = self.token.start
        if not self.accept("("):
            node = self.comparison()
        elif depth >= MAX_DEPTH:
            self.fail(f"parentheses are nested more than {MAX_DEPTH} deep: take some out", start)
        elif self.accept(")"):
            node = ALL
        else:
            node = self.expression(depth + 1)
            if not self.accept(")"):
                self.fail("expected and, or, or a closing parenthesis here")
        return not_(node) if negated else node

    def comparison(self) -> Node:
        first = self.operand("a field here, as in: kind = chair")
        if self.token.kind != "operator":
            return self.membership(self.field(first))
        op, start = self.token.text, self.token.start
        self.advance()
        if op not in OPERATORS:
            self.fail(f"{op} is not an operator; give one of {', '.join(OPERATORS)}", start)
        second = self.operand(f"a value after {op}; quote a string that is not one plain word")
        if self.token.kind == "operator":
            return self.chain(first, op, second)
        key = self.field(first)
        value = self.value(second, key)
        if op in ("=", "!="):
            return Equal(key, value) if op == "=" else not_(Equal(key, value))
        return between(key, [(op, value)], self.fail)

    def chain(self, first: _Token, left: str, field: _Token) -> Node:
        """2010 < year <= 2020: the second operator comes next."""
        right, start = self.token.text, self.token.start
        if left not in OTHER_SIDE or right not in OTHER_SIDE or left[0] != right[0]:
            self.fail("two comparisons in a row go one way, as in 2010 < year <= 2020; otherwise write and")
        self.advance()
        last = self.operand(f"a value after {right}")
        key = self.field(field)
        bounds = [(OTHER_SIDE[left], self.value(first, key)), (right, self.value(last, key))]
        return between(key, bounds, lambda why: self.fail(f"this {why}", start))

    def membership(self, key: Key) -> Node:
        negated = self.accept("not")
        if self.accept("exists"):
            return not_(exists(key)) if negated else exists(key)
        if (
            not negated and self.token.kind == "word" and self.token.text.lower() == "prefix"
        ):  # a field may be so called
            self.advance()
            start, prefix = self.token.start, self.string(self.operand("a string after prefix"))
            if not prefix:
                self.fail(f"{EMPTY_PREFIX}: write exists to ask for any value", start)
            return between(key, [("prefix", prefix)], self.fail)
        if not self.accept("in"):
            self.fail(f"expected {'in or exists' if negated else 'one of ' + ', '.join(OPERATORS)} here")
        if not self.accept("("):
            self.fail("expected a list in parentheses after in, as in: kind in (chair, sofa)")
        values: list[Value] = []
        while not self.accept(")"):
            values.append(self.value(self.operand("a value or a closing parenthesis here"), key))
            if not self.accept(",") and self.token.text != ")":
                self.fail("expected a comma or a closing parenthesis here")
        node = one_of(key, values)
        return not_(node) if negated else node

    def field(self, token: _Token) -> Key:
        if token.kind == "string":
            return unquoted(token.text)
        if token.keyword or parse_number(token.text) is not None:
            self.fail(f'expected a field; quote one that is called {token.text}: "{token.text}"', token.start)
        return None if token.text == ID else token.text

    def string(self, token: _Token) -> str:
        """Return what is quoted, or one word, whatever it looks like."""
        if token.kind == "string":
            return unquoted(token.text)
        if token.keyword == "null":
            self.fail('null is not a value: write "field not exists", or quote it if it is a string', token.start)
        if token.keyword:
            self.fail(f'expected a value; quote a string that is {token.text}: "{token.text}"', token.start)
        return token.text

    def value(self, token: _Token, key: Key) -> Value:
        """Return the value that a field is compared with: a string where the field is the id of the set."""
        if token.keyword in ("true", "false") and key is not None:
            return int(token.keyword == "true")
        text = self.string(token)
        if key is None and not text:
            self.fail(f"{EMPTY_ID}: leave it out to mean all sets", token.start)
        if key is None or token.kind == "string" or (number := parse_number(text)) is None:
            return text
        try:
            return filter_value(number, "this")
        except InputError as error:
            self.fail(f"{error.problem}: {error.remedy}", token.start)
