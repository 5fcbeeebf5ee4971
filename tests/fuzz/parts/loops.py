"""Ranks, the outer loop, data and loaders."""

from draft import Draft
from options import Plan, add, has, lacks

RANDOM_BATCH = "batch = data[torch.randint(len(data), (3,)).tolist()]"
EPOCHS = has("loop", "epochs")
"""Condition: the script has session.batches."""
SLOW = ("slow-resume",)

add("ranks", "1", weight=4)
add("ranks", "2", weight=1, ranks=2)

add("loop", "epochs", weight=8)
add("loop", "steps", epochs=0, iteration="for step in session.steps(9):", number="step", body_start=RANDOM_BATCH)
add("loop", "one step an epoch", weight=1, epochs=5, iteration="", number="epoch", body_start=RANDOM_BATCH)

add("sessions", "one", weight=12)
add("sessions", "two, a folder each", weight=1, folds=True)
add("sessions", "two in one folder", weight=1, folds=True, refused=("folder-used-twice",))


def _name_folder(draft: Draft, plan: Plan) -> None:
    draft.folder = 'FOLDER / f"fold{fold}"' if plan["sessions"] == "two, a folder each" else "FOLDER"


add("epochs", "2", change=_name_folder)
add("epochs", "1", needs=(EPOCHS,), change=_name_folder, epochs=1)
add("epochs", "3", needs=(EPOCHS,), change=_name_folder, epochs=3)

add("seed", "torch.manual_seed", weight=4, seeded="torch.manual_seed(1)")
add("seed", "by rank", weight=1, seeded="torch.manual_seed(1 + RANK)")
add("seed", "argument", weight=1, seeded="torch.manual_seed(1)", arguments="seed=4")

SIZES = {"12 by 4": (12, 4), "10 by 4": (10, 4), "14 by 4": (14, 4), "15 by 5": (15, 5)}
"""Samples per rank and per batch. The remainder is never 1 (batch norm has no variance), nor with 2 samples fewer."""
for name in SIZES:
    add("samples", name)
add("noise", "none", weight=4)
for name in ("torch", "numpy", "python"):
    add("noise", name, weight=1)

BY_INDEX = {
    "shuffled": "DataLoader(data, {size}, shuffle=True{workers})",
    "in order": "DataLoader(data, {size}{workers})",
    "without the rest": "DataLoader(data, {size}, shuffle=True, drop_last=True{workers})",
    "generator given": "DataLoader(data, {size}, shuffle=True, generator=torch.Generator().manual_seed(3){workers})",
    "slipway.Sampler": "DataLoader(data, {size}, sampler=Sampler(data){workers})",
    "DistributedSampler": "DataLoader(data, {size}, sampler=DistributedSampler(data, RANKS, RANK){workers})",
    "weighted": "DataLoader(data, {size}, sampler=WeightedRandomSampler(torch.arange(len(data)) + 1.0, 10){workers})",
    "subset sampler": "DataLoader(data, {size}, sampler=SubsetRandomSampler(range(2, len(data))){workers})",
    "random sampler": "DataLoader(data, {size}, sampler=RandomSampler(data, generator=torch.Generator()){workers})",
    "batch sampler": "DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), {size}, True){workers})",
    "no batches": "DataLoader(data, batch_size=None, sampler=BatchSampler(RandomSampler(data), {size}, True){workers})",
    "own sampler": "DataLoader(data, {size}, sampler=ByEpoch(data){workers})",
    "own sampler that draws": "DataLoader(data, {size}, sampler=Drawn(data){workers})",
    "own batch sampler": "DataLoader(data, batch_sampler=Uneven(data){workers})",
    "split": "DataLoader(random_split(data, [len(data) - 2, 2])[0], {size}, shuffle=True{workers})",
    "collate by epoch": "DataLoader(data, {size}, shuffle=True{workers})",
    "worker_init_fn": "DataLoader(data, {size}, shuffle=True, worker_init_fn=shift{workers})",
    "endless sampler": "DataLoader(data, {size}, sampler=Endless(data){workers})",
    "made in each epoch": "DataLoader(data, {size}, shuffle=True{workers})",
    "more data in each epoch": "DataLoader(Subset(data, range(4 + 2 * epoch)), 2, shuffle=True{workers})",
    "generator that the body draws from": "DataLoader(data, {size}, shuffle=True, generator=shared{workers})",
}
READ_AGAIN = {
    "iterable": "DataLoader(Stream(data), {size}{workers})",
    "subclass that doubles": "Doubled(data, {size}{workers})",
    "subclass that negates": "Negated(data, {size}{workers})",
    "list": "list(table(len(data)).split({size}))",
    "zip": "zip(loader, DataLoader(Samples(len(data), first=100), {size}, shuffle=True))",
    "zip with a list": "zip(loader, table(len(data), 100).split({size}))",
    "islice": "itertools.islice(loader, 2)",
    "generator function": "batches_of(epoch, data)",
}
WORKERS = {
    "0": "",
    "1": ", num_workers=1",
    "1, persistent": ", num_workers=1, persistent_workers=True",
    "2": ", num_workers=2",
}
DEFINED = {
    "generator that the body draws from": "shared = torch.Generator()",
    "own sampler": """
        class ByEpoch:
            def __init__(self, data):
                self.count, self.epoch = len(data), 0

            def set_epoch(self, epoch):
                self.epoch = epoch

            def __iter__(self):
                return iter(torch.randperm(self.count, generator=torch.Generator().manual_seed(self.epoch)).tolist())

            def __len__(self):
                return self.count
        """,
    "own sampler that draws": """
        class Drawn:
            def __init__(self, data):
                self.count = len(data)

            def __iter__(self):
                return iter(np.random.permutation(self.count).tolist())

            def __len__(self):
                return self.count
        """,
    "own batch sampler": """
        class Uneven:
            def __init__(self, data):
                self.count = len(data)

            def __iter__(self):
                order = torch.randperm(self.count).tolist()
                while len(order) > 4:
                    size = 2 + random.randrange(3) if RANKS == 1 else 3
                    yield order[:size]
                    order = order[size:]
        """,
    "collate by epoch": """
        def scaled(factor):
            return lambda samples: torch.stack(samples) * factor
        """,
    "worker_init_fn": """
        def shift(worker):
            torch.utils.data.get_worker_info().dataset.scale = 2.0
        """,
    "endless sampler": """
        class Endless:
            def __init__(self, data):
                self.count = len(data)

            def __iter__(self):
                while True:
                    yield from torch.randperm(self.count).tolist()
        """,
    "subclass that doubles": """
        class Doubled(DataLoader):
            def __iter__(self):
                for batch in super().__iter__():
                    yield batch
                    yield 2 * batch
        """,
    "subclass that negates": """
        class Negated(DataLoader):
            def _get_iterator(self):
                return iter([-batch for batch in super()._get_iterator()])
        """,
    "generator function": """
        def batches_of(epoch, data):
            order = torch.randperm(len(data), generator=torch.Generator().manual_seed(epoch))
            for numbers in order.split(4):
                yield data[numbers.tolist()]
        """,
}
for name in BY_INDEX:
    add("loader", name, needs=(EPOCHS,), weight=8 if name == "shuffled" else 2, data=DEFINED.get(name, ""))
