"""The fit of a `LearnedEmbedding`: features, model, training, and then plain arrays. It needs torch."""

from __future__ import annotations

import copy
import os
from typing import Any

import numpy as np
import torch
from scipy.linalg import eigh
from threadpoolctl import threadpool_limits
from torch import nn

from ..data.checks import random_stream
from ..data.sets import Sets
from ..embed import Whitened
from ..embed.base import SetTransformer
from ..embed.whitened_checks import checked_views
from ..embed.whitening import with_signs
from ..errors import InputError, bad_value
from ..gpu.devices import checked_device
from ..native.arrays import Array, Float32, Float64
from .augmentation import Layout
from .checkpoints import Checkpoint, fingerprint
from .examples import Examples
from .inputs import FeatureInputs, Inputs, SetInputs, changed_copies, without_weightless
from .modules import HIDDEN, NETWORK_HIDDEN, Head, LearntSlices, Model, NormalizedHead, Scale, is_linear
from .networks import ModuleNetwork
from .parameters import POINT_SLICES, Schedule, checked_changes, default_views, puts_regions
from .point_module import PointModule
from .pooled import PooledNetwork
from .sampled_inputs import SampledInputs
from .training import Plan, Trainer, diverged, seeded

LEARN_STREAM = 0x1EA27
"""Joined to the seed, so that what is drawn here is not what slices are drawn from."""
WHITENED = 512
"""Whitened numbers that a head is put on."""
SETS_A_COMPONENT = 4
FEWEST_WHITENED = 256
"""With fewer sets `Whitened` chooses the number of its components by itself."""
COPIES = 4
"""Changed copies of each set that are embedded before a head learns."""
COPIED_NUMBERS = 1 << 27
"""Numbers of the features of all copies at most (512 MB), but at least those of the sets themselves."""
TURNED_SETS = 8192
"""Sets whose last layers decide about the principal directions, at most."""


def fit_model(
    model: Any, sets: Sets, examples: Examples, checkpoint: str | os.PathLike[str] | None, n_threads: int
) -> dict[str, Any]:
    """Return what a `LearnedEmbedding` learns from examples, by the names of its attributes."""
    device = _device(model.device)
    longest = (HIDDEN if model.network is None else NETWORK_HIDDEN)[-1]
    if model.n_components > longest:
        raise bad_value("n_components", model.n_components, f"give {longest:,} at most")
    if checkpoint is not None and not isinstance(model.random_state, int | np.integer):
        problem = f"random_state={model.random_state!r:.40} draws other numbers in every fit, so none can go on"
        raise InputError(problem, "give a whole number as random_state, or no checkpoint", argument="random_state")
    random = random_stream(model.random_state, LEARN_STREAM)
    seed = int(random.randint(1 << 31))
    kept, held = examples.split(float(model.validation_fraction), random)
    schedule = Schedule.of(model, len(kept))
    softmax = model.loss == "softmax" or (model.loss == "auto" and examples.classes is not None)
    regions = puts_regions(model, sets.dim, schedule.epochs, softmax)
    plan = Plan(softmax, *schedule, seed, model.network is not None, isinstance(model.network, str), regions)
    learnt_of = {name: getattr(examples, name) for name in ("rows", "classes", "alike", "unlike")}
    parameters = {
        name: value for name, value in model.get_params(deep=False).items() if name not in ("n_jobs", "device")
    }
    of = "" if checkpoint is None else fingerprint(sets, learnt_of, {**parameters, "random_state": seed})
    saved = Checkpoint(checkpoint, of)
    # One of another fit, and one that cannot be written, are refused before anything is computed.
    state = saved.read()
    if state is None or not state.finished:
        saved.check_place()
    sets = without_weightless(sets)
    with seeded(seed, n_threads, device):
        part = _Head(model, sets, device) if model.network is None else _Network(model, sets, device, plan)
        trainer = Trainer(part.model, part.inputs, kept, held, plan, device)
        history, best_epoch = trainer.run(saved)
        rows = examples.rows[
            np.linspace(0, len(examples.rows) - 1, min(len(examples.rows), TURNED_SETS)).astype(np.int64)
        ]
        hidden = trainer.hidden(rows)
        if not np.isfinite(hidden).all():
            raise diverged(best_epoch, plan)
        directions = _principal(hidden, int(model.n_components))
        return {
            **part.learnt(),
            "layers_": part.model.layers(directions),
            "curves_": np.array(history, np.float64),
            "best_epoch_": best_epoch,
        }


