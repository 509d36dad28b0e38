"""attn_implementation="flashwright": outputs and gradients of whole models beside transformers' own attention."""

import importlib.util
import json
import logging
import os

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import flashwright.transformers as fwt  # noqa: E402
from flashwright import _torch_ops, _torch_sdpa  # noqa: E402

pytestmark = pytest.mark.cpu

SMALL = {"vocab_size": 99, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
         "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GROUPED = {**SMALL, "num_key_value_heads": 2}
MODELS = {
    "bert": lambda: transformers.BertConfig(**SMALL, hidden_dropout_prob=0, attention_probs_dropout_prob=0),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=99, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0, attn_pdrop=0,
                                            embd_pdrop=0, bos_token_id=1, eos_token_id=2),
    "llama": lambda: transformers.LlamaConfig(**GROUPED),
    "mistral": lambda: transformers.MistralConfig(**GROUPED, sliding_window=7),
    "gemma2": lambda: transformers.Gemma2Config(**GROUPED, head_dim=16, sliding_window=7, attn_logit_softcapping=2.0),
    # A window that is in the mask of its first layer and not in the layer's call.
    "qwen2_moe": lambda: transformers.Qwen2MoeConfig(
        **GROUPED, moe_intermediate_size=32, shared_expert_intermediate_size=32, num_experts=2, num_experts_per_tok=2,
        use_sliding_window=True, sliding_window=7, max_window_layers=2),
}
PADDING = {"no padding": None, "right": [19, 12, 5], "left": [-19, -13, -8]}


@pytest.fixture
def build(device):
    def build(name, implementation, auto=transformers.AutoModel, dtype=torch.float32):
        torch.manual_seed(1)
        model = auto.from_config(MODELS[name](), attn_implementation=implementation)
        assert model.config._attn_implementation == implementation
        return model.to(device, dtype).train()
    return build


@pytest.fixture
def launches(monkeypatch):
    """The masks of the Configs that are launched."""
    asked = []
    monkeypatch.setattr(_torch_ops, "request", lambda *a: asked.append(a) or _real_request(*a))
    return asked


_real_request = _torch_ops.request


def inputs(device, padding=None, length=19):
    ids = torch.randint(3, 99, (3, length), generator=torch.Generator().manual_seed(3)).to(device)
    seen = torch.ones_like(ids)
    for row, count in enumerate(padding or ()):
        if count > 0:
            seen[row, count:] = 0
        else:
            seen[row, :count] = 0
    return {"input_ids": ids, "attention_mask": seen}


def step(model, given):
    """The last hidden states that are no padding, and the gradients of all parameters."""
    hidden = model(**given).last_hidden_state
    seen = given["attention_mask"][..., None] if "attention_mask" in given else torch.ones_like(hidden[..., :1])
    weights = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(5)).to(hidden)
    (hidden * weights * seen).sum().backward()
    return [hidden.detach() * seen] + [p.grad for name, p in model.named_parameters()
                                       if p.grad is not None and "pooler" not in name]


def largest(a, b):
    """The largest difference, in parts of the largest number of each tensor."""
    assert len(a) == len(b) and all(torch.isfinite(x).all() for x in a)
    return max(((x - y).abs().max() / (1e-9 + y.abs().max())).item() for x, y in zip(a, b))


@pytest.mark.parametrize("padding", PADDING)
@pytest.mark.parametrize("name", MODELS)
def test_models(build, device, launches, name, padding):
    given = inputs(device, PADDING[padding])
    eager = step(build(name, "eager"), given)
    # How far two of transformers' own are from each other; sdpa has no softcap.
    spread = largest(step(build(name, "sdpa"), given), eager) if name != "gemma2" else 2e-6
    launches.clear()
    ours = step(build(name, "flashwright"), given)
    assert largest(ours, eager) <= 2 * spread + 1e-6
    masks = {a[1] for a in launches}
    special = {"bert": {"none"}, "mistral": {"window:6,0"}, "gemma2": {"causal", "window:6,0"},
               "qwen2_moe": {"causal", "blocks"}}
    assert masks == ({"blocks"} if padding != "no padding" else special.get(name, {"causal"}))
    assert len(launches) == 4  # two layers, forward and backward


# ---- A trained model -----------------------------------------------------------------------------------------------
#
# AntiBERTy, 26 million parameters, learned the sequences of antibodies; release 0.1.3 of its package has the weights.


def antiberty(device, implementation):
    package = importlib.util.find_spec("antiberty")
    found = package.submodule_search_locations[0] if package else ""
    folder = os.path.join(found, "trained_models", "AntiBERTy_md_smooth")
    if not os.path.exists(os.path.join(folder, "pytorch_model.bin")):
        pytest.skip("no trained model: pip install --no-deps antiberty==0.1.3")
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        config = transformers.BertConfig(**json.load(file), tie_word_embeddings=False,
                                         attn_implementation=implementation)
    weights = torch.load(os.path.join(folder, "pytorch_model.bin"), map_location="cpu", weights_only=True)
    model = transformers.BertForMaskedLM(config)
    missing, _ = model.load_state_dict({name: x.float() if x.is_floating_point() else x for name, x in weights.items()},
                                       strict=False)
    model.cls.predictions.bias.data = model.cls.predictions.decoder.bias.data
    assert set(missing) <= {"cls.predictions.bias"}
    return model.to(device).eval()


