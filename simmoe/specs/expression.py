"""Conditions and sums over the keys of a sweep, as text: a tree of few allowed forms, never executed as code."""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from simmoe.errors import SpecError
from simmoe.specs.text_file import got

_LONGEST = 500
_LARGEST = 10**18
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARED: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs, "round": round, "int": int}
_FORMS = "keys, numbers, texts, + - * / // %, comparisons, and, or, not, ( ) and min max abs round int"


class Expression:
    """A formula over keys such as ``plan.tensor_parallel * plan.pipeline_parallel <= 64``.

    Parameters
    ----------
    text : str

    Attributes
    ----------
    text : str
    keys : tuple of str
        Those that it names, sorted.

    Raises
    ------
    SpecError
        If the text is no formula of the allowed forms.

    Examples
    --------
    >>> fits = Expression("plan.tensor_parallel * n <= 8 and not name == 'x'")
    >>> fits.keys, fits.value({"plan.tensor_parallel": 2, "n": 4, "name": "y"})
    (('n', 'name', 'plan.tensor_parallel'), True)
    """

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            tree = ast.parse(text.strip(), mode="eval") if len(text) <= _LONGEST else None
        except (SyntaxError, ValueError, MemoryError, RecursionError):
            tree = None
        if tree is None:
            raise SpecError([f"no formula {got(text)}, write {_FORMS}"])
        self._tree = tree.body
        self.keys = tuple(sorted(_keys(self._tree, text)))

    def value(self, point: Mapping[str, Any]) -> Any:
        """What it comes to.

        Parameters
        ----------
        point : mapping of str to Any
            Every key of `keys`, and its value.

        Raises
        ------
        SpecError
            If it cannot be computed from these: a text in a sum, a division by zero.
        """
        try:
            found = _value(self._tree, point)
        except (TypeError, ValueError, ArithmeticError) as error:
            values = ", ".join(f"{key} = {point[key]!r}" for key in self.keys)
            raise SpecError(
                [f"{self.text}: cannot be computed from {values} ({error}), correct the formula"]
            ) from error
        return found


def _keys(node: ast.AST, text: str) -> set[str]:  # noqa: PLR0911 - a form, a line
    """The keys of a tree, each node of which is of an allowed form."""
    match node:
        case ast.Constant(value=int() | float() | str() | bool()):
            return set()
        case ast.Name() | ast.Attribute():
            return {_key(node, text)}
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _keys(left, text) | _keys(right, text)
        case ast.UnaryOp(op=ast.USub() | ast.Not(), operand=operand):
            return _keys(operand, text)
        case ast.BoolOp(values=values):
            return set().union(*(_keys(value, text) for value in values))
        case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _COMPARED for op in ops):
            return set().union(*(_keys(value, text) for value in (left, *others)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS and args:
            return set().union(*(_keys(value, text) for value in args))
    raise SpecError([f"no formula {got(text)}, write {_FORMS}"])


def _key(node: ast.AST, text: str) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=inner, attr=name):
            return f"{_key(inner, text)}.{name}"
    raise SpecError([f"no formula {got(text)}, write {_FORMS}"])


def _value(node: ast.AST, point: Mapping[str, Any]) -> Any:  # noqa: PLR0911 - a form, a line
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name() | ast.Attribute():
            return point[_key(node, "")]
        case ast.BinOp(left=left, op=op, right=right):
            return _bounded(_BINARY[type(op)](_number(_value(left, point)), _number(_value(right, point))))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, point)
        case ast.UnaryOp(operand=operand):
            return -_number(_value(operand, point))
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_value(value, point) for value in values)
        case ast.BoolOp(values=values):
            return any(_value(value, point) for value in values)
        case ast.Compare(left=left, ops=ops, comparators=others):
            values = [_value(value, point) for value in (left, *others)]
            return all(_COMPARED[type(op)](a, b) for op, a, b in zip(ops, values, values[1:], strict=False))
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name](*(_number(_value(value, point)) for value in args))
    raise TypeError("not an allowed form")


def _number(value: Any) -> Any:
    if isinstance(value, bool | int | float):
        return value
    raise TypeError(f"{value!r} is no number")


def _bounded(value: Any) -> Any:
    if not math.isfinite(value) or abs(value) > _LARGEST:
        raise ArithmeticError("too large")
    return value
