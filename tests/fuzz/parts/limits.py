"""Code that a session cannot restore, or refuses."""

from draft import Draft
from options import Plan, add, has, lacks

from parts.around import OWN
from parts.changes import replacing
from parts.loops import BY_INDEX, EPOCHS
from parts.optimizers import ALONE, PLAIN, SCHEDULES


def _withhold(kind: str):
    def change(draft: Draft, _plan: Plan) -> None:
        del draft.given[kind]

    return change


def _line_of(beginning: str, lines: list[str]) -> int:
    return next(number for number, line in enumerate(lines) if line.startswith(beginning))


def _after_optimizer(*lines: str):
    def change(draft: Draft, _plan: Plan) -> None:
        number = _line_of("optimizer = ", draft.setup)
        draft.setup[number + 1 : number + 1] = lines

    return change


G = "unrestorable"
add(G, "nothing", weight=40)
add(
    G,
    "average of weights",
    weight=1,
    unrestorable=("module-not-given: a module",),
    needs=(lacks("sessions", "two"),),
    setup="local_average = copy.deepcopy($bare)",
    after_step="""
        with torch.no_grad():
            for kept, new in zip(local_average.parameters(), $bare.parameters()):
                kept.lerp_(new, 0.1)
        """,
    traces={"average_of_weights": "local_average"},
)
add(
    G,
    "counter in a loss",
    weight=1,
    unrestorable=("module-not-given: a module",),
    setup="""
        class Counting(nn.Module):
            calls = 0

            def forward(self, values):
                self.calls += 1
                return (values * self.calls).sum().item()
        counting = Counting()
        """,
    body_end="counted = counting(torch.ones(1))",
    traces={"counted_by_loss": "counted"},
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
    unrestorable=("optimizer-not-given: SGD",),
    setup="hidden = torch.optim.SGD(list(model.parameters())[-1:], lr=0.02, momentum=0.9)",
    before_step="hidden.step()",
)
add(
    G,
    "parameter of no model",
    needs=(PLAIN, ALONE, has("accumulation", "none", "2", "3"), lacks("no_sync", "yes"), has("ranks", "1")),
    refused=("parameters-not-given",),
    change=_after_optimizer("scale = nn.Parameter(torch.ones(()))", 'optimizer.add_param_group({"params": [scale]})'),
    compute="loss = objective(scale * model(batch), batch)",
    traces={"scale": "scale"},
)
add(
    G,
    "scheduler",
    needs=(has("scheduler", *SCHEDULES),),
    unrestorable=("scheduler-not-given: optimizer",),
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
    draft.data.insert(_line_of("loader = ", draft.data), "torch.seed()")


add(
    G,
    "random split without a seed",
    needs=(has("loader", "split"), has("ranks", "1")),
    unrestorable=("changed-loader: indices", "different-data: data"),
    change=_unseed,
    undetermined=True,
)
add(
    G,
    "iterator over a loader",
    needs=(has("loop", "steps"),),
    listed=("iterator",),
    setup="endless = itertools.cycle(DataLoader(data, 3))",
    change=replacing("body_start", "data[torch.randint(len(data), (3,)).tolist()]", "next(endless)"),
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
    unrestorable=("optimizer-not-given: within optimizer",),
    data=WRAPPER,
    change=_after_optimizer("optimizer = Wrapper(optimizer)"),
)

add(
    G,
    "iterator beside the loader",
    needs=(EPOCHS,),
    listed=("iterator",),
    data="others = DataLoader(Samples(60, first=300), 2, shuffle=True)",
    epoch_start="beside = iter(others)",
    body_end="""
        other = next(beside)
        extra_loss = objective($bare(other), other).item()
        """,
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


def _count_passes(draft: Draft, plan: Plan) -> None:
    number = _line_of("loader = ", draft.data)
    draft.data[number:number] = COUNTING.strip().split("\n")
    replacing("data", "DataLoader(data, ", "DataLoader(data, sampler=Turned(data), batch_size=")(draft, plan)


add(
    G,
    "sampler with a counter",
    needs=(EPOCHS, has("loader", "in order"), lacks("epochs", "1")),
    unrestorable=("changed-loader: turn",),
    change=_count_passes,
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
    refused=("two-passes",),
    iteration="for batch, _ in zip(session.batches({loader}), session.batches({loader})):",
)
