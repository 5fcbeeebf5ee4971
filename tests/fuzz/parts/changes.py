"""Changes that a script makes to its objects while it trains."""

from draft import Draft
from options import Plan, add, has, lacks

from parts.loops import EPOCHS
from parts.optimizers import ALONE, PLAIN


def replacing(place: str, old: str, new: str):
    def change(draft: Draft, _plan: Plan) -> None:
        found = getattr(draft, place)
        assert any(old in line for line in found), (old, found)
        found[:] = [line.replace(old, new) for line in found]

    return change


def _hold_back(draft: Draft, plan: Plan) -> None:
    replacing("setup", "model.parameters()", "list(model.parameters())[:-1]")(draft, plan)


add("changes", "none", weight=6)
LATER = 'if epoch == 1:\n    optimizer.add_param_group({"params": [list(model.parameters())[-1]]})'


add(
    "changes",
    "layer frozen in one epoch",
    needs=(
        EPOCHS,
        has("ranks", "1"),
        lacks("model", "frozen", "tied", "weight", "spectral"),
        lacks("epochs", "1"),
    ),
    epoch_start="""
        if epoch == 0:
            next(model.parameters()).requires_grad_(False)
        if epoch == 1:
            next(model.parameters()).requires_grad_(True)
        """,
)

add(
    "changes",
    "momentum of batch norm, from one epoch on",
    needs=(EPOCHS, has("model", "batch norm"), lacks("epochs", "1")),
    epoch_start="if epoch == 1:\n    $bare[1].momentum = 0.5",
)

add(
    "changes",
    "buffer that is not saved",
    needs=(has("model", "buffer"),),
    change=replacing("data", '"calls", torch.zeros(())', '"calls", torch.zeros(()), persistent=False'),
)

add(
    "changes",
    "statistics of each rank",
    needs=(has("ranks", "2"), has("model", "batch norm")),
    change=replacing(
        "setup", "DistributedDataParallel(model)", "DistributedDataParallel(model, broadcast_buffers=False)"
    ),
)

add(
    "changes",
    "group of parameters that is added later",
    needs=(
        EPOCHS,
        PLAIN,
        ALONE,
        has("scheduler", "none", "by hand"),
        lacks("optimizer", "groups"),
        lacks("epochs", "1"),
    ),
    change=_hold_back,
    epoch_start=LATER,
)