RESIDUES = {residue: 5 + at for at, residue in enumerate("ACDEFGHIKLMNPQRSTVWY")}
CLS, SEP, MASK = 2, 3, 4
TRASTUZUMAB = (
    "EVQLVESGGGLVQPGGSLRLSCAASGFNIKDTYIHWVRQAPGKGLEWVARIYPTNGYTRYADSVKGRFTISADTSKNTAYLQMNSLRAEDTAVYYCSRWGGDGFYAMDYW"
    "GQGTLVTVSS",
    "DIQMTQSPSSLSASVGDRVTITCRASQDVNTAVAWYQQKPGKAPKLLIYSASFLYSGVPSRFSGSRSGTDFTLTISSLQPEDFATYYCQQHYTTPPTFGQGTKVEIK")


def hidden_residues(device):
    """Both chains, padded to one length; every seventh residue is hidden, and has to be guessed."""
    rows = [[CLS, *(RESIDUES[x] for x in chain), SEP] for chain in TRASTUZUMAB]
    ids = torch.tensor([row + [0] * (max(map(len, rows)) - len(row)) for row in rows], device=device)
    hidden = (torch.arange(ids.size(1), device=device) % 7 == 3) & (ids >= 5)
    given = {"input_ids": ids.masked_fill(hidden, MASK), "attention_mask": (ids > 0).long()}
    return given, ids.masked_fill(~hidden, -100)


def test_a_trained_model(device, launches):
    given, labels = hidden_residues(device)

    def results(implementation):
        model = antiberty(device, implementation)
        out = model(**given, labels=labels)
        out.loss.backward()
        logits = out.logits[labels >= 0]
        gradients = [p.grad for _, p in model.named_parameters() if p.grad is not None]
        return logits.argmax(-1), [logits.detach(), out.loss.detach(), *gradients]
    guesses, eager = results("eager")
    spread = largest(results("sdpa")[1], eager)
    launches.clear()
    mine, ours = results("flashwright")
    assert {a[1] for a in launches} == {"blocks"} and len(launches) == 16  # 8 layers, padded
    assert largest(ours, eager) <= 2 * spread + 1e-6
    assert torch.equal(mine, guesses)
    assert (guesses == labels[labels >= 0]).float().mean() > 0.7  # it is the model that was trained


# --------------------------------------------------------------------------------------------------------------------


def test_half_precision(build, device):
    given = inputs(device)
    exact = step(build("llama", "eager", dtype=torch.float64), given)
    eager, ours = (step(build("llama", way, dtype=torch.bfloat16), given) for way in ("eager", "flashwright"))
    assert largest(ours, exact) <= 2 * largest(eager, exact)


def test_packed_sequences(build, device):
    """Three texts in one row, told by position_ids."""
    given = {"input_ids": inputs(device)["input_ids"][:1],
             "position_ids": torch.tensor([[*range(8), *range(5), *range(6)]], device=device)}
    assert largest(step(build("llama", "flashwright"), given), step(build("llama", "eager"), given)) < 1e-4


def test_a_window_over_packed_sequences(build, device):
    given = {"input_ids": inputs(device)["input_ids"][:1],
             "position_ids": torch.tensor([[*range(11), *range(8)]], device=device)}
    assert largest(step(build("mistral", "flashwright"), given), step(build("mistral", "eager"), given)) < 1e-4


