"""A small tokenizer like CLIP's: byte-level BPE learned from the captions, so that no word is unknown.

Ids: 256 bytes, the same 256 bytes at the end of a word, the learned merges, start, end. The end token has the highest
id, so that both ways in which CLIP's text tower finds it (highest id; first id equal to eos_token_id) agree. It also
pads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

MAX_TOKENS, MERGES = 32, 900
START, END, CLOSE = "<|startoftext|>", "<|endoftext|>", "</w>"
WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"  # how CLIP's tokenizer splits a text into words


def write(captions: Iterable[str], directory: Path) -> None:
    """Learn the merges; write vocab.json, merges.txt and tokenizer_config.json. Equal captions give equal files."""
    learner = Tokenizer(models.BPE(end_of_word_suffix=CLOSE))
    learner.normalizer = normalizers.Lowercase()
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(WORDS), "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    size = 2 * len(alphabet) + MERGES
    learner.train_from_iterator(
        captions,
        trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, end_of_word_suffix=CLOSE, show_progress=False),
    )
    merges = [tuple(pair) for pair in json.loads(learner.to_str())["model"]["merges"]][:MERGES]
    tokens = [
        *alphabet,
        *(byte + CLOSE for byte in alphabet),
        *(first + second for first, second in merges),
        START,
        END,
    ]
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys(tokens))}
    config: dict[str, Any] = {
        "tokenizer_class": "CLIPTokenizer",
        "model_max_length": MAX_TOKENS,
        "add_prefix_space": False,
        "do_lower_case": True,
        "errors": "replace",
        "bos_token": START,
        "eos_token": END,
        "pad_token": END,
        "unk_token": END,
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False))
    (directory / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    (directory / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
