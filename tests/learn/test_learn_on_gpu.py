"""What is trained on a GPU, beside the same on the CPU."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from labelled_shapes import shapes, torch

from slosh.data.progress import watched
from slosh.learn import LearnedEmbedding, steps
from slosh.learn.point_module import PointModule

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use")


def points(**given):
    options = {"n_components": 8, "n_slices": 8, "epochs": 4, "batch_size": 16, "validation_fraction": 0.25}
    return LearnedEmbedding("points", device="cuda", **{**options, **given})


def losses(model):
    return [row["loss"] for row in model.history_]


SMALL_STEPS = 1e-4
"""A learning rate at which the loss does not show the order of sums, which a GPU leaves open. At the usual one, two
fits with the same draws are a tenth apart after ten steps."""


def test_elements_and_their_gradients_equal_those_of_the_cpu():
    torch.manual_seed(0)
    network, x = PointModule(3, np.zeros(3), 1.0, 8).eval(), torch.randn(5, 40, 3)
    found = []
    for device in ("cpu", "cuda"):
        leaf = x.to(device).detach().requires_grad_()
        network.to(device).zero_grad()
        out = network(leaf)
        (out * torch.linspace(-1, 1, out.shape[2], device=device)).sum().backward()
        # Copies: a module takes its gradients along when it moves to another device.
        made = out.detach(), leaf.grad, *(each.grad for each in network.parameters())
        found.append([each.cpu().clone() for each in made])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)


def test_a_recorded_step_is_the_step(monkeypatch):
    sets, labels = shapes(200, 3, size=60)
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for steps_before in (steps.STEPS_BEFORE, 1 << 30):
            monkeypatch.setattr(steps, "STEPS_BEFORE", steps_before)
            found.append(losses(points(learning_rate=SMALL_STEPS).fit(sets, labels)))
    np.testing.assert_allclose(*found, rtol=1e-3)
    others = losses(points(learning_rate=SMALL_STEPS, random_state=1).fit(sets, labels))
    assert np.abs(np.subtract(others, found[0])).min() > 1e-2  # of other draws


def test_it_learns():
    sets, labels = shapes(120, 3, size=60)
    vectors = points(epochs=20).fit(sets, labels).transform(sets)
    nearest = (vectors @ vectors.T - 2 * np.eye(120)).argmax(axis=1)
    assert (labels[nearest] == labels).mean() > 0.7


def test_a_fit_goes_on_from_its_checkpoint(tmp_path):
    sets, labels = shapes(120, 3, size=60)

    def watch(stage, done, total):
        if stage == "learn" and done == 2:
            raise KeyboardInterrupt

    given = {"learning_rate": SMALL_STEPS}
    with watched(watch), pytest.raises(KeyboardInterrupt):
        points(**given).fit(sets, labels, checkpoint=tmp_path / "checkpoint")
    model = points(**given).fit(sets, labels, checkpoint=tmp_path / "checkpoint")
    assert model.n_epochs_ == 4
    np.testing.assert_allclose(losses(model), losses(points(**given).fit(sets, labels)), rtol=1e-3)


@pytest.mark.parametrize("given", [{}, {"loss": "contrastive"}, {"augment": None}, {"n_neighbors": 1}])
def test_weights_and_other_losses_on_a_gpu(given):
    sets, labels = shapes(60, 2, weighted=True)
    assert np.isfinite(points(epochs=2, **given).fit(sets, labels).transform(sets)).all()
