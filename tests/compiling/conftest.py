"""Fixture of the tests that compile kernels."""

import warnings
from importlib import import_module

import pytest
from tests.conftest import COMPILES


@pytest.fixture(scope="session", autouse=True)
def compiler() -> None:
    """Import the compiler once, instead of in each process that is forked to compile a kernel."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own deprecations
        for module in COMPILES:
            import_module(module)
