"""How products of float32 are computed on GPUs while slosh runs: settings of torch, which need no GPU."""

from __future__ import annotations

import threading

import pytest
from optional_gpu import torch

from slosh.gpu import precision


def reads():
    """Return how products of float32 are computed, as torch says it."""
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):
        return matmul.fp32_precision
    return "tf32" if matmul.allow_tf32 else "ieee"


@pytest.fixture
def allowed():
    """Let the program allow TF32, and put back what it was."""
    matmul, before = torch.backends.cuda.matmul, torch.backends.cuda.matmul.allow_tf32
    matmul.allow_tf32 = True
    yield
    matmul.allow_tf32 = before


def test_the_settings_of_others_are_put_back_when_the_last_thread_leaves(allowed):
    inside, leave = threading.Event(), threading.Event()

    def work():
        with precision.products("ieee"):
            inside.set()
            leave.wait(20)

    other = threading.Thread(target=work)
    try:
        with precision.products("ieee"):
            other.start()
            assert inside.wait(20)
            assert reads() == "ieee"
        assert reads() == "ieee"
    finally:
        leave.set()
        other.join()
    assert reads() == "tf32"


def test_a_fit_that_rounds_its_products_does_not_round_those_of_a_search():
    before, rounding, searched, leave = reads(), threading.Event(), threading.Event(), threading.Event()
    seen = []

    def fit():
        with precision.products("tf32"):
            rounding.set()
            searched.wait(20)
            with precision.products("ieee"):  # as for the neighbours of elements
                seen.append(reads())
            leave.wait(20)

    thread = threading.Thread(target=fit)
    thread.start()
    try:
        assert rounding.wait(20)
        assert reads() == "tf32"
        with precision.products("ieee"):
            assert reads() == "ieee"
            with precision.products("tf32"):  # of a fit that begins meanwhile
                assert reads() == "ieee"
            searched.set()
        leave.set()
    finally:
        searched.set()
        leave.set()
        thread.join()
    assert seen == ["ieee"]
    assert reads() == before


def settings():
    """Return all that torch says of products of float32; where its settings contradict each other, that."""
    matmul, found = torch.backends.cuda.matmul, []
    on_cpu = getattr(torch.backends.mkldnn, "matmul", None)
    for read in (
        lambda: getattr(matmul, "fp32_precision", None),
        lambda: matmul.allow_tf32,
        torch.get_float32_matmul_precision,
        lambda: getattr(on_cpu, "fp32_precision", None),
    ):
        try:
            found.append(read())
        except RuntimeError:
            found.append("contradictory")
    return found


@pytest.fixture
def torch_as_it_was():
    yield
    if hasattr(torch.backends, "fp32_precision"):
        torch.backends.fp32_precision = "none"
    torch.set_float32_matmul_precision("highest")
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        torch.backends.cuda.matmul.fp32_precision = torch.backends.mkldnn.matmul.fp32_precision = "none"


@pytest.mark.parametrize("older", ["highest", "high", "medium"])
@pytest.mark.parametrize("newer", [None, "ieee", "tf32"])
@pytest.mark.parametrize("general", ["none", "tf32"])
def test_whatever_the_program_had_set_is_as_it_was(torch_as_it_was, older, newer, general):
    torch.set_float32_matmul_precision(older)
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):
        torch.backends.fp32_precision = general
        matmul.fp32_precision = newer or matmul.fp32_precision
    before = settings()
    for kind in ("ieee", "tf32"):
        with precision.products(kind):
            assert reads() == kind
            assert matmul.allow_tf32 == (kind == "tf32")  # both of torch's settings can be read
        assert settings() == before


def test_what_a_program_inherits_it_goes_on_inheriting(torch_as_it_was):
    if not hasattr(torch.backends, "fp32_precision"):
        pytest.skip("this torch has one setting only")
    torch.backends.cuda.matmul.fp32_precision = "none"
    torch.backends.fp32_precision = "tf32"
    with precision.products("ieee"):
        assert reads() == "ieee"
    assert reads() == "tf32"
    torch.backends.fp32_precision = "ieee"
    assert reads() == "ieee"
