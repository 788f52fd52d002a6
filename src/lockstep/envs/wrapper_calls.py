"""Calls of wrappers as `env.wrappers` has them. Reading a config imports this module, so it must not import Gymnasium."""

import ast
from dataclasses import dataclass
from typing import Any

__all__ = ["WrapperCall", "parse_wrapper"]

_FORM = "a wrapper is written as a call in Python, such as FrameStackObservation(stack_size=4)"


@dataclass(frozen=True)
class WrapperCall:
    """Name and arguments of a wrapper."""

    name: str
    arguments: dict[str, Any]


def parse_wrapper(text: str) -> WrapperCall:
    """Parse `NAME` or `NAME(argument=value, …)`, with literals as values. Raises ValueError in one line for other text."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
        call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
        if not isinstance(call.func, ast.Name) or call.args or any(word.arg is None for word in call.keywords):
            raise ValueError
        return WrapperCall(call.func.id, {str(word.arg): ast.literal_eval(word.value) for word in call.keywords})
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        raise ValueError(
            f"env.wrappers has {text!r:.90}: {_FORM}, with arguments by name, and text in quotes"
        ) from None
