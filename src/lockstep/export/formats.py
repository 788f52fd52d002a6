"""File formats of exported policies: serialization of a program, and loading of the file's bytes as a function."""

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export import Dim, ExportedProgram

from lockstep.export.program import Program
from lockstep.export.tensor_spec import TensorSpec

__all__ = ["FORMATS", "METADATA", "Arrays", "Format"]

Arrays = dict[str, NDArray[Any]]
"""Arrays by name, `[N, …]` each for N environments."""
METADATA = "lockstep.json"
"""Name of the metadata among the extra files of a PyTorch program."""
_TRACED = 3
"""Number of environments in the traced example; the program accepts any number."""


@dataclass(frozen=True)
class Format:
    """A file format for policies."""

    suffix: str
    needs: tuple[str, ...]
    """Optional modules that the format needs."""
    pack: Callable[[Program, Mapping[str, str]], bytes]
    """Serialize a program with metadata by name."""
    unpack: Callable[[bytes], Callable[[Arrays], Arrays]]
    """Load the program of a trusted file as a function. (A PyTorch program may run code when it is loaded.)"""


def _trace(program: Program) -> ExportedProgram:
    example = {spec.name: torch.zeros(_TRACED, *spec.shape, dtype=spec.dtype) for spec in program.inputs}
    batch = Dim("batch", min=1)
    with torch.no_grad():
        return torch.export.export(program.eval(), (example,), dynamic_shapes=({name: {0: batch} for name in example},))


def _pack_torch(program: Program, about: Mapping[str, str]) -> bytes:
    file = io.BytesIO()
    with _quiet():
        torch.export.save(_trace(program), file, extra_files={METADATA: json.dumps(dict(about), indent=2)})
    return file.getvalue()


def _unpack_torch(content: bytes) -> Callable[[Arrays], Arrays]:
    with _quiet():
        module = torch.export.load(io.BytesIO(content)).module()

    def run(inputs: Arrays) -> Arrays:
        outputs = module({name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in inputs.items()})
        return {name: array.numpy() for name, array in outputs.items()}

    return run


def _pack_onnx(program: Program, about: Mapping[str, str]) -> bytes:
    inputs, outputs = ([spec.name for spec in specs] for specs in (program.inputs, program.outputs))
    with _quiet():
        traced = _trace(program)
        exported = torch.onnx.export(traced, (), input_names=inputs, output_names=outputs, dynamo=True, verbose=False)
    assert exported is not None
    model = exported.model_proto
    _describe(model.graph, [*program.inputs, *program.outputs])
    for name, text in about.items():
        model.metadata_props.add(key=name, value=text)
    content: bytes = model.SerializeToString()
    return content


def _describe(graph: Any, specs: list[TensorSpec]) -> None:
    """Name the batch dimension, and describe each array."""
    meanings = {spec.name: spec.meaning for spec in specs}
    del graph.value_info[:]  # intermediate values have other names for the dimension
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
        value.doc_string = meanings[value.name]


def _unpack_onnx(content: bytes) -> Callable[[Arrays], Arrays]:
    import onnxruntime as runtime

    options = runtime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the log messages and warnings of exporters, which do not concern users."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


FORMATS = {
    "onnx": Format(".onnx", ("onnx", "onnxscript", "onnxruntime"), _pack_onnx, _unpack_onnx),
    "torch": Format(".pt2", (), _pack_torch, _unpack_torch),
}
"""Formats by the name in `--format`."""
