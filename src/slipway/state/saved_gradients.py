"""Gradients in a checkpoint: values that wait for an optimizer step, else names of the parameters with a gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from slipway.base.errors import SessionError
from slipway.checkpoint.shards import is_sharded
from slipway.dist.data_ranks import fsdp_groups
from slipway.state.optimizer_attributes import parameters_in
from slipway.state.wrappers import unwrap


class SavedGradients:
    """``.grad`` of the parameters of models and optimizers, with ``state_dict`` and ``load_state_dict``.

    If no gradient waits for a step, ``zero_grad`` runs before the next backward pass, which adds to zeros or None. A
    checkpoint then needs only the names of the parameters that have a gradient, because optimizers use a gradient of
    zeros and skip None.
    """

    def __init__(self, modules: Mapping[str, nn.Module], optimizers: Mapping[str, Any]) -> None:
        """Store the owners; parameters of no module are named by their place in an optimizer.

        Args:
            modules: modules by name, with or without wrappers.
            optimizers: optimizers by name.
        """
        self._modules, self._optimizers = modules, optimizers
        self.wait = False
        """Whether gradients wait for an optimizer step, so that ``state_dict`` contains their values."""

    def unreduced(self, parameters_of: Any = None) -> list[str]:
        """Return the modules of which ``fully_shard`` holds gradients that it has not reduced, which no ``.grad`` has.

        That is so after a backward pass under ``set_requires_gradient_sync(False)`` or the like.

        Args:
            parameters_of: an optimizer: only gradients together with which its own are reduced; None for all.
        """
        own = None if parameters_of is None else {*map(id, parameters_in(parameters_of))}
        found = []
        for name, module in self._modules.items():
            groups = [group for part in module.modules() for group in fsdp_groups(part)]
            groups = [
                each for each in groups if own is None or own & {id(one.sharded_param) for one in each.fsdp_params}
            ]
            parameters = [parameter for group in groups for parameter in group.fsdp_params]
            kept = [*(getattr(each, "_partial_reduce_output", None) for each in groups)]
            kept += [getattr(each, "unsharded_accumulated_grad", None) for each in parameters]
            kept += [getattr(getattr(each, "_unsharded_param", None), "grad", None) for each in parameters]
            found += [name] if any(each is not None for each in kept) else []
        return found

    def layouts(self, _saved: object) -> Callable[[str], Tensor | None]:
        """Return the function that returns the parameter of a saved gradient, by the gradient's name in a state."""
        named = {
            f"{owner!r}/'values'/{key!r}": parameter
            for owner, parameters in self._named().items()
            for key, parameter in parameters.items()
        }
        return lambda name: named.get(name.partition("/")[2])

    def state_dict(self) -> dict[str, Any]:
        """Return, by owner, the gradients' values if they wait, or else the names of parameters with a gradient.

        The names are None if all parameters of the owner have a gradient. Owners without gradients are omitted.
        """
        found: dict[str, Any] = {}
        for owner, parameters in self._named().items():
            present = {key: value.grad.detach() for key, value in parameters.items() if value.grad is not None}
            if not present:
                continue
            if self.wait:
                found[owner] = {"values": {key: _described(gradient) for key, gradient in present.items()}}
            else:
                sparse = [key for key, gradient in present.items() if gradient.is_sparse]
                found[owner] = {"names": None if len(present) == len(parameters) else [*present], "sparse": sparse}
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore each gradient as its saved value, as zeros, or as None.

        Raises:
            SessionError: if a parameter with a saved gradient is missing.
        """
        named = self._named()
        for owner, saved in state_dict.items():
            for key in saved.get("values") or saved.get("names") or ():
                if key not in named.get(owner, ()):
                    raise SessionError(
                        "different-state", f"a gradient was saved for {owner} {key}, but that parameter does not exist."
                    )
        for owner, parameters in named.items():
            saved = state_dict.get(owner, {"values": {}})
            for key, parameter in parameters.items():
                if "values" in saved:
                    _put(parameter, _restored(saved["values"].get(key)))
                elif saved["names"] is None or key in saved["names"]:
                    layout = torch.sparse_coo if key in saved["sparse"] else torch.strided
                    _put(parameter, torch.zeros_like(parameter, layout=layout, requires_grad=False))
                else:
                    parameter.grad = None

    def _named(self) -> dict[str, dict[str, Tensor]]:
        """Return each parameter once, by owner and name; the names do not depend on wrappers."""
        named: dict[str, dict[str, Tensor]] = {}
        known: set[int] = set()
        for owner, module in self._modules.items():
            own: dict[str, Tensor] = {
                key: value for key, value in unwrap(module).named_parameters() if id(value) not in known
            }
            named[owner] = own
            known |= {id(parameter) for parameter in own.values()}
        for owner, optimizer in self._optimizers.items():
            named[owner] = {}
            for group, content in enumerate(optimizer.param_groups):
                for number, parameter in enumerate(content["params"]):
                    if id(parameter) not in known:
                        known.add(id(parameter))
                        named[owner][f"{group}/{number}"] = parameter
        return named


def _described(gradient: Tensor) -> Any:
    """Return ``gradient``, or its parts if it is sparse or its strides differ from those of a new tensor."""
    if gradient.is_sparse:
        parts = {"indices": gradient._indices(), "values": gradient._values()}  # noqa: SLF001 -- also if not coalesced
        return {**parts, "shape": [*gradient.shape], "coalesced": gradient.is_coalesced()}
    if gradient.layout == torch.strided and gradient.stride() != torch.empty(gradient.shape, device="meta").stride():
        return {"dense": gradient, "strides": [*gradient.stride()]}
    return gradient if type(gradient) is Tensor or is_sharded(gradient) else gradient.as_subclass(Tensor)


def _restored(value: Any) -> Tensor | None:
    """Return the gradient that ``_described`` has split into parts, on the CPU."""
    if value is None or isinstance(value, Tensor):
        return value
    if "strides" in value:
        return torch.empty_strided(value["dense"].shape, value["strides"], dtype=value["dense"].dtype).copy_(
            value["dense"]
        )
    return torch.sparse_coo_tensor(
        value["indices"],
        value["values"],
        value["shape"],
        is_coalesced=value["coalesced"] or None,
        check_invariants=False,
    )


def _put(parameter: Tensor, gradient: Tensor | None) -> None:
    """Set the gradient of ``parameter``, in place if the layout permits: CUDA graphs and DDP buckets need that."""
    own = parameter.grad
    if own is not None and gradient is not None and _has_same_layout(own, gradient):
        own.detach().copy_(gradient)
    else:
        parameter.grad = None if gradient is None else gradient.to(parameter.device)


def _has_same_layout(own: Tensor, other: Tensor) -> bool:
    is_dense = own.layout == other.layout == torch.strided
    return is_dense and (own.dtype, own.shape, own.stride()) == (other.dtype, other.shape, other.stride())