def _device(name: Any) -> torch.device:
    """Return the device that a fit runs on: one that `slosh.gpu` knows, or another one of torch that computes."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if not isinstance(name, str | torch.device):
        raise bad_value("device", name, 'give "auto", "cpu" or "cuda"')
    if str(name).startswith("cuda"):
        return torch.device(checked_device(name))
    try:
        device = torch.device(name)
        float(torch.zeros(1, device=device))
    except (RuntimeError, TypeError, AssertionError) as error:
        problem = f"device={name!r:.60} cannot be used here ({str(error).splitlines()[0]:.120})"
        raise InputError(problem, 'give "auto" or "cpu"', argument="device") from None
    return device


def _principal(vectors: Array, n: int) -> Float64:
    """Return the n directions along which vectors are longest, (n, D), orthonormal."""
    with threadpool_limits(1, "blas"):
        wide = vectors.astype(np.float64)
        dim = wide.shape[1]
        _, columns = eigh(wide.T @ wide, subset_by_index=[dim - n, dim - 1])
        return with_signs(np.ascontiguousarray(columns[:, ::-1].T))


class _Head:
    """A head on whitened views. Its features are computed before, unless slices are learnt, too."""

    def __init__(self, model: Any, sets: Sets, device: torch.device) -> None:
        self.whitened = _whitened(model, sets)
        width = self.whitened.vector_length
        changes, layout = checked_changes(model, sets.dim), Layout.of(sets)
        n_copies = max(0, min(COPIES, COPIED_NUMBERS // max(1, len(sets) * width) - 1))
        copies = changed_copies(sets, changes, n_copies, layout)
        self.trunk: nn.Module
        self.inputs: Inputs
        views = self.whitened.embeddings_
        if model.learn_slices is True or (model.learn_slices == "auto" and all(is_linear(view) for view in views)):
            if not any(is_linear(view) for view in views):
                remedy = "give a SlicedWasserstein with linear slices, or leave learn_slices out"
                raise InputError("no embedding has slices that can be learnt", remedy, argument="learn_slices")
            self.trunk = LearntSlices(self.whitened, device)
            every = list(copies)
            self.inputs = SetInputs(every, self._fixed(every), (), layout, device)
            features = self.whitened.embed(sets)
        else:
            self.trunk = nn.Identity()
            vectors = np.stack([self.whitened.embed(each) for each in copies])
            features, self.inputs = vectors[0], FeatureInputs(vectors, device)
        self.model = Model(self.trunk, Scale(features), Head(width))

    def _fixed(self, copies: list[Sets]) -> Float32 | None:
        """Return the vectors of the views that are not learnt, scaled, (copies, n, numbers)."""
        whitened = self.whitened
        views = [
            (view, scale)
            for view, scale in zip(whitened.embeddings_, whitened.view_scales_, strict=True)
            if not is_linear(view)
        ]
        if not views:
            return None
        each = [np.concatenate([view.embed(one) * scale for view, scale in views], axis=1) for one in copies]
        return np.stack(each).astype(np.float32)

    def learnt(self) -> dict[str, Any]:
        """Return the attributes of the embedding."""
        if isinstance(self.trunk, LearntSlices):
            self.trunk.into(self.whitened)
        return {"network_": None, "views_": [self.whitened]}


def _whitened(model: Any, sets: Sets) -> Whitened:
    """Return the whitened views that a head is put on, fitted without labels."""
    given = default_views(sets, model.n_slices, model.n_jobs) if model.embedding is None else model.embedding
    views = checked_views(given)
    if len(views) == 1 and isinstance(views[0], Whitened):
        alone = copy.deepcopy(views[0])
        return alone if hasattr(alone, "n_features_in_") else alone.fit(sets)
    wanted: int | str = "auto" if len(sets) < FEWEST_WHITENED else min(WHITENED, len(sets) // SETS_A_COMPONENT)
    one: Any = views if len(views) > 1 else views[0]
    while True:
        made = Whitened(one, wanted, random_state=model.random_state, n_jobs=model.n_jobs)
        try:
            return made.fit(sets)
        except InputError as error:
            if error.argument != "n_components" or wanted == "auto":
                raise
            # The vectors are shorter, or there are many copies of few sets.
            length = sum(view.vector_length for view in made.embeddings_)
            wanted = length if isinstance(wanted, int) and length < wanted else "auto"


class _Network:
    """A network on the elements, pooled, and a head, trained together on the sets themselves."""

    def __init__(self, model: Any, sets: Sets, device: torch.device, plan: Plan) -> None:
        layout = Layout.of(sets)
        self.is_own = not isinstance(model.network, str)
        changes, network = checked_changes(model, sets.dim), model.network
        self.inputs: Inputs
        if self.is_own:
            network = copy.deepcopy(network)
            self.n_outputs = _n_outputs(network, sets)
            self.inputs = SetInputs([sets], None, changes, layout, device)
        else:
            network = PointModule(sets.dim, layout.center, layout.spread, int(model.n_neighbors), within=layout.within)
            self.n_outputs = network.n_outputs
            self.inputs = SampledInputs(sets, changes, layout, plan.batch_size, device)
        n_slices = POINT_SLICES if model.n_slices is None else int(model.n_slices)
        self.trunk = PooledNetwork(network, self.n_outputs, n_slices, plan.seed)
        self.model = Model(self.trunk, None, NormalizedHead(self.trunk.norm.num_features))

    def learnt(self) -> dict[str, Any]:
        """Return the attributes of the embedding."""
        network: Any = self.trunk.network.cpu().eval()
        views: list[SetTransformer] = self.trunk.views()
        made = ModuleNetwork(network, self.n_outputs) if self.is_own else network.export()
        return {"network_": made, "views_": views}


def _n_outputs(network: nn.Module, sets: Sets) -> int:
    """Return how many numbers a network makes of an element; refuse one that makes anything else."""
    first = sets[:1]
    network.eval()
    try:
        with torch.no_grad():
            found: Any = network.cpu()(torch.tensor(first.points), torch.tensor(first.offsets))
    except (TypeError, RuntimeError) as error:
        problem = f"the network cannot be called as network(points, offsets) with float32 points ({error!s:.200})"
        remedy = "give a module whose forward(points, offsets) takes (P, d) and (n + 1,), and returns (P, c)"
        raise InputError(problem, remedy, argument="network") from None
    if not isinstance(found, torch.Tensor) or found.ndim != 2 or len(found) != len(first.points) or not found.shape[1]:
        shape = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        problem = f"the network made {shape} of a set of {len(first.points)} elements"
        raise InputError(problem, "it must return (P, c) numbers, a row for each element", argument="network")
    return int(found.shape[1])
