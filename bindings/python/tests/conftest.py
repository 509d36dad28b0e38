"""Tests of the package: each session has stores of its own, and no settings of the user."""

import importlib.util
import os
import tempfile

for _name in [name for name in os.environ if name.startswith("FLASHWRIGHT_")]:
    if _name != "FLASHWRIGHT_TEST_SOURCE":
        del os.environ[_name]
_folder = tempfile.TemporaryDirectory(prefix="flashwright-python-")
os.environ["FLASHWRIGHT_CACHE_DIR"] = os.path.join(_folder.name, "kernels")
os.environ["FLASHWRIGHT_DATA_DIR"] = os.path.join(_folder.name, "tuning")

import flashwright  # noqa: E402 - reads the environment when it is first used
import pytest  # noqa: E402

NO_CPU = flashwright.supports({"head_dim": 64, "target": "cpu"})


def pytest_collection_modifyitems(items):
    for item in items:
        if NO_CPU and item.get_closest_marker("cpu"):
            item.add_marker(pytest.mark.skip(reason=f"the CPU plugin: {NO_CPU[0]}"))


def pytest_configure(config):
    config.addinivalue_line("markers", "cpu: runs kernels on the CPU")


def pytest_terminal_summary(terminalreporter):
    for name in ("torch", "jax", "cupy", "onnx"):
        if importlib.util.find_spec(name) is None:
            terminalreporter.write_line(f"skipped: python_{name}: {name} is not installed")
    if NO_CPU:
        terminalreporter.write_line(f"skipped: python_cpu: {NO_CPU[0]}")
