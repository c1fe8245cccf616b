"""The loop that trains a model: inputs and examples come in, a trained model and its history go out.

Everything that is drawn in an epoch follows from the seed and the number of the epoch, so that a fit which goes on from
a checkpoint ends as one that was never interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data.progress import ProgressBar
from ..errors import InputError
from ..gpu.precision import tf32
from ..native.arrays import Array, Int64
from .augmentation import with_regions_of_others
from .averaging import Average
from .checkpoints import Checkpoint, State
from .examples import Examples
from .inputs import Inputs, even_runs
from .losses import CosineSoftmax, contrastive_loss
from .modules import Model
from .sampled_inputs import SampledInputs, Size
from .steps import RepeatedStep, own_stream

MIXING = 0.4
"""Both parameters of the beta distribution that says how two examples are mixed."""
WEIGHT_DECAY = 0.01
WARM_UP = 0.1
"""The part of all epochs in which the learning rate rises; then it falls, as a cosine does."""
MOMENTUM, SGD_DECAY, LARGEST_GRADIENT = 0.9, 5e-4, 5.0
"""Of the steps that a built-in network is trained by."""
SMOOTHING = 0.1
"""The part of the label that goes to all classes alike, behind a network."""
SMOOTHED = 5
"""Epochs whose mean accuracy says how good a model is."""
AVERAGED = 0.05
"""The part of all steps that the mean of the weights of a built-in network goes back; 0: the last ones are kept."""
KEPT_SECONDS = 10.0
"""A checkpoint is written after the first epoch, after the last one, and after those in between as often as this."""
LAST_RATE = 0.03
"""What its learning rate falls to, as a part of the highest: above 0 there is something to average."""
REPLACED = 0.5
"""The part of the sets that get a region of another set, and of its label, where regions are put."""


@dataclass(frozen=True)
class Plan:
    """How to train. `softmax`: prototypes tell classes apart; otherwise sets that are alike are drawn together."""

    softmax: bool
    epochs: int
    patience: int
    batch_size: int
    learning_rate: float
    seed: int
    is_network: bool = False
    """Whether a network is trained: with labels that are smoothed, rather than with sets that are mixed."""
    uses_momentum: bool = False
    """Whether its steps are plain ones with momentum, which such networks end better by; otherwise those of AdamW."""
    puts_regions: bool = False
    """Whether sets get regions of others, and of their labels."""


@contextmanager
def seeded(seed: int, n_threads: int, device: torch.device) -> Iterator[None]:
    """Let torch draw from this seed, on so many threads, and leave its own generator and settings as they were.

    On the CPU its algorithms are deterministic. On other devices some have no such version, and products are rounded as
    TF32 does.
    """
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    memory: Any = torch.utils.deterministic
    filled = memory.fill_uninitialized_memory
    warn_only, dtype = torch.is_deterministic_algorithms_warn_only_enabled(), torch.get_default_dtype()
    away = torch.get_default_device().type != "cpu"
    own = torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False)
    with ExitStack() as stack:
        for each in (torch.random.fork_rng(), tf32(device), *own, torch.device("cpu") if away else nullcontext()):
            stack.enter_context(each)
        try:
            torch.set_num_threads(n_threads)
            torch.set_default_dtype(torch.float32)
            torch.use_deterministic_algorithms(device.type == "cpu")
            memory.fill_uninitialized_memory = False  # nothing reads it
            torch.manual_seed(seed)
            yield
        finally:
            memory.fill_uninitialized_memory = filled
            torch.use_deterministic_algorithms(strict, warn_only=warn_only)
            torch.set_default_dtype(dtype)
            torch.set_num_threads(threads)


class Trainer:
    """Trains a model on examples; `held` are those that it is judged by after every epoch, or None."""

    def __init__(
        self, model: Model, inputs: Inputs, examples: Examples, held: Examples | None, plan: Plan, device: torch.device
    ) -> None:
        self._inputs, self._examples, self._held, self._plan = inputs, examples, held, plan
        self._device = device
        self.model = model.to(device)
        self._classes = CosineSoftmax(examples.n_classes, model.head.n_outputs).to(device) if plan.softmax else None
        self._all = nn.ModuleList([model] if self._classes is None else [model, self._classes])
        self._optimizer = _optimizer(self._all, plan, device)
        self._average = Average(self._all) if plan.uses_momentum and AVERAGED else None
        self._negatives = _partners(examples.unlike)
        self._repeated: RepeatedStep | None = None
        if isinstance(inputs, SampledInputs) and plan.softmax:
            self._repeated = RepeatedStep(self._sampled_step, device, inputs.can_repeat)

    def run(self, checkpoint: Checkpoint, is_over: Callable[[], bool] | None = None) -> tuple[list[list[float]], int]:
        """Train until nothing is gained any more, and leave the best model in place; return the history and its epoch.

        A row of the history: the mean loss, and the loss and the accuracy of what was held back, NaN where there is
        none. `is_over` is asked after every epoch; if it says so this was the last.
        """
        plan, state = self._plan, checkpoint.read()
        if state is None:
            state = State()
        else:
            self._restore(state)
        best = {name: torch.tensor(array) for name, array in _without(state.arrays, "best.").items()}
        kept, due = len(state.history), 0.0

        def keep() -> None:
            nonlocal kept, due
            kept = len(state.history)
            state.arrays = {**self._state(), **_arrays(best, "best.")}
            checkpoint.write(state)
            due = monotonic() + KEPT_SECONDS

        with own_stream(self._device), ProgressBar(total=plan.epochs, unit="epoch", desc="learn") as bar:
            if state.history:
                bar.update(len(state.history))
            is_between = True  # the weights are those that the last epoch has left
            try:
                while len(state.history) < plan.epochs and not state.finished:
                    is_between = False
                    best = self._next(state, best)
                    state.finished = state.finished or (is_over is not None and is_over())
                    is_between = True
                    if checkpoint.is_kept and (state.finished or monotonic() >= due):
                        keep()
                    bar.set_postfix(loss=f"{state.history[-1][0]:.3f}", held=f"{state.history[-1][2]:.3f}")
                    bar.update(1)
            except BaseException:
                if checkpoint.is_kept and is_between and kept < len(state.history):
                    keep()
                raise
        self._all.load_state_dict(best)
        self._average = None
        return state.history, state.best_epoch

    def _next(self, state: State, best: dict[str, Tensor]) -> dict[str, Tensor]:
        """Train for one more epoch, and return the best weights so far."""
        plan, epoch = self._plan, len(state.history)
        torch.manual_seed(_mixed_seed(plan.seed, epoch))
        loss = self._epoch(epoch, np.random.RandomState([plan.seed, epoch]))
        if not math.isfinite(loss):
            raise diverged(epoch, plan)
        state.history.append([loss, *self._judge()])
        if self._held is None or not best or _score(state.history) >= _score(state.history[: state.best_epoch + 1]):
            state.best_epoch = epoch
            best = {name: each.clone() for name, each in self._judged.state_dict().items()}
        state.finished = epoch - state.best_epoch >= plan.patience or epoch + 1 == plan.epochs
        return best

    def hidden(self, rows: Int64) -> Array:
        """Return the last hidden layer of these sets, of unit length, (n, width)."""
        return np.asarray(self._embed(rows).cpu().numpy())

    @property
    def _judged(self) -> nn.ModuleList:
        """The model and its prototypes as they are judged and kept."""
        return self._all if self._average is None else self._average.modules

    # -- an epoch ------------------------------------------------------------------------------------------------------

    def _epoch(self, epoch: int, random: np.random.RandomState) -> float:
        self._all.train()
        batches, plan = self._batches(random), self._plan
        if self._average is not None:
            self._average.reach = AVERAGED * plan.epochs * len(batches)
        total, count = torch.zeros((), device=self._device), 0
        seen = None if self._repeated is None else self._on_device(np.concatenate(batches))
        for number, rows in enumerate(batches):
            rate = _rate((epoch + number / len(batches)) / plan.epochs, LAST_RATE if plan.uses_momentum else 0.0)
            _set_rate(self._optimizer, plan.learning_rate * rate)
            copies = random.randint(self._inputs.n_copies, size=len(rows))
            if seen is None:
                loss = self._descend(self._loss(rows, copies, random))
            else:
                loss = self._repeat(rows, *(each[count : count + len(rows)] for each in seen))
            total, count = total + loss * len(rows), count + len(rows)
        return float(total) / count

    def _on_device(self, rows: Int64) -> tuple[Tensor, Tensor]:
        """Return the numbers of sets and their classes, copied at once: every copy waits for the steps before it."""
        return torch.as_tensor(rows).to(self._device), self._targets(rows)

    def _repeat(self, rows: Int64, which: Tensor, wanted: Tensor) -> Tensor:
        assert self._repeated is not None
        assert isinstance(self._inputs, SampledInputs)
        return self._repeated(which, wanted, self._inputs.size(rows, fresh=True))

    def _descend(self, loss: Tensor) -> Tensor:
        """Change the weights so that the loss falls; return the loss as it was."""
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        if self._plan.uses_momentum:
            nn.utils.clip_grad_norm_(self._all.parameters(), LARGEST_GRADIENT)
        self._optimizer.step()
        if self._average is not None:
            self._average.update()
        return loss.detach()

    def _sampled_step(self, rows: Tensor, wanted: Tensor, size: Size) -> Tensor:
        """Make a step of a network on sets whose elements are drawn. Nothing here waits for the device."""
        assert isinstance(self._inputs, SampledInputs)
        assert self._classes is not None
        batch = self._inputs.drawn(rows.to(self._inputs.home), size, fresh=True)
        cross = partial(nn.functional.cross_entropy, label_smoothing=SMOOTHING, reduction="none")
        if not self._plan.puts_regions:
            logits = self._classes(self.model.head(self.model.features(batch)))
            return self._descend(cross(logits, wanted).mean())
        batch, other, part = with_regions_of_others(batch, REPLACED)
        logits = self._classes(self.model.head(self.model.features(batch)))
        return self._descend((part * cross(logits, wanted) + (1 - part) * cross(logits, wanted[other])).mean())

    def _batches(self, random: np.random.RandomState) -> list[Int64]:
        """Return the sets of each batch of an epoch: numbers of sets, for pairs both of each and sets unlike them."""
        examples, size = self._examples, self._plan.batch_size
        if examples.alike is None:
            rows = self._inputs.arranged(random.permutation(examples.rows), random)
            return [rows[some] for some in even_runs(len(rows), size, self._inputs.n_elements(rows))]
        pairs = examples.alike[random.permutation(len(examples.alike))]
        both = self._inputs.n_elements(pairs[:, 0]) + self._inputs.n_elements(pairs[:, 1])
        found = []
        for some in even_runs(len(pairs), max(1, size // 2), both):
            rows = np.unique(pairs[some])
            drawn = [random.choice(self._negatives[row]) for row in rows.tolist() if row in self._negatives]
            found.append(np.union1d(rows, np.array(drawn, np.int64)))
        return found

    def _loss(self, rows: Int64, copies: Int64, random: np.random.RandomState) -> Tensor:
        features = self.model.features(self._inputs.batch(rows, copies))
        if self._classes is None:
            return contrastive_loss(self.model.head(features), self._alike(rows))
        wanted, cross = self._targets(rows), nn.functional.cross_entropy
        if self._plan.is_network:
            return cross(self._classes(self.model.head(features)), wanted, label_smoothing=SMOOTHING)
        share, other = (
            float(random.beta(MIXING, MIXING)),
            torch.as_tensor(random.permutation(len(rows))).to(self._device),
        )
        logits = self._classes(self.model.head(share * features + (1 - share) * features[other]))
        return share * cross(logits, wanted) + (1 - share) * cross(logits, wanted[other])

    def _targets(self, rows: Int64) -> Tensor:
        at = np.searchsorted(self._examples.rows, rows)
        assert self._examples.classes is not None
        return torch.as_tensor(self._examples.classes[at]).to(self._device)

    def _alike(self, rows: Int64, examples: Examples | None = None) -> Tensor:
        """Return which of the sets are alike, (n, n)."""
        examples = self._examples if examples is None else examples
        return torch.as_tensor(examples.alike_among(rows)).to(self._device)

    # -- what was held back --------------------------------------------------------------------------------------------

    def _embed(self, rows: Int64) -> Tensor:
        """Return the vectors of these sets, without dropout or changes."""
        model: Any = self._judged.eval()[0]
        found = torch.empty((len(rows), self.model.head.n_outputs), device=self._device)
        with torch.no_grad():
            for some in self._inputs.runs(rows):
                batch = self._inputs.batch(rows[some], None)
                found[torch.as_tensor(some).to(self._device)] = model.head(model.features(batch))
        return found

    def _judge(self) -> tuple[float, float]:
        """Return the loss and the accuracy of what was held back, NaN where there is none."""
        held = self._held
        if held is None:
            return math.nan, math.nan
        rows = held.rows
        vectors = self._embed(rows)
        if self._classes is None:
            return float(contrastive_loss(vectors, self._alike(rows, held))), math.nan
        assert held.classes is not None
        wanted = torch.as_tensor(held.classes).to(self._device)
        classes: Any = self._judged[1]
        with torch.no_grad():
            logits = classes(vectors)
        accuracy = (logits.argmax(1) == wanted).float().mean()
        return float(nn.functional.cross_entropy(logits, wanted)), float(accuracy)

    # -- the state of training -----------------------------------------------------------------------------------------

    def _state(self) -> dict[str, Array]:
        moments = self._optimizer.state_dict()["state"]
        flat = {f"optimizer.{i}.{name}": each for i, of in moments.items() for name, each in of.items()}
        average = {} if self._average is None else _arrays(self._average.modules.state_dict(), "average.")
        model = _arrays(self._all.state_dict(), "model.")
        return {**model, **average, **{name: _numpy(each) for name, each in flat.items()}}

    def _restore(self, state: State) -> None:
        self._all.load_state_dict({k: torch.tensor(v) for k, v in _without(state.arrays, "model.").items()})
        if self._average is not None:
            average = _without(state.arrays, "average.")
            self._average.modules.load_state_dict({k: torch.tensor(v) for k, v in average.items()})
        moments: dict[int, dict[str, Tensor]] = {}
        for name, array in _without(state.arrays, "optimizer.").items():
            number, _, key = name.partition(".")
            moments.setdefault(int(number), {})[key] = torch.tensor(array)
        self._optimizer.load_state_dict({**self._optimizer.state_dict(), "state": moments})


def diverged(epoch: int, plan: Plan) -> InputError:
    """Return the error of a fit whose numbers have grown beyond all bounds."""
    problem = f"the loss is no number any more after epoch {epoch}"
    remedy = (
        f"give a lower learning_rate than {plan.learning_rate}; a network or augment of your own must return numbers"
    )
    return InputError(problem, remedy, argument="learning_rate")


def _optimizer(modules: nn.Module, plan: Plan, device: torch.device) -> torch.optim.Optimizer:
    if not plan.uses_momentum:
        return torch.optim.AdamW(modules.parameters(), lr=plan.learning_rate, weight_decay=WEIGHT_DECAY)
    parameters = list(modules.parameters())
    groups = [
        {"params": [each for each in parameters if each.ndim > 1], "weight_decay": SGD_DECAY},
        {"params": [each for each in parameters if each.ndim <= 1], "weight_decay": 0.0},
    ]
    if device.type != "cuda":
        return torch.optim.SGD(groups, lr=plan.learning_rate, momentum=MOMENTUM, nesterov=True)
    rate = torch.tensor(plan.learning_rate, device=device)  # so that a step which was recorded sees another one
    return torch.optim.SGD(groups, lr=rate, momentum=MOMENTUM, nesterov=True, fused=True)


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _partners(unlike: Int64 | None) -> dict[int, list[int]]:
    """Return for each set those that are said to be unlike it."""
    found: dict[int, list[int]] = {}
    for a, b in [] if unlike is None else unlike.tolist():
        found.setdefault(a, []).append(b)
        found.setdefault(b, []).append(a)
    return found


def _rate(done: float, last: float) -> float:
    """Return the learning rate, as a part of the highest, after this part of the training; `last` is at its end."""
    if done < WARM_UP:
        return 0.04 + 0.96 * done / WARM_UP
    return last + (1 - last) * 0.5 * (1 + math.cos(math.pi * (done - WARM_UP) / (1 - WARM_UP)))


def _score(history: list[list[float]]) -> float:
    """Return how good the last epochs were on what was held back: by the accuracy, or of pairs by the loss.

    It is a mean over some epochs. What a single one gets right is chance, and the best of many is good by luck.
    """
    last = history[-SMOOTHED:]
    of_pairs = math.isnan(last[0][2])
    return sum(-row[1] if of_pairs else row[2] for row in last) / len(last)


def _mixed_seed(seed: int, epoch: int) -> int:
    return int(np.random.RandomState([seed, epoch, 1]).randint(1 << 31))


def _numpy(tensor: Tensor) -> Array:
    return np.array(tensor.detach().cpu().numpy())


def _arrays(tensors: dict[str, Tensor], prefix: str) -> dict[str, Array]:
    return {prefix + name: _numpy(tensor) for name, tensor in tensors.items()}


def _without(arrays: dict[str, Array], prefix: str) -> dict[str, Array]:
    """Return the arrays of a prefix by the names behind it."""
    return {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
