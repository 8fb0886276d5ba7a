"""Models go both ways between transformers and the program: every weight bit for bit, nothing missing, nothing left over.

Runs the program that PACELINE names (default: build/paceline) in the test venv (torch, transformers, safetensors)."""

import json
import os
import pathlib
import shutil
import struct
import subprocess

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

torch.set_num_threads(1)
ROOT = pathlib.Path(__file__).resolve().parents[2]
PACELINE = os.environ.get("PACELINE", str(ROOT / "build" / "paceline"))

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def paceline(*arguments, check=True):
    result = subprocess.run([PACELINE, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    if check:
        assert result.returncode == 0, result.stderr
    return result


def refused(*arguments):
    """The one line that the program says when it refuses."""
    result = paceline(*arguments, check=False)
    assert result.returncode in (1, 2), (result.returncode, result.stderr)
    assert result.stdout == ""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


def llama(**changes):
    config = dict(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=131, max_position_embeddings=128, rms_norm_eps=1e-6, tie_word_embeddings=False,
        bos_token_id=1, eos_token_id=2,
    )
    config.update(changes)
    return LlamaForCausalLM(LlamaConfig(**config))


def gpt2(**changes):
    config = dict(n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=131, bos_token_id=0, eos_token_id=0)
    config.update(changes)
    return GPT2LMHeadModel(GPT2Config(**config))


MODELS = {
    "llama": lambda: llama(),
    "llama-tied": lambda: llama(tie_word_embeddings=True),
    "llama-head-dim": lambda: llama(head_dim=32),
    "llama-rope-scaling": lambda: llama(rope_parameters={**LLAMA3, "rope_theta": 500000.0}),
    "llama-theta": lambda: llama(rope_parameters={"rope_type": "default", "rope_theta": 500000.0}),
    "llama-attention-bias": lambda: llama(attention_bias=True),
    "llama-mlp-bias": lambda: llama(mlp_bias=True),
    "llama-epsilon": lambda: llama(rms_norm_eps=1e-3),
    "llama-all-heads": lambda: llama(num_key_value_heads=4),
    "gpt2": lambda: gpt2(),
    "gpt2-inner": lambda: gpt2(n_inner=96),
    "gpt2-gelu": lambda: gpt2(activation_function="gelu"),
    "gpt2-untied": lambda: gpt2(tie_word_embeddings=False),
    "gpt2-epsilon": lambda: gpt2(layer_norm_epsilon=1e-3),
}


def randomized(model, seed=0):
    """Every parameter random, so that no bias or norm hides behind its initial value."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


@pytest.fixture(params=sorted(MODELS))
def model(request):
    torch.manual_seed(0)
    return randomized(MODELS[request.param]())


def load(folder):
    """The model as transformers loads it, after checking that it fitted exactly."""
    loaded, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        assert not report.get(kind), (kind, report[kind])
    return loaded.eval()


def assert_same_weights(a, b):
    a, b = a.state_dict(), b.state_dict()
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype, name
        assert torch.equal(a[name], b[name]), name


def assert_same_function(a, b):
    tokens = torch.randint(0, 131, (2, 48), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(a(tokens).logits, b(tokens).logits)


def test_there_and_back(model, tmp_path):
    model.save_pretrained(tmp_path / "source")
    paceline("convert", tmp_path / "source", tmp_path / "run", "--to", "checkpoint")
    assert (tmp_path / "run/checkpoints/latest").read_text() == "step_00000000\n"
    paceline("convert", tmp_path / "run", tmp_path / "back")
    back = load(tmp_path / "back")
    assert_same_weights(model, back)
    assert_same_function(model, back)
    names = set(load_file(tmp_path / "source/model.safetensors"))
    assert set(load_file(tmp_path / "back/model.safetensors")) == names


@pytest.mark.parametrize("name", ["llama", "llama-tied", "gpt2"])
def test_folder_to_folder_in_shards(name, tmp_path):
    model = randomized(MODELS[name]())
    model.save_pretrained(tmp_path / "source", max_shard_size="30KB")
    assert (tmp_path / "source/model.safetensors.index.json").exists()
    paceline("convert", tmp_path / "source", tmp_path / "out", "--max-shard-size", "40KB")
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 1
    assert_same_weights(model, load(tmp_path / "out"))


@pytest.mark.parametrize("family", [llama, gpt2])
def test_types_agree_everywhere(family, tmp_path):
    model = randomized(family())
    parameters = sum(p.numel() for p in model.parameters())
    model.save_pretrained(tmp_path / "source")
    paceline("convert", tmp_path / "source", tmp_path / "run", "--to", "checkpoint")
    for source in ("source", "run"):
        for name, dtype, size in (("fp32", torch.float32, 4), ("bf16", torch.bfloat16, 2), ("fp64", torch.float64, 8)):
            out = tmp_path / f"{source}-{name}"
            paceline("convert", tmp_path / source, out, "--dtype", name)
            config = json.loads((out / "config.json").read_text())
            assert config["dtype"] == config["torch_dtype"] == str(dtype).removeprefix("torch.")
            tensors = load_file(out / "model.safetensors")
            assert {t.dtype for t in tensors.values()} == {dtype}
            assert sum(t.numel() for t in tensors.values()) == parameters
            file_bytes = (out / "model.safetensors").read_bytes()
            assert len(file_bytes) == 8 + struct.unpack("<Q", file_bytes[:8])[0] + parameters * size
            with safe_open(out / "model.safetensors", "pt") as file:
                assert file.metadata() == {"format": "pt"}
            loaded = load(out)
            assert loaded.dtype == dtype
            for key, value in model.state_dict().items():
                assert torch.equal(loaded.state_dict()[key], value.to(dtype)), key


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_reads_other_types(dtype, tmp_path):
    model = randomized(llama()).to(dtype)
    model.save_pretrained(tmp_path / "source")
    paceline("convert", tmp_path / "source", tmp_path / "run", "--to", "checkpoint")
    paceline("convert", tmp_path / "run", tmp_path / "back")
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert_same_weights(model.to(wide), load(tmp_path / "back"))


def test_files_without_metadata(tmp_path):
    model = randomized(gpt2())
    model.save_pretrained(tmp_path / "source")
    save_file(load_file(tmp_path / "source/model.safetensors"), tmp_path / "source/model.safetensors")
    paceline("convert", tmp_path / "source", tmp_path / "out")
    assert_same_weights(model, load(tmp_path / "out"))


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("masks", [True, False])
def test_gpt2_files_as_they_are_found(prefix, masks, tmp_path):
    model = randomized(gpt2())
    model.save_pretrained(tmp_path / "source")
    path = tmp_path / "source/model.safetensors"
    tensors = {name.removeprefix("transformer.") if not prefix else name: t for name, t in load_file(path).items()}
    start = "transformer." if prefix else ""
    if masks:
        for layer in range(2):
            tensors[f"{start}h.{layer}.attn.bias"] = torch.ones(64, 64).tril().view(1, 1, 64, 64)
            tensors[f"{start}h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(tensors, path)
    result = json.loads(paceline("convert", tmp_path / "source", tmp_path / "out", "--json").stdout)
    assert len(result["skipped"]) == (4 if masks else 0)
    assert_same_weights(model, load(tmp_path / "out"))


def test_old_and_new_config_keys(tmp_path):
    """The rotary keys of transformers 4 give the same model as those of 5, and the export holds both."""
    model = randomized(llama(rope_parameters={**LLAMA3, "rope_theta": 500000.0}))
    model.save_pretrained(tmp_path / "source")
    config_path = tmp_path / "source/config.json"
    config = json.loads(config_path.read_text())
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    config["rope_scaling"] = parameters
    config["torch_dtype"] = config.pop("dtype")
    config_path.write_text(json.dumps(config))
    paceline("convert", tmp_path / "source", tmp_path / "out")
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert written["rope_scaling"]["rope_type"] == written["rope_parameters"]["rope_type"] == "llama3"
    assert written["rope_theta"] == written["rope_parameters"]["rope_theta"] == 500000.0
    assert_same_function(model, load(tmp_path / "out"))


@pytest.mark.parametrize("head_dim", [None, "absent"])
def test_head_dim_null_and_absent(head_dim, tmp_path):
    model = randomized(llama())
    model.save_pretrained(tmp_path / "source")
    path = tmp_path / "source/config.json"
    config = json.loads(path.read_text())
    config.pop("head_dim") if head_dim == "absent" else config.update(head_dim=None)
    path.write_text(json.dumps(config))
    paceline("convert", tmp_path / "source", tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text())["head_dim"] == 16
    assert_same_weights(model, load(tmp_path / "out"))


def test_partial_rotary_is_ignored_as_transformers_does(tmp_path):
    model = randomized(llama())
    model.save_pretrained(tmp_path / "source")
    path = tmp_path / "source/config.json"
    config = json.loads(path.read_text())
    config["partial_rotary_factor"] = 0.5
    path.write_text(json.dumps(config))
    assert_same_function(model, load(tmp_path / "source"))
    result = paceline("convert", tmp_path / "source", tmp_path / "out")
    assert "partial_rotary_factor" in result.stderr
    assert_same_function(model, load(tmp_path / "out"))


def test_more_rows_than_tokens_are_kept(tmp_path):
    from tokenizers import Tokenizer, models

    model = randomized(llama(vocab_size=160))
    model.save_pretrained(tmp_path / "source")
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(131)}, unk_token="w0"))
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(tmp_path / "source/tokenizer.json"))
    paceline("convert", tmp_path / "source", tmp_path / "run", "--to", "checkpoint")
    result = paceline("convert", tmp_path / "run", tmp_path / "out")
    assert "warning" not in result.stderr
    loaded = load(tmp_path / "out")
    assert loaded.get_input_embeddings().weight.shape[0] == 160
    assert_same_weights(model, loaded)
    ours = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert ours.convert_tokens_to_ids("<|endoftext|>") == 131
    assert ours.eos_token == "<|endoftext|>"
    assert loaded.config.eos_token_id == 131


def change_config(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.update(changes)
    path.write_text(json.dumps(config))


def change_tensors(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


K = "model.layers.1.self_attn.k_proj.weight"


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda f: change_config(f, model_type="qwen2"), ["qwen2", "config.json"]),
        (lambda f: change_config(f, rope_parameters={"rope_type": "yarn", "factor": 2.0}), ["yarn"]),
        (lambda f: change_config(f, hidden_act="gelu"), ["hidden_act", "gelu"]),
        (lambda f: change_config(f, quantization_config={"bits": 4}), ["quantization_config"]),
        (lambda f: change_config(f, num_key_value_heads=4), ["k_proj", "[32, 64]", "[64, 64]"]),
        (lambda f: change_config(f, attention_bias=True), ["q_proj.bias"]),
        (lambda f: change_config(f, tie_word_embeddings=True), ["lm_head.weight", "tie_word_embeddings"]),
        (lambda f: change_tensors(f, lambda t: t.pop(K)), [K]),
        (lambda f: change_tensors(f, lambda t: t.update({"model.extra": torch.ones(1)})), ["model.extra"]),
        (lambda f: change_tensors(f, lambda t: t.update({K: t[K].t().contiguous()})), [K, "[64, 32]"]),
        (lambda f: change_tensors(f, lambda t: t.update({K: t[K].to(torch.int32)})), [K, "I32"]),
        (lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-1]), ["model.safetensors"]),
        (lambda f: (f / "model.safetensors").write_bytes(struct.pack("<Q", 2**62) + b"{}"), ["model.safetensors"]),
        (lambda f: (f / "model.safetensors").unlink(), ["neither model.safetensors"]),
        (lambda f: (f / "config.json").write_text("{"), ["config.json"]),
        (lambda f: (f / "config.json").unlink(), ["config.json"]),
    ],
)
def test_hostile_folders_are_refused(damage, message, tmp_path):
    randomized(llama()).save_pretrained(tmp_path / "source")
    damage(tmp_path / "source")
    said = refused("convert", tmp_path / "source", tmp_path / "out")
    for part in message:
        assert part in said, said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["source"]


def test_a_filled_folder_is_not_overwritten(tmp_path):
    randomized(llama()).save_pretrained(tmp_path / "source")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("keep")
    assert "out" in refused("convert", tmp_path / "source", tmp_path / "out")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["mine.txt"]


def test_damaged_checkpoints_are_refused(tmp_path):
    randomized(llama()).save_pretrained(tmp_path / "source")
    paceline("convert", tmp_path / "source", tmp_path / "run", "--to", "checkpoint")
    weights = tmp_path / "run/checkpoints/step_00000000/weights_rank_00000.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    said = refused("convert", tmp_path / "run", tmp_path / "out")
    assert weights.name in said and "lm_head.weight" in said
    shutil.rmtree(tmp_path / "run/checkpoints/step_00000000")
    assert "step_00000000" in refused("convert", tmp_path / "run", tmp_path / "out")


REFERENCE_HEADERS = [
    (b"{}", 0),
    (b'{"__metadata__":{"key":"value"}}', 0),
    (b'{"__metadata__":{},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', 4),
    (b'{"__metadata__":null,"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', 4),
    (b'{"__metadata__":{"step":3},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', 4),
    (b'{"__metadata__":{"step":{}},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', 4),
    (b'{},"__metadata__":{}', 0),
    (b'{"a":{"dtype":"f32","shape":[1],"data_offsets":[0,4]}}', 4),
    (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}\0\0', 4),
    (b'  {"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}  ', 4),
    (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"new":{"b":[1]}}}', 4),
    (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', 8),
    (b'{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}', 4),
    (b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}', 4),
    (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', 8),
    (b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', 5),
    (b'{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}', 0),
    (b'\xef\xbb\xbf{}', 0),
]


@pytest.mark.parametrize("header, size", REFERENCE_HEADERS)
def test_headers_are_taken_and_refused_as_by_the_reference(header, size, tmp_path):
    """The program has no tensor dump, so a header that it takes is told by the tensor that the model then lacks."""
    randomized(llama()).save_pretrained(tmp_path / "source")
    path = tmp_path / "source/model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * size)
    try:
        with safe_open(path, "np") as file:
            file.keys()
        taken = True
    except Exception:
        taken = False
    said = refused("convert", tmp_path / "source", tmp_path / "out")
    assert ("lacks the tensor" in said or "is unexpected" in said) == taken, said
