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


def pytest_addoption(parser):
    parser.addoption("--device", default="cpu", choices=("cpu", "cuda"), help="where the tests of PyTorch compute")


@pytest.fixture
def device(request):
    return request.config.getoption("device")


def pytest_collection_modifyitems(config, items):
    on_gpu = config.getoption("device") == "cuda"
    for item in items:
        if NO_CPU and item.get_closest_marker("cpu") and not (on_gpu and "device" in item.fixturenames):
            item.add_marker(pytest.mark.skip(reason=f"the CPU plugin: {NO_CPU[0]}"))
        if item.get_closest_marker("gpu") and not on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs --device cuda"))


def pytest_configure(config):
    config.addinivalue_line("markers", "cpu: runs kernels on the CPU")
    config.addinivalue_line("markers", "gpu: runs kernels on a GPU, with --device cuda")


def pytest_terminal_summary(terminalreporter):
    for name in ("torch", "transformers", "jax", "cupy", "onnx"):
        if importlib.util.find_spec(name) is None:
            terminalreporter.write_line(f"skipped: python_{name}: {name} is not installed")
    if NO_CPU:
        terminalreporter.write_line(f"skipped: python_cpu: {NO_CPU[0]}")
