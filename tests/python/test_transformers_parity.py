"""Holds `paceline eval MODEL --tokens ... --dump` against transformers: logits, loss and the gradient of every parameter.

Needs torch, transformers, safetensors and pytest. The program is $PACELINE, or build/paceline.
"""

import json
import os
import pathlib
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("PACELINE", ROOT / "build" / "paceline"))
pytestmark = pytest.mark.skipif(not PROGRAM.exists(), reason=f"{PROGRAM} is not built")

TOLERANCE = {"fp32": 1e-5, "fp64": 1e-9}
DTYPE = {"fp32": torch.float32, "fp64": torch.float64}
SCALING = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 32}


def llama(**changes):
    settings = dict(vocab_size=131, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                    num_key_value_heads=4, max_position_embeddings=128, rms_norm_eps=1e-5, tie_word_embeddings=False,
                    attn_implementation="sdpa")  # the eager one takes its softmax in fp32
    return LlamaConfig(**(settings | changes))


def gpt2(**changes):
    settings = dict(vocab_size=131, n_embd=32, n_layer=2, n_head=4, n_positions=64, n_ctx=64, resid_pdrop=0.0, embd_pdrop=0.0,
                    attn_pdrop=0.0, attn_implementation="eager")
    return GPT2Config(**(settings | changes))


CONFIGS = {
    "llama": llama(),
    "llama-gqa": llama(num_key_value_heads=2),
    "llama-mqa": llama(num_key_value_heads=1),
    "llama-head_dim-32": llama(head_dim=32, num_key_value_heads=2),
    "llama-tied": llama(tie_word_embeddings=True),
    "llama-attention_bias": llama(attention_bias=True, num_key_value_heads=2),
    "llama-mlp_bias": llama(mlp_bias=True),
    "llama-theta": llama(rope_parameters={"rope_type": "default", "rope_theta": 500000.0}),
    "llama-rope-scaling": llama(rope_parameters=SCALING),
    "llama-eps-1e-6": llama(rms_norm_eps=1e-6),
    "llama-eps-1e-3": llama(rms_norm_eps=1e-3),
    "gpt2": gpt2(),
    "gpt2-n_inner": gpt2(n_inner=96),
    "gpt2-untied": gpt2(tie_word_embeddings=False),
    "gpt2-eps": gpt2(layer_norm_epsilon=1e-3),
    "gpt2-gelu": gpt2(activation_function="gelu"),
}


def random_model(config, dtype, seed=1):
    """A model whose every parameter is random: biases that are zero and norms that are one would hide mistakes."""
    torch.manual_seed(seed)
    model = (LlamaForCausalLM if config.model_type == "llama" else GPT2LMHeadModel)(config).to(dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = any(part in name for part in ("norm", "ln_")) and name.endswith("weight")
            parameter.copy_(torch.randn_like(parameter) * 0.1 + (1.0 if is_norm else 0.0))
        if config.model_type == "llama":
            model.model.embed_tokens.weight.mul_(0.5)  # small activations, so that the norms' epsilon shows
    if config.model_type == "llama" and dtype == torch.float64:
        without_fp32_roundings(model)
    return model


def without_fp32_roundings(model):
    """transformers rounds LLaMA's norms and rotary angles to fp32 in a model of any type. For parity in fp64 both get the
    same formulas in fp64; that they are the same is checked against the model's own within fp32's rounding."""
    norms = [module for module in model.modules() if isinstance(module, LlamaRMSNorm)]
    assert len(norms) == 2 * model.config.num_hidden_layers + 1
    x = torch.randn(3, model.config.hidden_size, dtype=torch.float64)
    for norm in norms:
        own = norm(x)
        norm.forward = lambda x, norm=norm: torch.nn.functional.rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)
        torch.testing.assert_close(norm(x), own, rtol=1e-5, atol=1e-6)
    exact_frequencies(model)


def exact_frequencies(model):
    rotary = model.model.rotary_emb
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    parameters = config.rope_parameters
    frequencies = parameters["rope_theta"] ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    if parameters["rope_type"] == "llama3":
        frequencies = scaled_frequencies(frequencies, parameters)
    torch.testing.assert_close(frequencies.float(), rotary.inv_freq.float(), rtol=1e-5, atol=1e-9)

    def forward(x, position_ids):
        angles = position_ids[..., None].to(torch.float64) * frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()

    rotary.forward = forward


def scaled_frequencies(frequencies, parameters):
    """LLaMA 3.1's scaling in fp64: wavelengths above the long bound are divided, those between the bounds blended."""
    length = parameters["original_max_position_embeddings"]
    wavelength = 2 * torch.pi / frequencies
    low, high, factor = (parameters[key] for key in ("low_freq_factor", "high_freq_factor", "factor"))
    smooth = ((length / wavelength - low) / (high - low)).clamp(0, 1)
    return frequencies * ((1 - smooth) / factor + smooth)


