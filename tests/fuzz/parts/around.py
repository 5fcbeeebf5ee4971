"""Code around the step: random numbers, script state, more passes, validation, exits, session arguments."""

from draft import Draft, Loop
from options import Plan, add, has, lacks

from parts.loops import BY_INDEX, EPOCHS, READ_AGAIN, WORKERS

IN_EPOCHS = lacks("loop", "steps")

# Random numbers in the body.

OWN = {
    "torch": ("torch.Generator().manual_seed({})", "torch.rand((), generator={}).item()"),
    "numpy": ("np.random.default_rng({})", "{}.random()"),
    "python": ("random.Random({})", "{}.random()"),
}
add("draws", "none", weight=6)
for kind in OWN:
    add("draws", kind, weight=1, body_end=f'drawn = draw("{kind}")', traces={"drawn": "drawn"})
for kind, (made, used) in OWN.items():
    for name, seed in [("", "5"), (", another on each rank", "5 + RANK")]:
        add(
            "draws",
            f"generator of {kind}, given{name}",
            weight=1,
            needs=(has("ranks", "2"),) if name else (),
            gives=("extra own",),
            setup=f"own = {made.format(seed)}",
            body_end=f"drawn = {used.format('own')}",
            traces={"drawn": "drawn"},
        )

# State of the script.

REMEMBERED = """
class Remembered(Samples):
    reads = 0

    def __getitem__(self, number):
        self.reads += 1
        return super().__getitem__(number) * (1 + 0.01 * self.reads)

    def state_dict(self):
        return {"reads": self.reads}

    def load_state_dict(self, state):
        self.reads = state["reads"]
"""


def _remember(draft: Draft, _plan: Plan) -> None:
    draft.data[:] = [
        *REMEMBERED.strip().split("\n"),
        *(line.replace("data = Samples(", "data = Remembered(") for line in draft.data),
    ]
    draft.given.setdefault("extra", {})["data"] = "data"
    draft.ends["reads"] = "data.reads"


add("extra", "none", weight=8)
add(
    "extra",
    "counters",
    gives=("extra counters",),
    traces={"counters": "counters"},
    setup="counters = Counters(seen=0, best=9.0)",
    body_end="""
        counters["seen"] += len(batch)
        counters["best"] = min(counters["best"], loss.item())
        """,
)
add(
    "extra",
    "average of weights, as extra",
    weight=1,
    gives=("extra average",),
    setup="average = AveragedModel($bare, multi_avg_fn=get_ema_multi_avg_fn(0.9))",
    after_step="average.update_parameters($bare)",
)
add(
    "extra",
    "average of weights, as a model",
    weight=1,
    gives=("model average",),
    setup="average = AveragedModel($bare, use_buffers=True)",
    after_step="average.update_parameters($bare)",
)
add(
    "extra",
    "state of the data set",
    weight=1,
    change=_remember,
    needs=(has("workers", "0"), lacks("loader", *READ_AGAIN)),
)

# More passes of an epoch.


def _second(text: str):
    def change(draft: Draft, plan: Plan) -> None:
        if text:
            draft.data.append(f"second_loader = {text.format(workers=WORKERS[plan['workers']])}")
        draft.passes.append(
            Loop("second_loader" if text else draft.loader, "for batch in session.batches({loader}):", [])
        )

    return change


OF_ONE_LOADER = ("zip", "subclass that negates", "generator that the body draws from")
"""Loaders whose bodies have side effects."""
add("second pass", "none", weight=6)
add(
    "second pass",
    "another loader",
    needs=(EPOCHS, lacks("loader", *OF_ONE_LOADER)),
    change=_second("DataLoader(Samples(8 * RANKS, first=50), 4, shuffle=True{workers})"),
)
add(
    "second pass",
    "a list",
    weight=1,
    needs=(EPOCHS, lacks("loader", *OF_ONE_LOADER)),
    change=_second("list(table(8, 50).split(4))"),
)
add("second pass", "the same loader", weight=1, needs=(EPOCHS, has("loader", *BY_INDEX)), change=_second(""))

# Validation.

HELD_OUT = {
    "list": "table(6, 200).split(2)",
    "loader": "DataLoader(Samples(6, first=200), 2)",
    "noisy loader": 'DataLoader(Samples(6, first=200, noise="torch"), 2, num_workers=1)',
    "shuffled loader": "DataLoader(Samples(6, first=200), 2, shuffle=True)",
}
PLAIN = """
model.eval()
error = 0.0
with torch.no_grad():
    for held in held_out:
        point("validating")
        error += objective($bare(held), held).item()
model.train()
trace("validated"$at, error=error)
session.metrics(error=error)
"""
WITHIN = [
    'point("validating")',
    "model.eval()",
    "with torch.no_grad():",
    "    error = objective(model(held), held)",
    "model.train()",
    'trace("validated"$at, session.batch, error=error)',
]
TRAINING = [
    'point("validating")',
    "with torch.no_grad():",
    "    error = objective(model(held), held)",
    'trace("validated"$at, session.batch, error=error, model=model)',
]


def _validate(body: list[str]):
    def change(draft: Draft, _plan: Plan) -> None:
        draft.passes.append(Loop("held_out", "for held in session.batches({loader}):", body))

    return change


add("validation", "none", weight=6)
for name, text in HELD_OUT.items():
    add("validation", f"plain, {name}", weight=1, needs=(IN_EPOCHS,), data=f"held_out = {text}", epoch_end=PLAIN)
    add(
        "validation",
        f"in the session, {name}",
        weight=1,
        needs=(EPOCHS,),
        data=f"held_out = {text}",
        change=_validate(WITHIN),
    )
