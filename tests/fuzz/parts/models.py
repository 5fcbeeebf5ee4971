"""Models."""

from draft import Draft
from options import Plan, add

MODELS = {
    "plain": "nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))",
    "dropout": "nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.3), nn.Linear(5, 1))",
    "batch norm": "nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 1))",
    "batch norm and dropout": "nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.Linear(5, 1))",
    "spectral norm": "nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 5)), nn.Linear(5, 1))",
    "weight norm": "nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 5)), nn.Linear(5, 1))",
    "lazy": "nn.Sequential(nn.LazyLinear(5), nn.Tanh(), nn.Linear(5, 1))",
    "buffer": "Counting()",
    "extra state": "Counting()",
    "tied": "Tied()",
    "frozen layer": "nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))",
}
DEFINED = {
    "buffer": """
        class Counting(nn.Sequential):
            def __init__(self):
                super().__init__(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
                self.register_buffer("calls", torch.zeros(()))

            def forward(self, batch):
                if self.training:
                    self.calls += 1
                return super().forward(batch) / (1 + 0.1 * self.calls)
        """,
    "extra state": """
        class Counting(nn.Sequential):
            def __init__(self):
                super().__init__(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
                self.calls = 0

            def get_extra_state(self):
                return {"calls": self.calls}

            def set_extra_state(self, state):
                self.calls = state["calls"]

            def forward(self, batch):
                self.calls += self.training
                return super().forward(batch) / (1 + 0.1 * self.calls)
        """,
    "tied": """
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
                self.second.weight = self.first.weight

            def forward(self, batch):
                return self.second(torch.tanh(self.first(batch))).mean(1, keepdim=True)
        """,
}


def _build(draft: Draft, plan: Plan) -> None:
    name = plan["model"]
    draft.setup.append(f"model = {MODELS[name]}")
    if name == "lazy":
        draft.setup.append("model(table(2))")
    if name == "frozen layer":
        draft.setup.append("model[0].requires_grad_(False)")
    if draft.ranks > 1:
        draft.setup.append("model = DistributedDataParallel(model)")
    draft.give("model", "model")


for name in MODELS:
    common = name in {"plain", "dropout", "batch norm"}
    add("model", name, weight=4 if common else 1, data=DEFINED.get(name, ""), change=_build)
