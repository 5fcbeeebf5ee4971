"""What a session cannot restore, or refuses."""

from draft import Draft
from options import Plan, add, has, lacks

from parts.around import OWN
from parts.loops import BY_INDEX, EPOCHS
from parts.optimizers import ALONE, PLAIN, SCHEDULES


def _replace(place: str, old: str, new: str):
    def change(draft: Draft, _plan: Plan) -> None:
        found = getattr(draft, place)
        assert any(old in line for line in found), (old, found)
        found[:] = [line.replace(old, new) for line in found]

    return change


def _withhold(kind: str):
    def change(draft: Draft, _plan: Plan) -> None:
        del draft.given[kind]

    return change


def _after_optimizer(*lines: str):
    def change(draft: Draft, _plan: Plan) -> None:
        number = next(number for number, line in enumerate(draft.setup) if line.startswith("optimizer = "))
        draft.setup[number + 1 : number + 1] = lines

    return change


G = "unrestorable"
add(G, "nothing", weight=40)
add(
    G,
    "average of weights",
    weight=1,
    listed=("EMA", "average"),
    needs=(lacks("sessions", "two"),),
    setup="local_average = copy.deepcopy($bare)",
    after_step="""
        with torch.no_grad():
            for kept, new in zip(local_average.parameters(), $bare.parameters()):
                kept.lerp_(new, 0.1)
        """,
    traces={"average_of_weights": "local_average"},
)
for kind, (made, used) in OWN.items():
    add(
        G,
        f"generator of {kind}",
        weight=1,
        listed=("generator",),
        setup=f"lost = {made.format(6)}",
        body_end=f"more = {used.format('lost')}",
        traces={"more": "more"},
    )
add(
    G,
    "sum over an epoch",
    weight=1,
    listed=("mean", "sum"),
    needs=(EPOCHS,),
    epoch_start="total = 0.0",
    body_end="total += loss.item()",
    epoch_end='trace("summed"$at, total=total)',
)
add(
    G,
    "optimiser",
    needs=(PLAIN,),
    unrestorable=("optimizer", "SGD"),
    setup="hidden = torch.optim.SGD(list(model.parameters())[-1:], lr=0.02, momentum=0.9)",
    before_step="hidden.step()",
)
add(
    G,
    "parameter of no model",
    needs=(PLAIN, ALONE, has("accumulation", "none", "2", "3"), lacks("no_sync", "yes"), has("ranks", "1")),
    unrestorable=("optimizer", "parameter"),
    change=_after_optimizer("scale = nn.Parameter(torch.ones(()))", 'optimizer.add_param_group({"params": [scale]})'),
    compute="loss = objective(scale * model(batch), batch)",
    traces={"scale": "scale"},
)
add(
    G,
    "layer frozen in one epoch",
    needs=(
        EPOCHS,
        has("ranks", "1"),
        lacks("model", "frozen", "tied", "weight", "spectral"),
        lacks("epochs", "1"),
    ),
    unrestorable=("requires_grad", "frozen", "model"),
    epoch_start="""
        if epoch == 0:
            next(model.parameters()).requires_grad_(False)
        if epoch == 1:
            next(model.parameters()).requires_grad_(True)
        """,
)
add(
    G,
    "momentum of batch norm, from one epoch on",
    needs=(EPOCHS, has("model", "batch norm"), lacks("epochs", "1")),
    unrestorable=("momentum", "BatchNorm"),
    epoch_start="if epoch == 1:\n    $bare[1].momentum = 0.5",
)
add(
    G,
    "buffer that is not saved",
    needs=(has("model", "buffer"),),
    unrestorable=("calls", "buffer"),
    change=_replace("data", '"calls", torch.zeros(())', '"calls", torch.zeros(()), persistent=False'),
)
add(
    G,
    "scheduler",
    needs=(has("scheduler", *SCHEDULES),),
    unrestorable=("initial_lr", "scheduler"),
    change=_withhold("scheduler"),
)
add(
    G,
    "scaler",
    weight=1,
    needs=(has("scaler", "given"),),
    listed=("GradScaler", "scaler"),
    change=_withhold("scaler"),
)


