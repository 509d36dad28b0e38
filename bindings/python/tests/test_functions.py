"""Functions on Configs, kernels, the log, the command line as a module, and what an import costs."""

import json
import logging
import os
import subprocess
import sys

import flashwright
import numpy as np
import pytest

CONFIG = flashwright.Config(16, dtype="fp32", target="cpu")
SHAPE = flashwright.Shape(batch=1, heads_q=2, heads_kv=1, seq_q=32, seq_kv=32)


def test_supports():
    assert flashwright.supports(flashwright.Config(64, target="sm_90a", mask="causal")) == []
    reasons = flashwright.supports({"head_dim": 12, "dropout": 1})
    assert len(reasons) == 2 and "head_dim is 12" in reasons[0]


def test_normalise_and_ways_to_say_a_config():
    config = flashwright.Config(64, dtype="fp16", target="sm_80")
    want = flashwright.normalise(config)
    assert want["softmax_scale"] == 0.125 and want["head_dim_v"] == 64
    assert flashwright.normalise({"head_dim": 64, "dtype": "fp16", "target": "sm_80"}) == want
    assert flashwright.normalise('{"head_dim":64,"dtype":"fp16","target":"sm_80"}') == want


def test_explain_and_emit():
    config = flashwright.Config(128, mask="causal", target="sm_90a")
    explained = flashwright.explain(config, (1, 16, 16, 4096, 4096))
    text = flashwright.emit(config, (1, 16, 16, 4096, 4096))
    assert explained["schedule"] in text.replace("\n//     ", " ") and "sm_90a" in text
    assert "__global__" in text


@pytest.mark.cpu
def test_a_kernel():
    kernel = flashwright.get_kernel(CONFIG, SHAPE)
    assert kernel.device == ("cpu", 0)
    assert "define" in kernel.source and kernel.binary[:4] == b"\x7fELF"
    assert kernel.describe()["problem"]
    from flashwright import _native
    x = np.ones((1, 4, 1, 16), np.float32)
    o = np.zeros_like(x)
    arguments = _native.Arguments(x, x, x, o)
    assert kernel.workspace_bytes(arguments) == 0
    kernel.launch(arguments)
    np.testing.assert_allclose(o, 1)


@pytest.mark.cpu
def test_compile_prepare_and_cache():
    report, binary = flashwright.compile(CONFIG._replace(head_dim=32))
    assert binary[:4] == b"\x7fELF" and report
    seen = []
    done = flashwright.prepare([CONFIG, CONFIG._replace(head_dim=32)],
                               progress=lambda done, total, event: seen.append((done, total)))
    assert [row["status"] for row in done] == ["ready", "ready"] and (2, 2) in seen
    assert os.environ["FLASHWRIGHT_CACHE_DIR"] in json.dumps(flashwright.cache("path"))
    assert "d32" in json.dumps(flashwright.cache("ls"))


@pytest.mark.cpu
def test_tune():
    events = []
    report = flashwright.tune(CONFIG, SHAPE, budget_s=1, progress=lambda *event: events.append(event) and None)
    assert events and isinstance(events[0][2], dict) and report["decision"]
    explained = flashwright.explain(CONFIG, SHAPE)
    assert explained["chosen_by"] == "measured"


@pytest.mark.cpu
def test_what_a_progress_function_raises_stops_the_search():
    def stop(*_):
        raise KeyError("enough")
    with pytest.raises(KeyError, match="enough"):
        flashwright.tune(CONFIG._replace(head_dim=40), SHAPE, budget_s=60, progress=stop)
    report = flashwright.tune(CONFIG._replace(head_dim=48), SHAPE, budget_s=60, progress=lambda *_: True)
    assert report["interrupted"]


@pytest.mark.cpu
def test_bench():
    report = flashwright.bench(CONFIG, SHAPE, seconds=0.1)
    assert json.dumps(report)


def test_doctor():
    assert "devices" in flashwright.doctor()


@pytest.mark.cpu
def test_the_log_goes_to_logging(caplog):
    with caplog.at_level(logging.INFO, logger="flashwright"):
        flashwright.get_kernel(CONFIG._replace(head_dim=56))
    assert any("compiled" in record.message and record.name == "flashwright" for record in caplog.records)
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="flashwright"):
        flashwright.get_kernel(CONFIG._replace(head_dim=80))
    assert not caplog.records


def python(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


def run(*arguments):
    return python("-m", "flashwright", *arguments)


def test_the_command_line():
    assert flashwright.__version__ in run("--version").stdout
    done = run("supports", "--dtype", "fp32", "--head-dim", "64", "--target", "sm_80")
    assert (done.returncode, done.stdout.strip()) == (0, "yes")
    assert run("emit", "--head-dim", "12").returncode == 2
    assert run("emit", "--head-dim", "64", "--target", "sm_80").stdout == flashwright.emit(
        flashwright.Config(64, target="sm_80"))


def test_folders_for_a_build():
    include = run("--include-dir").stdout.strip()
    assert os.path.exists(os.path.join(include, "flashwright", "flashwright.h"))
    assert run("--cmake-dir").stdout.strip().endswith(os.path.join("flashwright", "lib", "cmake", "flashwright"))


def test_an_import_brings_no_framework():
    heavy = ("numpy", "torch", "jax", "json", "logging", "ctypes")
    done = python("-c", f"import sys, flashwright; print([name for name in {heavy} if name in sys.modules])")
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_the_type_file_knows_what_the_module_has():
    from flashwright import _native
    folder = os.path.dirname(flashwright.__file__)
    with open(os.path.join(folder, "_native.pyi"), encoding="utf-8") as file:
        types = file.read()
    assert os.path.exists(os.path.join(folder, "py.typed"))
    for name in vars(_native):
        if not name.startswith("_"):
            assert f"class {name}" in types or f"def {name}(" in types, name
