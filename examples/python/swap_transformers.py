"""A model of transformers with its own attention and with flashwright's: two lines change, the numbers do not.

    python3 swap_transformers.py [--device cuda] [NAME]

NAME is a model of the Hub or a folder; without it a small Llama with random weights is made, so nothing is downloaded.
"""

import argparse
import time

import torch
import transformers

import flashwright.transformers  # noqa: F401 - line one: makes "flashwright" known

parser = argparse.ArgumentParser()
parser.add_argument("name", nargs="?")
parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
options = parser.parse_args()
dtype = torch.bfloat16 if options.device == "cuda" else torch.float32


def load(implementation):
    torch.manual_seed(0)
    if options.name:
        model = transformers.AutoModelForCausalLM.from_pretrained(options.name, attn_implementation=implementation)
    else:
        config = transformers.LlamaConfig(vocab_size=256, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
                                          num_attention_heads=8, num_key_value_heads=2)
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
    return model.to(options.device, dtype)


def step(model, text):
    loss = model(input_ids=text, labels=text).loss
    model.zero_grad()
    loss.backward()
    return loss.item()  # waits for the device


def measure(implementation, text):
    model = load(implementation)
    loss = step(model, text)
    started = time.perf_counter()
    for _ in range(5):
        step(model, text)
    print(f"{implementation:12} loss {loss:.5f}   {(time.perf_counter() - started) / 5 * 1e3:7.1f} ms a step")
    return loss, [p.grad.float() for p in model.parameters()]


text = torch.randint(0, 256, (2, 512), generator=torch.Generator().manual_seed(1)).to(options.device)
theirs, eager = measure("sdpa", text), measure("eager", text)
ours = measure("flashwright", text)  # line two: the name


def distance(a, b):
    return max(((x - y).norm() / (y.norm() + 1e-12)).item() for x, y in zip(a[1], b[1]))


spread = distance(theirs, eager)
print(f"gradients: sdpa from eager {spread:.1e}, flashwright from eager {distance(ours, eager):.1e}")
raise SystemExit(distance(ours, eager) > 2 * spread + 1e-6)
