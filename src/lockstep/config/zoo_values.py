"""Values in hyperparameter files of rl-baselines3-zoo, some of which are Python expressions in strings."""

import ast
from typing import Any

__all__ = ["literal", "whole_number"]


def whole_number(name: str, value: object) -> int:
    """Return a whole number from 1 to 10¹², which YAML may have read as a float. Raises ValueError for other values."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1 or not 1 <= value <= 1e12:
        raise ValueError(f"{name} is {value!r:.60}: it must be a whole number from 1 to 1e12")
    return int(value)


def literal(name: str, value: object) -> dict[str, Any]:
    """Return a dict that is given as such or as a Python expression of literals, `dict(…)` and names such as `nn.ReLU`.

    A name becomes the text after its last dot. Raises ValueError for anything else: the expression is not executed.
    """
    try:
        parsed = _evaluate(ast.parse(value.strip(), mode="eval").body) if isinstance(value, str) else value
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise ValueError(f"{name} is {value!r:.90}: it must be a dict of literals")
    return parsed


def _evaluate(node: ast.expr) -> Any:
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict" and not node.args:
        return {str(word.arg): _evaluate(word.value) for word in node.keywords}
    if isinstance(node, ast.Dict):
        return {
            ast.literal_eval(key): _evaluate(value) for key, value in zip(node.keys, node.values, strict=True) if key
        }
    if isinstance(node, ast.List | ast.Tuple):
        return [_evaluate(element) for element in node.elts]
    return ast.literal_eval(node)
