"""Convolutions, as products of the patches of images and the filters, and max-pooling."""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from lockstep.compiling.lowering import Call, LoweringContext, register_lowering
from lockstep.compiling.values import Unsupported, Value, View, collapse

__all__: list[str] = []

_CACHED = 2**16
"""Elements of the gradient of images that are computed at a time: they stay in the cache while every position of the filters adds to them."""
_MOST_ZEROS = 1.25
"""Greatest ratio of the sizes of images and gradients for which the gradient of images is a convolution of the padded gradients."""
_ROWS = (0, 2, 3, 1)
"""Dimensions of images `[N, C, H, W]` in the order `[N, H, W, C]`, that of their elements in memory."""
_IMAGES = (0, 3, 1, 2)
"""The inverse of _ROWS."""


class _Geometry(NamedTuple):
    """Parameters of a convolution or of pooling: how filters move over images."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]

    def patches(self, images: View, size: Sequence[int], filter_size: Sequence[int]) -> View:
        """View the patches of padded images `[N, H, W, C]` for filters of size (I, J) as `[N, Y, X, I, J, C]`. `size` is (Y, X)."""
        first, *steps, last = images.strides
        moves = (step * by for step, by in zip(steps, self.stride, strict=True))
        inside = (step * by for step, by in zip(steps, self.dilation, strict=True))
        sizes = images.sizes[0], *size, *filter_size, images.sizes[3]
        return View(images.value, images.offset, sizes, (first, *moves, *inside, last))


def _geometry(weight: Tensor, arguments: Sequence[Any]) -> _Geometry:
    stride, padding, dilation, transposed, _, groups = arguments
    if weight.dim() != 4 or transposed or groups != 1:
        raise Unsupported("convolutions that are transposed, grouped or not two-dimensional")
    return _Geometry(*map(_both, (stride, padding, dilation)))


def _both(numbers: Sequence[int]) -> list[int]:
    """Return a number for each dimension of an image."""
    return list(numbers) * (2 // len(numbers))


@register_lowering("convolution")
def _convolution(lowering: LoweringContext, call: Call) -> None:
    images, weight, bias, *arguments = call.args
    result, geometry = call.results[0], _geometry(weight, arguments)
    padded, filters = _padded(lowering, _rows(lowering, images), geometry.padding), lowering.view(weight)
    patches = geometry.patches(padded, result.shape[2:], weight.shape[2:])
    # the inner dimensions I, J and C, in the order in which the filters [O, C, I, J] are in memory
    order = sorted((2, 3, 1), key=lambda dim: -filters.strides[dim])
    left = _permuted(patches, (0, 1, 2, *({1: 5, 2: 3, 3: 4}[dim] for dim in order)))
    right = _flattened(_permuted(filters, (*order, 0)), 3)
    rows = View.contiguous(Value(result.numel()), _sizes(result.shape, _ROWS))
    lowering.builder.indexed_product(left, right, rows, None if bias is None else lowering.view(bias))
    _define(lowering, result, rows)


@register_lowering("convolution_backward")
def _convolution_backward(lowering: LoweringContext, call: Call) -> None:
    gradient, images, weight, _, *arguments, output_mask = call.args
    geometry, results = _geometry(weight, arguments), iter(call.results)
    rows = _contiguous_rows(lowering, gradient)
    if output_mask[0]:
        _images_gradient(lowering, rows, lowering.view(weight), next(results), geometry)
    if output_mask[1]:
        padded = _padded(lowering, _rows(lowering, images), geometry.padding)
        _filters_gradient(lowering, rows, geometry.patches(padded, rows.sizes[1:3], weight.shape[2:]), next(results))
    if output_mask[2]:
        lowering.define(next(results), lowering.builder.reduce(rows, [0, 1, 2]))


def _filters_gradient(lowering: LoweringContext, gradient: View, patches: View, result: Tensor) -> None:
    """Add up the products of gradients `[N, Y, X, O]` and patches `[N, Y, X, I, J, C]` of the images."""
    left, right = _permuted(patches, (3, 4, 5, 0, 1, 2)), _flattened(gradient, 3)
    product = View.contiguous(Value(result.numel()), (*left.sizes[:3], right.sizes[1]))
    lowering.builder.indexed_product(left, right, product)
    lowering.define(result, Value(result.numel()))
    lowering.builder.copy(_permuted(product, (3, 2, 0, 1)), lowering.view(result))


@register_lowering("max_pool2d_with_indices")
def _max_pool(lowering: LoweringContext, call: Call) -> None:
    images, *arguments = call.args
    (result, indices), (geometry, size) = call.results, _pooling(*arguments)
    padded = _padded(lowering, _rows(lowering, images), geometry.padding, -math.inf)
    _define(lowering, result, _maximum(lowering, geometry.patches(padded, result.shape[2:], size)))
    lowering.refuse(indices, "indices of max-pooling")


@register_lowering("max_pool2d_with_indices_backward")
def _max_pool_backward(lowering: LoweringContext, call: Call) -> None:
    """Add the gradient of each maximum to its element, the first one if several are equal. The indices are not used."""
    gradient, images, *arguments, _ = call.args
    result, (geometry, size) = call.results[0], _pooling(*arguments)
    rows, builder = _contiguous_rows(lowering, gradient), lowering.builder
    padded = _padded(lowering, _rows(lowering, images), geometry.padding, -math.inf)
    patches = geometry.patches(padded, rows.sizes[1:3], size)
    sums = _filled(lowering, padded.sizes, 0)
    targets = geometry.patches(sums, rows.sizes[1:3], size)
    maximum, zero, found = _maximum(lowering, patches), _uniform(lowering, rows.sizes, 0), None
    for position in itertools.product(*map(range, size)):
        chosen = dict(zip((3, 4), position, strict=True))
        is_less = builder.apply("less", rows.sizes, [_selected(patches, chosen), maximum])
        passed = is_less if found is None else builder.apply("or", rows.sizes, [is_less, found])
        part = builder.apply("where", rows.sizes, [passed, zero, rows])
        is_here = builder.apply("equal", rows.sizes, [is_less, zero])
        found = is_here if found is None else builder.apply("or", rows.sizes, [found, is_here])
        builder.copy(part, _selected(targets, chosen), adds=True)
    _define_inside(lowering, result, sums, geometry.padding)


def _pooling(
    size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[_Geometry, list[int]]:
    if ceil_mode:
        raise Unsupported("max-pooling in ceil mode")
    return _Geometry(*map(_both, (stride or size, padding, dilation))), _both(size)


def _maximum(lowering: LoweringContext, patches: View) -> View:
    """Return the maximum `[N, Y, X, C]` of patches `[N, Y, X, I, J, C]`."""
    views = [_selected(patches, {3: i, 4: j}) for i, j in itertools.product(*map(range, patches.sizes[3:5]))]
    sizes = views[0].sizes
    maximum = lowering.builder.apply("assign", sizes, views[:1])
    for view in views[1:]:
        maximum = lowering.builder.apply("maximum", sizes, [maximum, view])
    return maximum


def _images_gradient(
    lowering: LoweringContext, gradient: View, filters: View, result: Tensor, geometry: _Geometry
) -> None:
    """Compute the gradient of images from gradients `[N, Y, X, O]` and filters `[O, C, I, J]`."""
    reach = [(size - 1) * by for size, by in zip(filters.sizes[2:], geometry.dilation, strict=True)]
    around = [to - by for to, by in zip(reach, geometry.padding, strict=True)]
    is_dense = math.prod(result.shape[2:]) <= _MOST_ZEROS * math.prod(gradient.sizes[1:3])
    if max(geometry.stride) > 1 or min(around) < 0 or not is_dense:
        _scatter_gradient(lowering, gradient, filters, result, geometry)
        return
    # a convolution of the padded gradient with the filters turned by 180 degrees
    turned = _selected(filters, {2: filters.sizes[2] - 1, 3: filters.sizes[3] - 1})
    strides = -filters.strides[2], -filters.strides[3], *turned.strides
    copy = View.contiguous(Value(math.prod(filters.sizes)), (*filters.sizes[2:], *filters.sizes[:2]))
    lowering.builder.copy(View(filters.value, turned.offset, copy.sizes, strides), copy)
    inside = _Geometry((1, 1), (0, 0), geometry.dilation)
    left = inside.patches(_padded(lowering, gradient, around), result.shape[2:], filters.sizes[2:])
    rows = View.contiguous(Value(result.numel()), _sizes(result.shape, _ROWS))
    lowering.builder.indexed_product(left, _flattened(copy, 3), rows)
    _define(lowering, result, rows)


def _scatter_gradient(
    lowering: LoweringContext, gradient: View, filters: View, result: Tensor, geometry: _Geometry
) -> None:
    """Compute `_images_gradient` by adding the products for each position of the filters to the images, one position after the other."""
    count, channels, height, width = result.shape
    padding = geometry.padding
    images = _filled(lowering, (count, height + 2 * padding[0], width + 2 * padding[1], channels), 0)
    patches = geometry.patches(images, gradient.sizes[1:3], filters.sizes[2:])
    chunk = max(1, _CACHED // math.prod(images.sizes[1:]))
    copy = View.contiguous(Value(math.prod(filters.sizes)), _sizes(filters.sizes, (2, 3, 0, 1)))
    lowering.builder.copy(_permuted(filters, (2, 3, 0, 1)), copy)  # the rows of each position are next to each other
    for start in range(0, count, chunk):
        part, targets = _narrowed(gradient, start, chunk), _narrowed(patches, start, chunk)
        for i, j in itertools.product(*map(range, filters.sizes[2:])):
            right = _selected(copy, {0: i, 1: j})
            lowering.builder.indexed_product(part, right, _selected(targets, {3: i, 4: j}), adds=True)
    _define_inside(lowering, result, images, padding)


def _rows(lowering: LoweringContext, images: Tensor) -> View:
    """View images `[N, C, H, W]` as `[N, H, W, C]`."""
    return _permuted(lowering.view(images), _ROWS)


def _padded(lowering: LoweringContext, rows: View, padding: Sequence[int], number: float = 0) -> View:
    """Return images `[N, H, W, C]` with a number around them."""
    if not any(padding):
        return rows
    count, height, width, channels = rows.sizes
    whole = _filled(lowering, (count, height + 2 * padding[0], width + 2 * padding[1], channels), number)
    lowering.builder.copy(rows, _inside(whole, padding))
    return whole


def _inside(padded: View, padding: Sequence[int]) -> View:
    """Return padded images `[N, H, W, C]` without the padding."""
    count, height, width, channels = padded.sizes
    offset = padded.offset + sum(by * step for by, step in zip(padding, padded.strides[1:3], strict=True))
    sizes = count, height - 2 * padding[0], width - 2 * padding[1], channels
    return View(padded.value, offset, sizes, padded.strides)


def _contiguous_rows(lowering: LoweringContext, images: Tensor) -> View:
    """Return images `[N, C, H, W]` as `[N, H, W, C]`, a copy if they are not in this order in memory."""
    rows = _rows(lowering, images)
    if rows.is_contiguous:
        return rows
    copy = View.contiguous(Value(images.numel()), rows.sizes)
    lowering.builder.copy(rows, copy)
    return copy


def _define(lowering: LoweringContext, result: Tensor, rows: View) -> None:
    """Bind a result `[N, C, H, W]` to contiguous images `[N, H, W, C]`, or to a copy if its memory has another order."""
    order = tuple(result.stride(dim) for dim in _ROWS)
    if View(rows.value, 0, rows.sizes, order).is_contiguous:
        lowering.define(result, rows.value)
    else:
        lowering.define(result, Value(result.numel()))
        lowering.builder.copy(_permuted(rows, _IMAGES), lowering.view(result))


def _define_inside(lowering: LoweringContext, result: Tensor, padded: View, padding: Sequence[int]) -> None:
    """Bind a result to padded images `[N, H, W, C]` without the padding."""
    if any(padding):
        lowering.define(result, Value(result.numel()))
        lowering.builder.copy(_permuted(_inside(padded, padding), _IMAGES), lowering.view(result))
    else:
        _define(lowering, result, padded)


def _filled(lowering: LoweringContext, sizes: tuple[int, ...], number: float) -> View:
    return lowering.builder.apply("assign", sizes, [_uniform(lowering, sizes, number)], shared=False)


def _uniform(lowering: LoweringContext, sizes: tuple[int, ...], number: float) -> View:
    return View(lowering.builder.constant(number).value, 0, sizes, (0,) * len(sizes))


def _sizes(sizes: Sequence[int], dims: Sequence[int]) -> tuple[int, ...]:
    return tuple(sizes[dim] for dim in dims)


def _permuted(view: View, dims: Sequence[int]) -> View:
    return View(view.value, view.offset, _sizes(view.sizes, dims), _sizes(view.strides, dims))


def _flattened(view: View, count: int) -> View:
    """Merge the first `count` dimensions."""
    sizes, (strides,) = collapse(view.sizes[:count], view.strides[:count])
    if len(sizes) > 1:
        raise Unsupported("convolutions whose filters are not contiguous")
    return View(view.value, view.offset, (*sizes, *view.sizes[count:]), (*strides, *view.strides[count:]))


def _narrowed(view: View, start: int, count: int) -> View:
    sizes = min(count, view.sizes[0] - start), *view.sizes[1:]
    return View(view.value, view.offset + start * view.strides[0], sizes, view.strides)


def _selected(view: View, indices: dict[int, int]) -> View:
    """Select one index of some dimensions."""
    offset = view.offset + sum(index * view.strides[dim] for dim, index in indices.items())
    kept = [dim for dim in range(len(view.sizes)) if dim not in indices]
    return _permuted(View(view.value, offset, view.sizes, view.strides), kept)
