"""The tokenizer that `paceline data build` trains and writes is the one that Hugging Face tokenizers reads and trains.

Runs the program that PACELINE names (default: build/paceline) in the test venv (tokenizers)."""

import json
import os
import pathlib
import random
import struct
import subprocess
import unicodedata

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACELINE = os.environ.get("PACELINE", str(ROOT / "build" / "paceline"))
VOCABULARY = 600


def paceline(*arguments):
    result = subprocess.run([PACELINE, *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


def read_shard(prefix):
    """The documents of a .bin/.idx pair of 16-bit tokens."""
    index = pathlib.Path(f"{prefix}.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\0\0" and index[17] == 8
    (sequences,) = struct.unpack_from("<Q", index, 18)
    lengths = struct.unpack_from(f"<{sequences}i", index, 34)
    data = pathlib.Path(f"{prefix}.bin").read_bytes()
    tokens = struct.unpack(f"<{len(data) // 2}H", data)
    documents, begin = [], 0
    for length in lengths:
        documents.append(list(tokens[begin : begin + length]))
        begin += length
    return documents


def made_up_text(rng, words):
    """Words of syllables with a skewed distribution, some punctuation, numbers and letters beyond ASCII."""
    syllables = ["ka", "lo", "mi", "ren", "tho", "ster", "ing", "é", "ñu", "ß", "中", "文", "да", "нет", "-", "'s", "10", "7"]
    made = ["".join(rng.choice(syllables) for _ in range(rng.randint(1, 4))) for _ in range(400)]
    return "".join(
        made[int(len(made) * rng.random() ** 3)] + rng.choice([" "] * 12 + [", ", ".\n", "\n\n", "  ", "\t", "…"]) for _ in range(words)
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    rng = random.Random(5)
    (folder / "text").mkdir()
    for i in range(40):
        (folder / "text" / f"{i:02}.txt").write_bytes(made_up_text(rng, 600).encode())
    (folder / "data.toml").write_text(
        f'[input]\npaths = ["{folder}/text"]\n[output]\nfolder = "{folder}/shards"\n'
        f"[tokenizer]\nvocabulary_size = {VOCABULARY}\n[split]\nheld_out_fraction = 0.2\n"
    )
    manifest = json.loads(paceline("data", "build", folder / "data.toml", "--json"))
    assert manifest["tokenizer"]["vocabulary_size"] == VOCABULARY
    assert manifest["tokenizer"]["end_of_text_id"] == VOCABULARY - 1
    return folder


@pytest.fixture(scope="module")
def reference(built):
    return Tokenizer.from_file(str(built / "shards" / "tokenizer.json"))


def test_shards_hold_the_reference_ids(built, reference):
    kept = json.loads((built / "shards" / "ledger.json").read_text())["kept"]
    for name in ("train", "held_out"):
        documents = read_shard(built / "shards" / name)
        assert len(documents) == len(kept[name]) > 0
        for path, tokens in zip(kept[name], documents):
            assert tokens[-1] == VOCABULARY - 1
            text = pathlib.Path(path).read_bytes().decode()
            assert tokens[:-1] == reference.encode(text).ids
            assert reference.decode(tokens[:-1]) == text


def random_unicode(rng, length):
    pieces = []
    while len(pieces) < length:
        kind = rng.random()
        if kind < 0.3:
            pieces.append(chr(rng.randrange(32, 127)))
        elif kind < 0.45:
            pieces.append(rng.choice(" \n\t\r\u00a0\u2003\u3000\u0085\u1680\u200b\x1c\x00"))
        elif kind < 0.6:
            pieces.append(rng.choice(["'s", "'ll", "'", "'re", "'VE", " 's", "''", "  "]))
        else:
            character = chr(rng.randrange(0x80, 0x3000 if kind < 0.8 else 0x110000))
            # Characters that Python does not know yet are letters in one library and unassigned in the other.
            if unicodedata.category(character) not in ("Cn", "Cs"):
                pieces.append(character)
    return "".join(pieces)


@pytest.mark.parametrize(
    "text",
    [
        random_unicode(random.Random(1), 20000),
        random_unicode(random.Random(2), 20000),
        "".join(chr(random.Random(3).randrange(256)) for _ in range(5000)),
        "a" * 30000 + " " * 20000 + "x" + "-=" * 10000 + "\n" * 9 + "q",
        "ka" * 5000 + "'" * 501,
        " leading and trailing  \n",
    ],
    ids=["unicode-1", "unicode-2", "latin", "long-words", "long-word-of-merges", "white-space"],
)
def test_any_text_has_the_reference_ids(built, reference, tmp_path, text):
    (tmp_path / "t.txt").write_bytes(text.encode())
    paceline("data", "tokenize", tmp_path / "t.txt", "--tokenizer", built / "shards" / "tokenizer.json", "-o", tmp_path / "t")
    (tokens,) = read_shard(tmp_path / "t")
    assert tokens[:-1] == reference.encode(text).ids


def test_training_gives_the_reference_merges(built):
    kept = json.loads((built / "shards" / "ledger.json").read_text())["kept"]["train"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(
        [pathlib.Path(path).read_bytes().decode() for path in kept],
        trainers.BpeTrainer(
            vocab_size=VOCABULARY - 1,
            min_frequency=2,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    expected = json.loads(tokenizer.to_str())["model"]
    ours = json.loads((built / "shards" / "tokenizer.json").read_text())["model"]
    merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in ours["merges"]]
    assert merges == [merge.split(" ") if isinstance(merge, str) else merge for merge in expected["merges"]]
    assert ours["vocab"] == {**expected["vocab"], "<|endoftext|>": VOCABULARY - 1}


def test_tokenizing_overwrites_no_shard(built):
    shard = built / "shards" / "train"
    before = shard.with_suffix(".bin").read_bytes()
    done = subprocess.run(
        [PACELINE, "data", "tokenize", "--tokenizer", built / "shards" / "tokenizer.json", built / "text" / "00.txt", "-o", shard],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"{shard}.bin: exists and is not overwritten" in done.stderr
    assert shard.with_suffix(".bin").read_bytes() == before