def _unseed(draft: Draft, _plan: Plan) -> None:
    number = next(number for number, line in enumerate(draft.data) if line.startswith("loader = "))
    draft.data.insert(number, "torch.seed()")


add(
    G,
    "random split without a seed",
    needs=(has("loader", "split"), has("ranks", "1")),
    unrestorable=("split", "Subset", "indices"),
    change=_unseed,
    undetermined=True,
)
add(
    G,
    "statistics of each rank",
    needs=(has("ranks", "2"), has("model", "batch norm")),
    unrestorable=("model", "buffer"),
    change=_replace(
        "setup", "DistributedDataParallel(model)", "DistributedDataParallel(model, broadcast_buffers=False)"
    ),
)
add(
    G,
    "iterator over a loader",
    needs=(has("loop", "steps"),),
    listed=("iterator",),
    setup="endless = itertools.cycle(DataLoader(data, 3))",
    change=_replace("body_start", "data[torch.randint(len(data), (3,)).tolist()]", "next(endless)"),
)
WRAPPER = """
class Wrapper(torch.optim.Optimizer):
    def __init__(self, inner):
        super().__init__(inner.param_groups, inner.defaults)
        self.inner, self.param_groups = inner, inner.param_groups

    def step(self, closure=None):
        self.inner.step()
"""
add(
    G,
    "optimiser within another",
    needs=(has("optimizer", "momentum", "Adam"), ALONE, has("scaler", "none"), lacks("optimizer", "AdamW")),
    unrestorable=("optimizer",),
    data=WRAPPER,
    change=_after_optimizer("optimizer = Wrapper(optimizer)"),
)

add(
    G,
    "iterator beside the loader",
    needs=(EPOCHS,),
    listed=("iterator",),
    data="others = DataLoader(Samples(20, first=300), 1, shuffle=True)",
    epoch_start="beside = iter(others)",
    body_end="extra_loss = objective($bare(next(beside)), batch).item()",
    traces={"extra_loss": "extra_loss"},
)
COUNTING = """
class Turned:
    turn = 0

    def __init__(self, data):
        self.count = len(data)

    def __iter__(self):
        self.turn += 1
        return iter([(number + self.turn) % self.count for number in range(self.count)])

    def __len__(self):
        return self.count
"""
add(
    G,
    "sampler with a counter",
    needs=(EPOCHS, has("loader", "in order"), lacks("epochs", "1")),
    unrestorable=("turn",),
    data=COUNTING,
    change=_replace("data", "DataLoader(data, ", "DataLoader(data, sampler=Turned(data), batch_size="),
)


def _hold_back(draft: Draft, plan: Plan) -> None:
    _replace("setup", "model.parameters()", "list(model.parameters())[:-1]")(draft, plan)


LATER = 'if epoch == 1:\n    optimizer.add_param_group({"params": [list(model.parameters())[-1]]})'
add(
    G,
    "group of parameters that is added later",
    needs=(
        EPOCHS,
        PLAIN,
        ALONE,
        has("scheduler", "none", "by hand"),
        lacks("optimizer", "groups"),
        lacks("epochs", "1"),
    ),
    unrestorable=("optimizer",),
    change=_hold_back,
    epoch_start=LATER,
)

# Refused at once.


def _nest(draft: Draft, _plan: Plan) -> None:
    draft.body_start = ["for batch in session.batches([table(3)]):", "    pass"]


add("refused", "nothing", weight=60)
add(
    "refused",
    "steps in epochs",
    weight=1,
    needs=(EPOCHS,),
    refused=("nested-loops",),
    iteration="for step in session.steps(3):",
    number="step",
    change=lambda draft, _plan: draft.body_start.insert(0, "batch = table(3)"),
)
add(
    "refused",
    "batches in steps",
    weight=1,
    needs=(has("loop", "steps"),),
    refused=("nested-loops",),
    change=_nest,
)
add(
    "refused",
    "two passes at a time",
    weight=1,
    needs=(EPOCHS, has("loader", *BY_INDEX)),
    refused=("batches-not-called",),
    iteration="for batch, _ in zip(session.batches({loader}), session.batches({loader})):",
)
