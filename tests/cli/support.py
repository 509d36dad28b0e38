"""What the tests of the command line share: running it in a clean environment, and .npy files."""

import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

BINARY = os.environ["FLASHWRIGHT_TEST_BINARY"]
SOURCE = os.environ["FLASHWRIGHT_TEST_SOURCE"]
MINILM = os.path.join(SOURCE, "examples", "data", "minilm")


class Result:
    def __init__(self, command, code, out, err):
        self.command, self.code, self.out, self.err = command, code, out, err

    def json(self):
        return json.loads(self.out)

    def __str__(self):
        return f"{' '.join(self.command)}\nexit code {self.code}\n{self.out}\n{self.err}"


class CliTest(unittest.TestCase):
    """Each test has a folder of its own with a home and stores below it."""

    def setUp(self):
        self.folder_object = tempfile.TemporaryDirectory(prefix="flashwright-cli-")
        self.addCleanup(self.folder_object.cleanup)
        self.folder = self.folder_object.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def environment(self, **changes):
        variables = {k: v for k, v in os.environ.items() if not k.startswith(("FLASHWRIGHT_", "XDG_"))}
        variables["HOME"] = self.folder
        for name, value in changes.items():
            variables.pop(name, None)
            if value is not None:
                variables[name] = value
        return variables

    def start(self, *arguments, env=None, **options):
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        return subprocess.Popen([BINARY, *arguments], text=True, cwd=self.folder, stdin=subprocess.DEVNULL,
                                env=env if env is not None else self.environment(), **options)

    def run_cli(self, *arguments, env=None, timeout=240, stdin=None):
        done = subprocess.run([BINARY, *arguments], text=True, cwd=self.folder, capture_output=True,
                              input=stdin if stdin is not None else "", timeout=timeout,
                              env=env if env is not None else self.environment())
        return Result(done.args, done.returncode, done.stdout, done.stderr)

    def ok(self, *arguments, **options):
        result = self.run_cli(*arguments, **options)
        self.assertEqual(result.code, 0, str(result))
        return result

    def fails(self, code, words, *arguments, **options):
        """Ends with `code`, says all `words` on stderr, and has nothing on stdout."""
        result = self.run_cli(*arguments, **options)
        self.assertEqual(result.code, code, str(result))
        for word in words:
            self.assertIn(word, result.err, str(result))
        self.assertTrue(result.err.startswith("flashwright: error: "), str(result))
        self.assertEqual(result.out, "", str(result))
        return result


# ---- .npy -------------------------------------------------------------------------------------------

FORMATS = {"<f4": "f", "<f2": "e", "<u2": "H", "|V2": "H", "|b1": "B", "|u1": "B", "<f8": "d", ">f4": "f"}


def header_bytes(descr, shape, fortran=False, version=(1, 0), text=None):
    """The bytes before the elements; `text` replaces the dictionary."""
    if text is None:
        text = "{'descr': %r, 'fortran_order': %r, 'shape': %s, }" % (descr, fortran, tuple(shape))
    length_bytes = 2 if version[0] == 1 else 4
    used = 8 + length_bytes + len(text) + 1
    text = text + " " * (-used % 64) + "\n"
    length = struct.pack("<H" if version[0] == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + length + text.encode("latin1")


def write_npy(path, descr, shape, values, **header):
    order = ">" if descr.startswith(">") else "<"
    with open(path, "wb") as file:
        file.write(header_bytes(descr, shape, **header))
        file.write(struct.pack(f"{order}{len(values)}{FORMATS[descr]}", *values))
    return path


def read_npy(path):
    """(descr, shape, flat values)."""
    with open(path, "rb") as file:
        data = file.read()
    assert data[:6] == b"\x93NUMPY" and data[6:8] == b"\x01\x00", path
    (length,) = struct.unpack("<H", data[8:10])
    assert (10 + length) % 64 == 0, "elements begin at a multiple of 64 bytes"
    header = eval(data[10:10 + length], {"__builtins__": {}})  # noqa: S307 - of a file that was just written
    count = 1
    for extent in header["shape"]:
        count *= extent
    assert not header["fortran_order"]
    values = struct.unpack(f"<{count}{FORMATS[header['descr']]}", data[10 + length:])
    return header["descr"], header["shape"], values


def noise(count, seed):
    """Numbers between -1 and 1 that fp16 and bf16 hold exactly: multiples of 1/64."""
    values, state = [], seed * 2654435761 + 12345
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        values.append(((state >> 33) % 129 - 64) / 64)
    return values


def bfloat_bits(values):
    return [struct.unpack("<I", struct.pack("<f", v))[0] >> 16 for v in values]


def float_of_bfloat(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def attention(q, k, v, shape, visible=None, scale=None, change=None):
    """Exact attention of (batch, seq, heads, dim) lists in Python's doubles: flat output and lse."""
    from math import exp, fsum, log, sqrt
    batch, seq_q, heads, dim, seq_kv, heads_kv, dim_v = shape
    scale = scale if scale is not None else 1 / sqrt(dim)
    group = heads // heads_kv
    out, lse = [0.0] * (batch * seq_q * heads * dim_v), [0.0] * (batch * heads * seq_q)
    for b in range(batch):
        for h in range(heads):
            for i in range(seq_q):
                at = ((b * seq_q + i) * heads + h) * dim
                keys = [j for j in range(seq_kv) if visible is None or visible(b, h, i, j)]
                rows = [(b * seq_kv + j) * heads_kv + h // group for j in keys]
                scores = [scale * fsum(q[at + d] * k[row * dim + d] for d in range(dim)) for row in rows]
                if change is not None:
                    scores = [change(s, b, h, i, j) for s, j in zip(scores, keys)]
                if not scores:
                    lse[(b * heads + h) * seq_q + i] = float("-inf")
                    continue
                top = max(scores)
                weights = [exp(s - top) for s in scores]
                total = fsum(weights)
                lse[(b * heads + h) * seq_q + i] = top + log(total)
                for d in range(dim_v):
                    out[((b * seq_q + i) * heads + h) * dim_v + d] = fsum(
                        w * v[row * dim_v + d] for w, row in zip(weights, rows)) / total
    return out, lse


# ---- What is there ----------------------------------------------------------------------------------

def doctor():
    with tempfile.TemporaryDirectory() as home:
        variables = {k: v for k, v in os.environ.items() if not k.startswith(("FLASHWRIGHT_", "XDG_"))}
        done = subprocess.run([BINARY, "doctor", "--json"], capture_output=True, text=True, check=True,
                              env={**variables, "HOME": home})
    return json.loads(done.stdout)


REPORT = doctor()
HAS_CPU = not REPORT["cpu"]["missing"]
HAS_NVRTC = not REPORT["nvrtc"]["missing"]
needs_cpu = unittest.skipUnless(HAS_CPU, "the CPU plugin is not built")
needs_nvrtc = unittest.skipUnless(HAS_NVRTC, "NVRTC was not found")


def main():
    """Runs the tests of a file; says what was skipped as the other tests of the project do."""
    result = unittest.main(exit=False, verbosity=2).result
    for test, why in result.skipped:
        print(f"skipped: {test.id()}: {why}")
    if not result.wasSuccessful():
        sys.exit(1)
    if result.skipped and len(result.skipped) == result.testsRun:
        sys.exit(77)


def interrupt(process):
    process.send_signal(signal.SIGINT)
