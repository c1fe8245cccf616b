"""The options that say what an index is made of, and an embedding as options."""

from __future__ import annotations

import pytest

from slosh.cli.design import EmbeddingOptions, Preparation, options_for
from slosh.cli.messages import UsageError
from slosh.embed import SlicedWasserstein, Whitened

EMBEDDINGS = [
    *("sliced", "local", "field", "field:32", "gem:2", "cov", "fspool", "wasserstein", "mean", "max", "sum"),
    *("sliced+field", "sliced+field:16+local", "mean+max"),
]
KINDS = {"power": float, "slices": int, "quantiles": int}
RANDOM = ("sliced", "field", "field:32", "wasserstein", "local")


def made_by(words):
    """The embedding that options make."""
    names = iter(words)
    given = {name[2:]: True if name == "--whiten" else next(names) for name in names}
    numbers = {name: kind(given[name]) for name, kind in KINDS.items() if name in given}
    return EmbeddingOptions(**given | numbers | {"label": None}).make(0)


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("name", EMBEDDINGS)
def test_an_embedding_as_options_and_back(name, whiten):
    if "+" in name and not whiten:
        return
    made = EmbeddingOptions(name, whiten).make(0)
    assert isinstance(made, Whitened) == whiten
    given = options_for(made, "kind" if whiten else None)
    assert given == [
        *(["--embedding", name] if name != "sliced" else []),
        *(["--whiten", "--label", "kind"] if whiten else []),
    ]
    assert repr(EmbeddingOptions(name, whiten).make(0)) == repr(made)
    assert repr(made_by(given)) == repr(made)
    assert ("random_state=7" in repr(EmbeddingOptions(name, whiten).make(7))) == (whiten or name in RANDOM)


@pytest.mark.parametrize(
    "given",
    [
        {"whiten": True, "power": 0.2},
        {"embedding": "sliced+field", "whiten": True, "power": 0.0},
        {"slices": 8, "quantiles": 4},
        {"embedding": "local", "slices": 8, "quantiles": 4},
        {"embedding": "fspool", "quantiles": 4},
        {"embedding": "field+local", "whiten": True, "power": 0.5, "slices": 3},
    ],
)
def test_numbers_as_options_and_back(given):
    wanted = EmbeddingOptions(**given)
    made = wanted.make(0)
    assert options_for(made, None) == wanted.as_options()
    assert repr(made_by(wanted.as_options())) == repr(made)
    if "power" in given:
        assert made.power == given["power"]


def test_what_is_made_by_default():
    assert repr(EmbeddingOptions().make(0)) == "SlicedWasserstein()"
    assert repr(EmbeddingOptions(whiten=True).make(0)) == "Whitened(embedding=SlicedWasserstein())"
    assert repr(EmbeddingOptions(label="kind").make(0)) == "SlicedWasserstein()"
    slices = EmbeddingOptions("sliced+local", True, slices=8, quantiles=4).make(0).embedding
    assert (
        slices[0].get_params() == slices[1].embedding.get_params() == SlicedWasserstein(8, n_quantiles=4).get_params()
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"embedding": "spliced"}, "--embedding spliced is not known: give sliced, local"),
        ({"embedding": "sliced+"}, "--embedding  is not known"),
        ({"embedding": "sliced+nothing", "whiten": True}, "--embedding nothing is not known"),
        ({"embedding": "sliced+field"}, "joins several: add --whiten"),
        ({"embedding": "field+field", "whiten": True}, "names an embedding twice"),
        ({"embedding": "mean:2"}, "only gem and field take a number"),
        ({"embedding": "gem:"}, "the number is a whole one"),
        ({"embedding": "field:0"}, "the number is a whole one"),
        ({"embedding": "field", "slices": 8}, "--slices is for --embedding sliced and local, not for field"),
        ({"embedding": "mean", "quantiles": 8}, "--quantiles is for"),
        ({"embedding": "field", "label": "kind"}, "learns nothing from labels: add --whiten, or leave --embedding out"),
        ({"power": 0.2}, "--power 0.2 says how much to whiten: add --whiten"),
        ({"label": "kind", "power": 0.2}, "add --whiten"),
        ({"label": "kind", "slices": 8}, "are for an embedding that you name"),
    ],
)
def test_what_does_not_go_together(given, words):
    with pytest.raises(UsageError, match=words):
        EmbeddingOptions(**given).make(0)


def test_preparation_as_options():
    assert Preparation().as_options() == []
    given = Preparation(center=True, align="pca", scale="rms", standardize=True, max_points=20)
    assert given.as_options() == ["--center", "--align", "pca", "--scale", "rms", "--standardize", "--max-points", "20"]
    assert Preparation(scale="unit").preprocess(3).scale == "unit"
