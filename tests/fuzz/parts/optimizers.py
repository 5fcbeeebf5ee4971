"""Optimizers, gradient accumulation, scalers, schedules."""

from draft import Draft, block
from options import Plan, add, has, lacks

from parts.loops import EPOCHS

OPTIMIZERS = {
    "SGD": "SGD({}, lr=0.1)",
    "momentum": "SGD({}, lr=0.05, momentum=0.9, nesterov=True)",
    "Adam": "Adam({}, lr=0.02)",
    "AdamW": "AdamW({}, lr=0.02, amsgrad=True, foreach=True)",
    "RMSprop": "RMSprop({}, lr=0.01, centered=True, momentum=0.5)",
    "Adagrad": "Adagrad({}, lr=0.05)",
    "Adadelta": "Adadelta({})",
    "Adamax": "Adamax({}, lr=0.02)",
    "NAdam": "NAdam({}, lr=0.02)",
    "RAdam": "RAdam({}, lr=0.02)",
    "ASGD": "ASGD({}, lr=0.05, t0=3)",
    "Rprop": "Rprop({}, lr=0.01)",
    "fused Adam": "Adam({}, lr=0.02, fused=True)",
    "tensor lr": "Adam({}, lr=torch.tensor(0.02))",
    "groups": 'AdamW([{{"params": biases, "weight_decay": 0.0}}, {{"params": others}}], lr=0.02)',
    "closure": "SGD({}, lr=0.1, momentum=0.9)",
    "LBFGS": "LBFGS({}, lr=0.2, max_iter=3, history_size=4)",
    "attributes": "Noisy({}, lr=0.05, momentum=0.9)",
}
NOISY = """
class Noisy(torch.optim.SGD):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.steps, self.norms, self.noise = 0, [], torch.Generator().manual_seed(5)

    @torch.no_grad()
    def step(self):
        self.steps += 1
        parameters = [each for group in self.param_groups for each in group["params"] if each.grad is not None]
        self.norms = [*self.norms[-2:], sum(each.grad.square().sum().item() for each in parameters)]
        super().step()
        for each in parameters:
            noise = torch.randn(each.shape, generator=self.noise)
            each.add_(noise, alpha=0.01 / (self.steps + sum(self.norms)))
"""
CLOSURE = """
def closure():
    optimizer.zero_grad()
    loss = objective(model(batch), batch)
    loss.backward()
    return loss
"""
PLAIN = lacks("optimizer", "closure", "LBFGS")
"""A body is a forward pass, a backward pass and a step."""
COMMON = {"SGD", "momentum", "Adam"}


def _made(name: str, parameters: str) -> str:
    """Return the expression that makes an optimizer."""
    return ("" if name == "attributes" else "torch.optim.") + OPTIMIZERS[name].format(parameters)


def _optimize(draft: Draft, plan: Plan) -> None:
    name = plan["optimizer"]
    if name == "groups":
        draft.setup.append("biases = [parameter for parameter in model.parameters() if parameter.ndim == 1]")
        draft.setup.append("others = [parameter for parameter in model.parameters() if parameter.ndim > 1]")
    if name == "attributes":
        draft.setup += NOISY.strip().split("\n")
    draft.setup.append(f"optimizer = {_made(name, 'model.parameters()')}")
    draft.give("optimizer", "optimizer")


for name in OPTIMIZERS:
    if name in {"closure", "LBFGS"}:
        add(
            *("optimizer", name),
            weight=1,
            change=_optimize,
            compute=CLOSURE,
            backward="",
            zero="",
            step="loss = optimizer.step(closure)",
        )
    else:
        add("optimizer", name, weight=4 if name in COMMON else 1, change=_optimize)


def _divide(draft: Draft, plan: Plan) -> None:
    """Divide the parameters among two optimizers."""
    draft.setup[-1:] = [
        "parameters = list(model.parameters())",
        f"optimizer = {_made(plan['optimizer'], 'parameters[:2]')}",
        "second = torch.optim.SGD(parameters[2:], lr=0.05, momentum=0.9)",
    ]
    draft.give("optimizer", "second")


