"""Digests of small calculations."""

import json
import subprocess
import sys

import pytest
from numpy._core._multiarray_umath import __cpu_dispatch__
from tests.conftest import plain_environ

from lockstep.experiment.arithmetic import arithmetic_digests

PROGRAM = "import json; from lockstep.experiment.arithmetic import arithmetic_digests; print(json.dumps(arithmetic_digests()))"
OTHER_CODE = {
    "ATEN_CPU_CAPABILITY": "default",
    "OPENBLAS_CORETYPE": "Prescott",
    "NPY_DISABLE_CPU_FEATURES": " ".join(__cpu_dispatch__),
}


def test_digests_are_the_same_each_time() -> None:
    assert arithmetic_digests() == arithmetic_digests()


@pytest.mark.slow
def test_libraries_that_run_other_code_have_other_digests() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=plain_environ() | OTHER_CODE, capture_output=True, text=True, check=True
    )
    here, other = arithmetic_digests(), json.loads(finished.stdout)
    differing = {name for name in here if here[name] != other[name]}
    assert differing >= {"PyTorch", "NumPy's matrix products", "NumPy's functions"}
    assert "the C library's functions" not in differing
