"""Operations of PyTorch that are not element-wise: new tensors, copies, reductions, products and indexing."""

import math

import torch
from torch import Tensor

from lockstep.compiling.lowering import Call, Expression, LoweringContext, register_lowering
from lockstep.compiling.values import Unsupported, Value, View

__all__: list[str] = []


def _fill(lowering: LoweringContext, result: Tensor, number: float, shared: bool = True) -> None:
    Expression(lowering, result).finish(number, shared)


@register_lowering("zeros", "new_zeros", "zeros_like", "zero_")
def _zeros(lowering: LoweringContext, call: Call) -> None:
    _fill(lowering, call.results[0], 0)


@register_lowering("ones", "new_ones", "ones_like")
def _ones(lowering: LoweringContext, call: Call) -> None:
    _fill(lowering, call.results[0], 1)


@register_lowering("scalar_tensor")
def _scalar_tensor(lowering: LoweringContext, call: Call) -> None:
    _fill(lowering, call.results[0], call.args[0])


@register_lowering("full", "full_like")
def _full(lowering: LoweringContext, call: Call) -> None:
    _fill(lowering, call.results[0], call.args[1])


@register_lowering("new_full")
def _new_full(lowering: LoweringContext, call: Call) -> None:
    _fill(lowering, call.results[0], call.args[2])


@register_lowering("arange")
def _arange(lowering: LoweringContext, call: Call) -> None:
    """Add nothing: the numbers are captured."""


@register_lowering("_to_copy")
def _to_copy(lowering: LoweringContext, call: Call) -> None:
    source, result = call.args[0], call.results[0]
    expression = Expression(lowering, result)
    if result.dtype == torch.bool and source.dtype != torch.bool:
        expression.finish(expression("not_equal", source, 0))
    elif source.is_floating_point() and not result.is_floating_point():
        expression.finish(expression("truncate", source))
    else:
        expression.finish(source)


@register_lowering("copy_")
def _copy(lowering: LoweringContext, call: Call) -> None:
    target, source = call.args[:2]
    if source.dtype != target.dtype and not target.is_floating_point():
        raise Unsupported(f"copies of {source.dtype} to {target.dtype}")
    whole = torch.empty(0, dtype=target.dtype).set_(target.untyped_storage())
    Expression(lowering, whole).finish(whole, shared=False)  # other tensors may have the same value
    lowering.builder.copy(lowering.view(source.expand(target.shape)), lowering.view(target))


@register_lowering("cat", "stack")
def _cat(lowering: LoweringContext, call: Call) -> None:
    parts, dim = call.args[0], call.args[1] if len(call.args) > 1 else 0
    result, start = call.results[0], 0
    lowering.define(result, Value(result.numel()))
    for part in parts if call.name == "cat" else [part.unsqueeze(dim) for part in parts]:
        if part.numel():
            target = result.narrow(dim, start, part.shape[dim])
            lowering.builder.copy(lowering.view(part), lowering.view(target))
            start += part.shape[dim]


@register_lowering("slice_backward")
def _slice_backward(lowering: LoweringContext, call: Call) -> None:
    (gradient, _, dim, *bounds), result = call.args, call.results[0]
    _fill(lowering, result, 0, shared=False)
    target = result[(slice(None),) * (dim % result.dim()) + (slice(*bounds),)]
    lowering.builder.copy(lowering.view(gradient), lowering.view(target))


@register_lowering("select_backward")
def _select_backward(lowering: LoweringContext, call: Call) -> None:
    (gradient, _, dim, index), result = call.args, call.results[0]
    _fill(lowering, result, 0, shared=False)
    lowering.builder.copy(lowering.view(gradient), lowering.view(result.select(dim, index)))


@register_lowering("sum", "mean")
def _sum(lowering: LoweringContext, call: Call) -> None:
    source, result = call.args[0], call.results[0]
    dims = _dims(source, call.args[1] if len(call.args) > 1 else None)
    lowering.define(result, lowering.builder.reduce(lowering.view(source), dims))
    if call.name == "mean":
        expression = Expression(lowering, result)
        count = math.prod(source.shape[d] for d in dims)
        expression.finish(expression("divide", result, count))