def _oppose(draft: Draft, _plan: Plan) -> None:
    """Add a critic, which a second optimizer trains."""
    draft.setup.append("critic = nn.Sequential(nn.Linear(1, 4), nn.LeakyReLU(), nn.Linear(4, 1))")
    if draft.ranks > 1:
        draft.setup.append("critic = DistributedDataParallel(critic)")
    draft.setup.append("second = torch.optim.Adam(critic.parameters(), lr=0.02)")
    draft.give("model", "critic")
    draft.give("optimizer", "second")


DIVISIBLE = (PLAIN, lacks("optimizer", "groups"), lacks("model", "frozen layer"))
add("second optimiser", "none", weight=12)
add(
    "second optimiser",
    "same body",
    needs=DIVISIBLE,
    change=_divide,
    step="optimizer.step()\nsecond.step()",
    zero="model.zero_grad()",
)
add(
    "second optimiser",
    "no, two steps a body",
    weight=1,
    needs=(*DIVISIBLE, lacks("loop", "one step")),
    step="optimizer.step()\noptimizer.step()",
)
add(
    "second optimiser",
    "by turns",
    needs=DIVISIBLE,
    change=_divide,
    step="(optimizer, second)[$number % 2].step()",
    zero="model.zero_grad()",
)
add(
    "second optimiser",
    "by turns, each zeroes its own gradients",
    needs=DIVISIBLE,
    change=_divide,
    step="now = (optimizer, second)[$number % 2]\nnow.step()",
    zero="now.zero_grad()",
)
add(
    "second optimiser",
    "in every third body",
    needs=DIVISIBLE,
    change=_divide,
    after_step="""
        if $number % 3 == 2:
            second.step()
            second.zero_grad()
        """,
)
add(
    "second optimiser",
    "at the end of an epoch",
    needs=(*DIVISIBLE, EPOCHS),
    change=_divide,
    after_training="second.step()\nsecond.zero_grad()",
)
add(
    "second optimiser",
    "of an adversary",
    needs=(*DIVISIBLE, has("model", "plain", "dropout")),
    change=_oppose,
    traces={"critic": "critic"},
    compute="""
        made = model(batch)
        second.zero_grad()
        judged = critic(torch.cat([batch[:, 1:2], made.detach()]))
        loss = (judged[: len(made)] - 1).pow(2).mean() + judged[len(made) :].pow(2).mean()
        loss.backward()
        second.step()
        loss = (critic(made) - 1).pow(2).mean()
        """,
)

ACCUMULATES = (PLAIN, has("second optimiser", "no", "same body"), lacks("loop", "one step"))
BY_BODIES = has("accumulation", "2, ", "3, ")
"""Condition: a step takes more than one body."""
COUNTER = {"setup": "waiting = 0", "counted": "waiting += 1", "after_step": "waiting = 0"}
add("accumulation", "none", weight=6)
for count in (2, 3):
    at = f"($number + 1) % {count} == 0"
    add("accumulation", f"{count}, by position", needs=ACCUMULATES, may_idle=True, condition=at)
    at = f"waiting == {count}"
    add("accumulation", f"{count}, by a counter", needs=ACCUMULATES, may_idle=True, condition=at, **COUNTER)
add(
    "accumulation",
    "halves of a batch",
    needs=(*ACCUMULATES, lacks("model", "batch norm")),
    compute="",
    backward="""
        for half in batch.chunk(2):
            loss = objective(model(half), half)
            loss.backward()
        """,
)


def _begin_again(draft: Draft, plan: Plan) -> None:
    draft.epoch_start += draft.zero
    if plan["accumulation"].endswith("counter"):
        draft.epoch_start.append("waiting = 0")


def _step_after(draft: Draft, plan: Plan) -> None:
    draft.after_training += [*draft.step, *draft.zero]
    if plan["accumulation"].endswith("counter"):
        draft.after_training.append("waiting = 0")


def _step_last(draft: Draft, _plan: Plan) -> None:
    draft.condition += " or $number + 1 == len(loader)"


LEFT = (EPOCHS, BY_BODIES)
add("leftover", "carried")
add("leftover", "dropped", needs=LEFT, change=_begin_again)
add("leftover", "stepped after the loop", needs=LEFT, change=_step_after)
add("leftover", "stepped in the last body", needs=(*LEFT, has("loader", "shuffled", "in order")), change=_step_last)


def _zero_first(draft: Draft, _plan: Plan) -> None:
    draft.zero_first = True


