import os

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from slipway.lightning import SlipwayCallback


class Regression(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch, index):
        inputs, targets = batch
        return nn.functional.mse_loss(self.layers(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


seed_everything(0)  # for the first weights
inputs = torch.randn(4096, 8)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=32, shuffle=True)
local, ranks = (int(os.environ.get(name, "1")) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
callback = SlipwayCallback()
trainer = Trainer(max_epochs=5, devices=local, num_nodes=ranks // local, callbacks=[callback])
trainer.fit(Regression(), loader, ckpt_path=callback.ckpt_path)
