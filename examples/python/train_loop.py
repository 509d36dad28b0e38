"""A training loop of one's own: a causal layer with flashwright.torch.attention learns to copy what came before.

    python3 train_loop.py [--device cuda] [--compile]

Each text is random letters, then the same letters again. The second half can be known, by looking back; a layer whose
attention or whose gradients are wrong stays at the loss of guessing.
"""

import argparse
import math

import torch

import flashwright.torch

parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
parser.add_argument("--compile", action="store_true")
parser.add_argument("--steps", type=int, default=400)
options = parser.parse_args()
LETTERS, HALF, WIDTH, HEADS = 16, 24, 64, 4


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(2, (3, HEADS, -1)).unbind(2)  # (batch, seq, heads, dim): no copies
        heads = flashwright.torch.attention(q, k, v, mask="causal", dropout=0.02 * self.training)
        return x + self.out(heads.flatten(2))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.letters = torch.nn.Embedding(LETTERS, WIDTH)
        self.places = torch.nn.Embedding(2 * HALF, WIDTH)
        self.blocks = torch.nn.Sequential(Block(), Block())
        self.head = torch.nn.Linear(WIDTH, LETTERS)

    def forward(self, text):
        return self.head(self.blocks(self.letters(text) + self.places.weight[:text.size(1)]))


torch.manual_seed(0)
model = Model().to(options.device)
run = torch.compile(model, fullgraph=True) if options.compile else model
optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
for step in range(options.steps):
    half = torch.randint(LETTERS, (32, HALF), device=options.device)
    text = torch.cat([half, half], dim=1)
    with torch.autocast(options.device, torch.bfloat16, enabled=options.device == "cuda"):
        logits = run(text[:, :-1])[:, HALF:].float()  # what the second half can know
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), text[:, HALF + 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0 or step == options.steps - 1:
        print(f"step {step:4}   loss {loss.item():.3f}")
guessing = math.log(LETTERS)
print(f"guessing would be {guessing:.3f}")
raise SystemExit(loss.item() > guessing / 4)
