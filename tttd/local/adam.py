"""Adam as the method fixes it (no weight decay, no gradient clipping), made from a stored state and turned into one."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tttd.local.checkpoint import AdamState

ADAM_BETAS = (0.9, 0.95)
ADAM_EPSILON = 1e-8


def initial_adam(parameters: Mapping[str, torch.nn.Parameter]) -> AdamState:
    """Adam's state before its first step."""
    first, second = ({name: torch.zeros(p.shape) for name, p in parameters.items()} for _ in range(2))
    return AdamState(0, first, second)


def restored_adam(
    parameters: Mapping[str, torch.nn.Parameter], state: AdamState, learning_rate: float
) -> torch.optim.Adam:
    """The optimizer continued from a copy of `state`.

    Raises `ValueError` when the state belongs to other parameters.
    """
    for parameter in parameters.values():
        parameter.grad = None
    adam = torch.optim.Adam(parameters.values(), lr=learning_rate, betas=ADAM_BETAS, eps=ADAM_EPSILON)
    for moments in (state.first, state.second):
        expected = {name: parameter.shape for name, parameter in parameters.items()}
        if {name: moment.shape for name, moment in moments.items()} != expected:
            raise ValueError("the stored optimizer state belongs to other parameters")
    for name, parameter in parameters.items():
        adam.state[parameter] = {
            "step": torch.tensor(float(state.steps)),
            "exp_avg": state.first[name].to(parameter.device, copy=True),
            "exp_avg_sq": state.second[name].to(parameter.device, copy=True),
        }
    return adam


def adam_state(parameters: Mapping[str, torch.nn.Parameter], adam: torch.optim.Adam) -> AdamState:
    """Adam's state, detached from the optimizer."""
    states = {name: adam.state[parameter] for name, parameter in parameters.items()}
    steps = {int(state["step"]) for state in states.values()}
    if len(steps) != 1:
        raise ValueError(f"the parameters were stepped differently often: {sorted(steps)}")
    return AdamState(
        steps.pop(),
        {name: state["exp_avg"].detach().to("cpu", copy=True) for name, state in states.items()},
        {name: state["exp_avg_sq"].detach().to("cpu", copy=True) for name, state in states.items()},
    )
