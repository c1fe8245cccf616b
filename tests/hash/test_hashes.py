"""What holds for every hash: the scikit-learn contract, and the checks of parameters and vectors."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
from collisions import gauss
from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline

from slosh.embed import SlicedWasserstein
from slosh.hash import PStableHash, SignHash

HASHES = [
    SignHash(100),
    SignHash(100, "median", "gaussian"),
    SignHash(20, None, "orthogonal", 3),
    PStableHash(2.0),
    PStableHash(0.5, 2, 3, p=1, random_state=7),
]


@pytest.mark.parametrize("hash_", HASHES, ids=repr)
def test_clone_pickle_parameters_and_pipelines(hash_: SignHash | PStableHash) -> None:
    X = gauss(60, 30)
    with pytest.raises(NotFittedError):
        hash_.transform(X)
    fitted = clone(hash_)
    assert fitted.fit(X) is fitted
    assert fitted.n_features_in_ == 30
    values = fitted.transform(X)
    np.testing.assert_array_equal(clone(hash_).fit_transform(X), values)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).transform(X), values)
    assert fitted.get_params() == hash_.get_params()
    assert clone(fitted).get_params() == hash_.get_params()
    fitted.set_params(**{"n_bits": 7} if isinstance(hash_, SignHash) else {"width": 9.0, "n_tables": 1})
    np.testing.assert_array_equal(fitted.transform(X), values)  # what was fitted holds until the next fit
    assert fitted.transform(X[:0]).shape == (0, *values.shape[1:])
    sets = [gauss(n, 2, seed=n) for n in range(5, 25)]
    model = SlicedWasserstein(n_slices=4, n_quantiles=4, n_jobs=1)
    assert len(make_pipeline(model, clone(hash_)).fit_transform(sets)) == 20


def test_a_pickled_hash_is_no_larger_than_what_it_learned() -> None:
    X = gauss(10, 100)
    hash_ = SignHash(1000, rotation="gaussian").fit(X)
    before = len(pickle.dumps(hash_))
    hash_.transform(X)
    assert len(pickle.dumps(hash_)) == before < 5 * 100 * 1000


def test_set_output_gives_a_frame_of_bytes() -> None:
    pandas = pytest.importorskip("pandas")
    X = gauss(5, 4)
    frame = SignHash(20).set_output(transform="pandas").fit_transform(X)
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["signhash0", "signhash1", "signhash2"]
    np.testing.assert_array_equal(frame, SignHash(20).fit_transform(pandas.DataFrame(X)))


@pytest.mark.parametrize(
    ("hash_", "message"),
    [
        (SignHash(0), "n_bits=0 must be a whole number"),
        (SignHash(8.0), r"n_bits=8\.0 must be a whole number"),  # type: ignore[arg-type]
        (SignHash(center="middle"), 'center=\'middle\': pass "mean", "median" or None'),
        (SignHash(center=np.zeros(2)), "center=array.*: pass"),  # type: ignore[arg-type]
        (SignHash(rotation=None), "rotation=None: pass one of"),  # type: ignore[arg-type]
        (SignHash(rotation="sobol"), "rotation='sobol': pass one of 'hadamard', 'orthogonal', 'gaussian'"),
        (PStableHash(0), "width=0 must be a positive number"),
        (PStableHash(math.inf), "width=inf must be"),
        (PStableHash("4"), "width='4' must be"),  # type: ignore[arg-type]
        (PStableHash(1, n_hashes=0), "n_hashes=0"),
        (PStableHash(1, n_tables=2.5), r"n_tables=2\.5"),  # type: ignore[arg-type]
        (PStableHash(1, p=3), r"p=3 must be 2 \(Euclidean distance\) or 1"),
        (PStableHash(1, p=1.5), r"p=1\.5 must be"),  # type: ignore[arg-type]
    ],
)
def test_parameters_are_checked(hash_: SignHash | PStableHash, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hash_.fit(gauss(3, 2))
    if not message.startswith(("n_hashes", "n_tables")):
        with pytest.raises(ValueError, match=message):
            hash_.collision_probability(1.0)


@pytest.mark.parametrize("hash_", HASHES, ids=repr)
@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.ones(3), r"X is 1-D, of 3 numbers: vectors must be \(n, D\), so pass x\[None\]"),
        (np.ones((2, 3, 4)), r"X is 3-D, of shape \(2, 3, 4\)"),
        (np.ones((2, 0)), r"X has the shape \(2, 0\)"),
        (5, "X is an int, not an array"),
        (None, "X is None, not an array"),
        (np.ones((2, 3)) * 1j, "X must be real numbers, not complex"),
        ([["a", "b"]], "X must be numbers, not of dtype <U1"),
        ([[1.0, 2.0], [3.0]], "X must have rows of one length, but row 1 has 1 numbers"),
        (csr_matrix(np.eye(3)), r"X is sparse, a csr_matrix: pass X\.toarray\(\)"),
        ([[0.0, 1.0], [np.nan, 2.0]], r"X: row 1 holds NaN \(column 0\)"),
        ([[0.0, -np.inf]], r"X: row 0 holds infinity \(column 1\)"),
        ([[0.0, 1e30]], r"X: row 0 has 1e\+30 in column 1, beyond 1e\+18: scale"),
        ([[0.0, 1e300]], r"X: row 0 has 1e\+300 in column 1, beyond 1e\+18"),
    ],
)
def test_vectors_are_checked(hash_: SignHash | PStableHash, X: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        clone(hash_).fit(X)
    fitted = clone(hash_).fit(gauss(3, 2))
    with pytest.raises(ValueError, match=message):
        fitted.transform(X)


@pytest.mark.parametrize("hash_", HASHES, ids=repr)
def test_other_dimensions_and_nothing_at_all(hash_: SignHash | PStableHash) -> None:
    with pytest.raises(ValueError, match=r"X has the shape \(0, 4\): fit needs at least one vector"):
        clone(hash_).fit(np.ones((0, 4)))
    with pytest.raises(ValueError, match="X has vectors of 5 numbers; the hash was fitted on 4"):
        clone(hash_).fit(np.ones((3, 4))).transform(np.ones((2, 5)))
    X = gauss(5000, 300)
    X[4321, 7] = np.nan
    with pytest.raises(ValueError, match="row 4321 holds NaN"):
        clone(hash_).fit(X)