@register_lowering("amax")
def _amax(lowering: LoweringContext, call: Call) -> None:
    source = call.args[0]
    dims = _dims(source, call.args[1] if len(call.args) > 1 else None)
    lowering.define(call.results[0], lowering.builder.reduce(lowering.view(source), dims, maximum=True))


@register_lowering("argmax")
def _argmax(lowering: LoweringContext, call: Call) -> None:
    source, dim, result = call.args[0], call.args[1] if len(call.args) > 1 else None, call.results[0]
    if dim is None or not source.numel():
        raise Unsupported("argmax without a dimension, or of nothing")
    lowering.define(result, lowering.builder.argmax(lowering.view(_rows(source, dim))))


def _dims(source: Tensor, dims: list[int] | None) -> list[int]:
    """Return the reduced dimensions, ascending; without `dims`, all of them."""
    return sorted(d % source.dim() for d in dims) if dims and source.dim() else [*range(source.dim())]


@register_lowering("_log_softmax")
def _log_softmax(lowering: LoweringContext, call: Call) -> None:
    source, dim = call.args[0], call.args[1]
    expression = Expression(lowering, call.results[0])
    shifted = expression("subtract", source, _reduced(lowering, lowering.view(source), dim, maximum=True))
    total = _reduced(lowering, expression("exp", shifted), dim)
    expression.finish(expression("subtract", shifted, expression("log", total)))


@register_lowering("_log_softmax_backward_data")
def _log_softmax_backward(lowering: LoweringContext, call: Call) -> None:
    gradient, output, dim = call.args[:3]
    expression = Expression(lowering, call.results[0])
    total = _reduced(lowering, lowering.view(gradient), dim)
    expression.finish(expression("subtract", gradient, expression("multiply", expression("exp", output), total)))


def _reduced(lowering: LoweringContext, view: View, dim: int, maximum: bool = False) -> View:
    """Reduce the last dimension of a view, and broadcast the result to the view's sizes."""
    if dim % len(view.sizes) != len(view.sizes) - 1:
        raise Unsupported("softmax over a dimension that is not the last one")
    value = lowering.builder.reduce(view, [len(view.sizes) - 1], maximum)
    return View(value, 0, view.sizes, (*View.contiguous(value, view.sizes[:-1]).strides, 0))


@register_lowering("mm", "addmm", "bmm", "baddbmm")
def _product(lowering: LoweringContext, call: Call) -> None:
    if any(call.kwargs.get(name, 1) != 1 for name in ("alpha", "beta")):
        raise Unsupported("matrix products with alpha or beta other than 1")
    *biases, left, right = call.args
    result, bias = call.results[0], None
    if biases:
        whole = biases[0].expand(result.shape)
        if whole.shape[-1] != 1 and whole.stride(-1) != 1:
            raise Unsupported("products to which rows are added that are not contiguous")
        bias = lowering.view(_batch(whole)) if whole.numel() else None
    factors = lowering.view(_batch(left)), lowering.view(_batch(right))
    lowering.define(result, lowering.builder.product(*factors, bias))


def _batch(matrix: Tensor) -> Tensor:
    """Return one matrix as a batch of one."""
    return matrix if matrix.dim() == 3 else matrix.unsqueeze(0)


@register_lowering("gather")
def _gather(lowering: LoweringContext, call: Call) -> None:
    source, dim, index = call.args[:3]
    views = (lowering.view(_rows(tensor, dim)) for tensor in (source, index))
    lowering.define(call.results[0], lowering.builder.gather(*views))


@register_lowering("scatter_add")
def _scatter_add(lowering: LoweringContext, call: Call) -> None:
    start, dim, index, source = call.args
    Expression(lowering, call.results[0]).finish(start, shared=False)
    lowering.builder.scatter_add(*(lowering.view(_rows(tensor, dim)) for tensor in (call.results[0], index, source)))


def _rows(tensor: Tensor, dim: int) -> Tensor:
    """Return a vector or matrix that is indexed along its last dimension as a matrix."""
    if tensor.dim() > 2 or dim % tensor.dim() != tensor.dim() - 1:
        raise Unsupported("indexing along a dimension that is not the last of a vector or matrix")
    return tensor if tensor.dim() == 2 else tensor.unsqueeze(0)