ZEROED_FIRST = (PLAIN, lacks("accumulation", "2", "3"), has("second optimiser", "no", "same body"))
ALONE = has("second optimiser", "no")
add("zeroing", "after the step", weight=4)
add("zeroing", "before the forward pass", needs=ZEROED_FIRST, change=_zero_first)
add("zeroing", "to zeros", needs=(PLAIN, ALONE), zero="optimizer.zero_grad(set_to_none=False)")
add("zeroing", "never", weight=1, needs=(*ZEROED_FIRST, ALONE), zero="")


def _without_sync(draft: Draft, _plan: Plan) -> None:
    head = f"with contextlib.nullcontext() if {draft.condition} else model.no_sync():"
    draft.compute, draft.backward = [], block(head, [*draft.compute, *draft.backward])


add("no_sync", "no")
UNSYNCHRONIZED = (has("ranks", "2"), BY_BODIES)
add("no_sync", "yes", needs=(*UNSYNCHRONIZED, lacks("leftover", "stepped after")), change=_without_sync)
add(
    "no_sync",
    "yes, and steps without a synchronization",
    needs=(*UNSYNCHRONIZED, has("leftover", "stepped after")),
    change=_without_sync,
    unrestorable=("ranks-differ: model",),
)

SCALES = (PLAIN, ALONE, lacks("accumulation", "halves"), lacks("leftover", "stepped after"), lacks("no_sync", "yes"))
add("scaler", "none", weight=8)
add(
    "scaler",
    "given",
    weight=1,
    needs=(*SCALES, lacks("optimizer", "fused")),
    gives=("scaler scaler",),
    setup='scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=3)',
    backward="scaler.scale(loss).backward()",
    step="scaler.step(optimizer)\nscaler.update()",
)
UNSCALED = (PLAIN, has("scaler", "none"))
add("clipping", "none", weight=4)
add("clipping", "norm", needs=UNSCALED, before_step="nn.utils.clip_grad_norm_(model.parameters(), 0.5)")
add("clipping", "value", needs=UNSCALED, before_step="nn.utils.clip_grad_value_(model.parameters(), 0.05)")
add(
    "clipping",
    "norm, unscaled",
    needs=(has("scaler", "given"),),
    before_step="scaler.unscale_(optimizer)\nnn.utils.clip_grad_norm_(model.parameters(), 0.5)",
)

STEP = "scheduler.step()"
WARM_UP = """
warm_up, later = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=3), lr_scheduler.CosineAnnealingLR(optimizer, 9)
scheduler = lr_scheduler.SequentialLR(optimizer, [warm_up, later], [3])
"""
SCHEDULES = {
    "by step, StepLR": ("scheduler = lr_scheduler.StepLR(optimizer, 2, 0.8)", {"after_step": STEP}),
    "by step, warm-up and cosine": (WARM_UP, {"after_step": STEP}),
    "by step, OneCycleLR": (
        "scheduler = lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=200, cycle_momentum=False)",
        {"after_step": STEP},
    ),
    "by epoch, cosine": ("scheduler = lr_scheduler.CosineAnnealingLR(optimizer, 4)", {"epoch_end": STEP}),
    "by epoch, LambdaLR": (
        "scheduler = lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.7**epoch)",
        {"epoch_end": STEP},
    ),
    "by epoch, restarts": ("scheduler = lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2)", {"epoch_end": STEP}),
    "by epoch, before it": (
        "scheduler = lr_scheduler.StepLR(optimizer, 1, 0.5)",
        {"epoch_start": "if epoch:\n    scheduler.step()"},
    ),
}
add("scheduler", "none", weight=8)
for name, (text, places) in SCHEDULES.items():
    needs = (lacks("loop", "steps"),) if name.startswith("by epoch") else ()
    add("scheduler", name, weight=1, needs=needs, setup=text, gives=("scheduler scheduler",), **places)
add(
    "scheduler",
    "by hand",
    weight=1,
    needs=(lacks("loop", "steps"),),
    epoch_end="""
        for group in optimizer.param_groups:
            group["lr"] *= 0.8
        """,
)
add(
    "scheduler",
    "by session.step",
    weight=1,
    needs=(lacks("optimizer", "tensor lr"),),
    before_step="""
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * min(1.0, (session.step + 1) / 5)
        """,
)
