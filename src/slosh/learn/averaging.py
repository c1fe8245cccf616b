"""The mean of the weights of modules over their last steps, which is judged and kept in the place of the last ones."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class Average:
    """The mean of weights and statistics over the steps so far: the older a step, the less it weighs.

    modules : a copy that has the means. reach : how many steps it goes back, about.
    """

    def __init__(self, modules: nn.ModuleList) -> None:
        self.modules, self.reach = deepcopy(modules).requires_grad_(False), 1.0
        both = zip(self.modules.state_dict().values(), modules.state_dict().values(), strict=True)
        self._pairs = [(mean, of) for mean, of in both if of.dtype == torch.float32]

    def update(self) -> None:
        """Take another step into account."""
        means, last = (list(each) for each in zip(*self._pairs, strict=True))
        average: Any = get_ema_multi_avg_fn
        average(1 - 1 / max(1.0, self.reach))(means, last, None)