def evaluate(folder, tokens, precision, dump):
    command = [PROGRAM, "eval", folder, "--tokens", ",".join(map(str, tokens)), "--precision", precision, "--dump", dump, "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout), load_file(dump)


def check(ours, theirs, tolerance, scale, what):
    difference = (ours.double() - theirs.double()).norm().item()
    assert difference <= tolerance * max(theirs.double().norm().item(), scale), f"{what}: differs by {difference}"


def check_model(model, folder, precision, tmp_path):
    torch.manual_seed(2)
    tokens = torch.randint(0, model.config.vocab_size, (1, 48))
    document, dump = evaluate(folder, tokens[0].tolist(), precision, tmp_path / "dump.safetensors")
    model.zero_grad()
    output = model(tokens, use_cache=False)
    # Not the model's own loss: it is rounded to fp32.
    loss = torch.nn.functional.cross_entropy(output.logits[0, :-1], tokens[0, 1:])
    loss.backward()
    tolerance = TOLERANCE[precision]
    assert dump["logits"].dtype == DTYPE[precision]
    assert dump["logits"].shape == output.logits[0].shape
    check(dump["logits"], output.logits[0].detach(), tolerance, 0.0, "logits")
    assert abs(document["loss"] - loss.item()) <= tolerance * loss.item()
    assert document["loss"] == dump["loss"].item()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert set(dump) - {"logits", "loss"} == set(gradients)
    norm = torch.stack([gradient.double().norm() for gradient in gradients.values()]).norm().item()
    for name, gradient in gradients.items():
        assert dump[name].shape == gradient.shape, name
        check(dump[name], gradient, tolerance, 1e-3 * norm, name)


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_loss_and_gradients(name, precision, tmp_path):
    model = random_model(CONFIGS[name], DTYPE[precision])
    model.save_pretrained(tmp_path / "model")
    check_model(model, tmp_path / "model", precision, tmp_path)


@pytest.mark.parametrize("change", ["null", "absent"])
def test_head_dim_defaults_to_hidden_by_heads(change, tmp_path):
    model = random_model(llama(num_key_value_heads=2), torch.float64)
    model.save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    if change == "null":
        config["head_dim"] = None
    else:
        config.pop("head_dim", None)
    path.write_text(json.dumps(config))
    check_model(model, tmp_path / "model", "fp64", tmp_path)


def test_absent_epsilon_is_1e_6(tmp_path):
    model = random_model(llama(rms_norm_eps=1e-6), torch.float64)
    model.save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    config = json.loads(path.read_text())
    del config["rms_norm_eps"]
    path.write_text(json.dumps(config))
    check_model(model, tmp_path / "model", "fp64", tmp_path)


def test_the_epsilon_shows(tmp_path):
    """The comparisons above could not tell one epsilon from another if the logits did not depend on it."""
    logits = []
    for epsilon in (1e-6, 1e-3):
        model = random_model(llama(rms_norm_eps=epsilon), torch.float64)
        logits.append(model(torch.arange(48)[None]).logits.detach())
    assert (logits[0] - logits[1]).abs().max() > 1e-2


@pytest.mark.parametrize("masks", [False, True])
@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_gpt2_files_as_they_are_found(prefix, masks, tmp_path):
    model = random_model(gpt2(), torch.float64)
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    tensors = {name.replace("transformer.", prefix, 1): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    if masks:
        for layer in range(2):
            tensors[f"{prefix}h.{layer}.attn.bias"] = torch.tril(torch.ones(64, 64, dtype=torch.uint8)).view(1, 1, 64, 64)
            tensors[f"{prefix}h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, folder / "model.safetensors")
    check_model(model, folder, "fp64", tmp_path)


@pytest.mark.parametrize("change", ["missing", "unexpected", "shape"])
def test_tensors_that_do_not_fit_stop_with_their_name(change, tmp_path):
    model = random_model(llama(attention_bias=True), torch.float32)
    folder = tmp_path / "model"
    model.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.1.self_attn.q_proj.bias"
    if change == "missing":
        del tensors[name]
    elif change == "shape":
        tensors[name] = tensors[name][:-1].clone()
    else:
        name = "model.layers.1.mlp.up_proj.bias"
        tensors[name] = torch.zeros(96)
    save_file(tensors, folder / "model.safetensors")
    result = subprocess.run([PROGRAM, "eval", folder, "--tokens", "1,2"], capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert name in result.stderr and len(result.stderr.strip().splitlines()) == 1