add(
    "validation",
    "in training mode",
    weight=1,
    needs=(EPOCHS,),
    data=f"held_out = {HELD_OUT['list']}",
    change=_validate(TRAINING),
)
add(
    "validation",
    "within the body",
    weight=1,
    needs=(lacks("loop", "one step"),),
    data=f"held_out = {HELD_OUT['shuffled loader']}",
    body_end="""
        if $number % 3 == 1:
            model.eval()
            with torch.no_grad():
                errors = [objective($bare(held), held).item() for held in held_out]
            model.train()
            trace("validated in $site"$at, $number, errors=errors)
        """,
)

MEAN = [
    'point("validating")',
    "model.eval()",
    "with torch.no_grad():",
    '    session.mean("error", objective(model(held), held), len(held))',
    "model.train()",
]
add(
    "validation",
    "in the session, with a mean",
    needs=(EPOCHS,),
    data=f"held_out = {HELD_OUT['shuffled loader']}",
    change=_validate(MEAN),
    epoch_end="""
        error = session.mean("error")
        trace("validated"$at, error=error)
        session.metrics(error=error)
        """,
)
MEASURED = (has("validation", "plain", "in the session, with a mean"),)
add("plateau", "no", weight=3)
add(
    "plateau",
    "yes",
    needs=(*MEASURED, has("scheduler", "none")),
    setup="plateau = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)",
    epoch_end="plateau.step(error)",
    gives=("scheduler plateau",),
)

add(
    "validation",
    "within the body, recorded",
    weight=1,
    needs=(EPOCHS,),
    body_end="""
        if $number % 2:
            with torch.no_grad():
                held = table(3, 200)
                session.metrics(error=objective($bare(held), held))
        """,
)

# How a script leaves its loops.

LOOPS = lacks("loop", "one step")
add("exit", "none", weight=8)
add(
    "exit",
    "break",
    needs=(LOOPS, lacks("loader", "endless"), lacks("second pass", "the same loader")),
    leave="if $number == 2:\n    break",
)
add("exit", "break of the epochs", needs=(IN_EPOCHS,), epoch_end="if epoch == 1:\n    break")
add(
    "exit",
    "bodies without training",
    needs=(LOOPS, lacks("iteration", "next"), lacks("loader", "endless")),
    may_say=("reads-ahead",),
    body_start="if $number % 3 == 1:\n    continue",
)

# Other actions in places that a resumed run passes again.

SCALE = "with torch.no_grad():\n    next(model.parameters()).mul_(0.9)"
RATE = 'for group in optimizer.param_groups:\n    group["lr"] = group["lr"] * 0.9'
FORWARD = "with torch.no_grad():\n    model(table(4))"
PLACES = {"after opening": "opened", "before the batches": "epoch_start", "after the batches": "after_training"}
for group, place in PLACES.items():
    needs = () if place == "opened" else (IN_EPOCHS,)
    at = "$at" if needs else ""
    drawn = [f'draw("{kind}")' for kind in (OWN if needs else ["torch"])]  # the script seeds only torch's
    add(group, "nothing", weight=12)
    add(
        group,
        "a draw",
        needs=needs or (has("sessions", "one"),),
        **{place: f'trace("{place}"{at}, drawn=[{", ".join(drawn)}])'},
    )
    add(group, "weights scaled", needs=needs, **{place: SCALE})
    add(group, "learning rate scaled", needs=(*needs, lacks("optimizer", "tensor lr")), **{place: RATE})
    add(group, "forward pass", needs=needs, may_say=("model-before-batches",) if needs else (), **{place: FORWARD})

FROZEN = "next(model.parameters()).requires_grad_(epoch > 0)"
add(
    "before the batches",
    "layer frozen in the first epoch",
    needs=(EPOCHS, has("ranks", "1"), lacks("model", "frozen", "tied", "weight", "spectral")),
    epoch_start=FROZEN,
)
add(
    "before the batches",
    "dropout by epoch",
    needs=(EPOCHS, has("model", "dropout")),
    epoch_start="$bare[1].p = 0.1 + 0.2 * epoch",
)
WARM_UP = "session.warm_up(lambda: objective(model(table(4)), table(4)).backward())"
add("after opening", "warm_up", needs=(lacks("second optimiser", "of an"),), opened=WARM_UP)

# What a session records, and its arguments.

add("checkpoints", "at the ends of epochs")
add("checkpoints", "each step", arguments="checkpoint_steps=1")
add("checkpoints", "each third step", arguments="checkpoint_steps=3")
add("checkpoints", "by time", weight=1, arguments="checkpoint_minutes=1e-6")
add("checkpoints", "one is kept", weight=1, arguments="checkpoint_steps=2\nkeep=1")
add("log", "nothing")
add("log", "the loss", weight=3, arguments="log_interval=2", body_end="session.log(loss=loss, size=len(batch))")
add(
    "log",
    "by some ranks, in some steps",
    weight=1,
    arguments="log_interval=3",
    body_end="if ($number + RANK) % 2:\n    session.log(loss=loss)",
)
add(
    "log",
    "a mean over the epoch",
    needs=(EPOCHS,),
    body_end='session.mean("loss", loss, len(batch))',
    traces={"mean": 'session.mean("loss")'},
    epoch_end='trace("mean"$at, loss=session.mean("loss"))',
)
add("best", "none", weight=3)
add("best", "by validation", weight=1, needs=MEASURED, arguments='best="error"\nminimize=True')