@pytest.mark.parametrize("options", [{}, {"cache_implementation": "static"}])
@pytest.mark.parametrize("padding", ["no padding", "left"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_generation_with_a_cache(build, device, launches, name, padding, options):
    given = inputs(device, PADDING[padding])
    logits = []
    for way in ("eager", "flashwright"):
        model = build(name, way, transformers.AutoModelForCausalLM).eval()
        out = model.generate(**given, max_new_tokens=9, do_sample=False, output_logits=True, disable_compile=True,
                             return_dict_in_generate=True, pad_token_id=0, **options)
        logits.append((out.sequences, torch.stack(out.logits)))
    assert torch.equal(logits[0][0], logits[1][0]) and launches
    assert (logits[0][1] - logits[1][1]).abs().max() < 1e-4


def test_a_prompt_in_two_parts(build, device, launches):
    """The second part sees the cache of the first: causal, with fewer queries than keys."""
    ids = inputs(device)["input_ids"]
    model = build("llama", "flashwright").eval()
    with torch.no_grad():
        whole = model(input_ids=ids).last_hidden_state
        first = model(input_ids=ids[:, :11], use_cache=True)
        second = model(input_ids=ids[:, 11:], past_key_values=first.past_key_values).last_hidden_state
    assert (whole[:, 11:] - second).abs().max() < 1e-5 and {a[1] for a in launches} == {"causal"}


def test_inference_mode(build, device, launches):
    given = inputs(device, PADDING["left"])
    with torch.inference_mode():
        eager, ours = (build("llama", way)(**given).last_hidden_state for way in ("eager", "flashwright"))
    assert ((eager - ours) * given["attention_mask"][..., None]).abs().max() < 1e-5
    assert [a[:2] for a in launches] == [("forward", "blocks")] * 2


def test_block_lists_are_made_once_for_all_layers(build, device, monkeypatch):
    made = []
    monkeypatch.setattr(fwt, "block_lists", lambda mask: made.append(mask) or _real_block_lists(mask))
    model = build("llama", "flashwright")
    for turn in (1, 2):
        model(**inputs(device, PADDING["left"]))
        assert len(made) == turn
    mask = made[0]
    fwt._lists(mask)
    mask[..., 0] = True  # what is written into a mask counts
    fwt._lists(mask)
    assert len(made) == 3


_real_block_lists = fwt.block_lists


def test_cumulative_lengths(device):
    """What models pass that pack for kernels named "flash" themselves."""
    layer = torch.nn.Module()
    layer.is_causal = False
    q, k, v = (torch.randn(1, 2, 12, 16, device=device) for _ in range(3))
    ends = torch.tensor([0, 5, 12], dtype=torch.int32, device=device)
    got, _ = fwt.attention_forward(layer, q, k, v, None, cu_seq_lens_q=ends, cu_seq_lens_k=ends)
    for part in (slice(0, 5), slice(5, 12)):
        want = torch.nn.functional.scaled_dot_product_attention(q[:, :, part], k[:, :, part], v[:, :, part])
        assert (got[:, part] - want.transpose(1, 2)).abs().max() < 1e-5


def test_a_mask_of_two_dimensions(device):
    layer = torch.nn.Module()
    q, k, v = (torch.randn(2, 2, 9, 16, device=device) for _ in range(3))
    seen = torch.ones(2, 9, dtype=torch.long, device=device)
    seen[1, :4] = 0
    got, _ = fwt.attention_forward(layer, q, k, v, seen)
    keep = torch.ones(9, 9, dtype=torch.bool, device=device).tril() & seen[:, None, None].bool()
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, keep).transpose(1, 2)
    assert ((got - want) * seen[..., None, None]).abs().max() < 1e-5


@pytest.mark.parametrize("padding", ["no padding", "right"])
@pytest.mark.parametrize("name", ["bert", "llama", "mistral"])
def test_compile(build, device, launches, name, padding):
    torch._dynamo.reset()
    given = inputs(device, PADDING[padding])
    try:
        torch.compile(build(name, "sdpa"), fullgraph=True, backend="aot_eager")(**given)
    except torch._dynamo.exc.Unsupported as error:
        pytest.skip(f"this PyTorch does not trace this transformers: {str(error).splitlines()[0][:80]}")
    torch._dynamo.reset()
    launches.clear()
    model = build(name, "flashwright")
    want = step(model, given)
    model.zero_grad()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert largest(step(compiled, given), want) < 1e-5


# ---- What is refused -----------------------------------------------------------------------------------------------


def test_a_head_dim_that_is_refused(device, launches, caplog):
    _torch_sdpa._said.clear()
    results = []
    with caplog.at_level(logging.WARNING, "flashwright"):
        for way in ("eager", "flashwright"):
            torch.manual_seed(1)
            config = transformers.MistralConfig(**{**GROUPED, "hidden_size": 48}, sliding_window=7)  # heads of 12
            model = transformers.AutoModel.from_config(config, attn_implementation=way).to(device)
            results.append(step(model, inputs(device)))
    assert largest(*results) < 1e-4 and not launches
    assert len(caplog.records) == 1 and "head_dim is 12" in caplog.text


def test_sinks_are_left_to_the_model(device, launches, caplog):
    """Logits that join the sum of a row: the model's eager attention has them."""
    _torch_sdpa._said.clear()
    results = []
    for way in ("eager", "flashwright"):
        torch.manual_seed(1)
        config = transformers.GptOssConfig(**GROUPED, head_dim=16, num_local_experts=2, num_experts_per_tok=1,
                                           sliding_window=7, layer_types=["sliding_attention", "full_attention"])
        model = transformers.AutoModel.from_config(config, attn_implementation=way).to(device)
        results.append(step(model, inputs(device, PADDING["left"])))
    assert largest(*results) < 1e-4 and not launches and "s_aux" in caplog.text


def test_an_additive_mask(build, device, launches):
    given = inputs(device)
    additive = torch.zeros(3, 1, 19, 19, device=device).masked_fill(
        ~torch.ones(19, 19, dtype=torch.bool, device=device).tril(), -1e9)
    results = [build("llama", way)(input_ids=given["input_ids"], attention_mask=additive).last_hidden_state
               for way in ("eager", "flashwright")]
    assert (results[0] - results[1]).abs().max() < 1e-5 and not launches


def test_registers_under_another_name(device, launches):
    fwt.register("my_flash_kernels")
    model = transformers.AutoModel.from_config(MODELS["llama"](), attn_implementation="my_flash_kernels").to(device)
    model(**inputs(device))
    assert launches