for name in READ_AGAIN:
    add("loader", name, needs=(EPOCHS,), may_say=() if name == "list" else SLOW, data=DEFINED.get(name, ""))
for name in WORKERS:
    without = (
        "list",
        "generator function",
        *(["subclass that negates"] if "persistent" in name else []),
    )  # torch's fails
    add("workers", name, weight=6 if name == "0" else 1, needs=(EPOCHS, lacks("loader", *without)))


def _load(draft: Draft, plan: Plan) -> None:
    name, (count, size) = plan["loader"], SIZES[plan["samples"]]
    noise = "" if plan["noise"] == "none" else f', noise="{plan["noise"]}"'
    draft.data += ["", f"data = Samples({count * draft.ranks}{noise})"]
    if not EPOCHS(plan):
        return
    workers = WORKERS[plan["workers"]]
    text = (BY_INDEX | READ_AGAIN)[name].format(size=size, workers=workers)
    if name.startswith(("zip", "islice")):
        draft.data.append(f"loader = DataLoader(data, {size}, shuffle=True{workers})")
    if name.startswith(("zip", "islice", "generator")):
        draft.loader = text
    elif name.endswith("in each epoch"):
        draft.epoch_start.append(f"loader = {text}")
    else:
        draft.data.append(f"loader = {text}")
    if name.startswith("zip"):
        draft.iteration = "for batch, other in session.batches({loader}):"
        draft.traced["other"] = "other"
    if name == "collate by epoch":
        draft.epoch_start.append("loader.collate_fn = scaled(1.0 + epoch)")
    if name == "generator that the body draws from":
        draft.body_end.append("shared_drawn = torch.rand((), generator=shared).item()")
        draft.traced["shared_drawn"] = "shared_drawn"
    if name == "subclass that negates":
        draft.body_start.append("assert batch[0, 0] <= 0")
    if name == "endless sampler":
        draft.leave += ["if $number == 3:", "    break"]


add("loading", "as drawn", change=_load)

ONE = (EPOCHS, lacks("loader", "zip"))
add("iteration", "direct", weight=8)
add("iteration", "on a device", needs=ONE, iteration='for batch in session.batches({loader}, device="cpu"):')
add(
    "iteration",
    "enumerate",
    needs=ONE,
    iteration="for number, batch in enumerate(session.batches({loader}), session.batch):",
    number="number",
)
add(
    "iteration",
    "next",
    weight=1,
    needs=ONE,
    iteration="batches = iter(session.batches({loader}))\nwhile (batch := next(batches, None)) is not None:",
)
add(
    "iteration",
    "wrapped",
    weight=1,
    needs=ONE,
    iteration="for batch in shown(session.batches({loader})):",
    data="""
        def shown(batches):
            for batch in batches:
                yield batch
        """,
)
