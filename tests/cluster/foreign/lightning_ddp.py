"""Lightning as in its introduction. It requires the number of nodes and of ranks per node."""

import os

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Sum(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Linear(8, 1)

    def training_step(self, batch, _):
        inputs, targets = batch
        loss = torch.nn.functional.mse_loss(self.model(inputs), targets)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


lightning.seed_everything(0)
inputs = torch.randn(256, 8)
loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=32, shuffle=True)
ranks = int(os.environ["LOCAL_WORLD_SIZE"])
trainer = lightning.Trainer(
    num_nodes=int(os.environ["WORLD_SIZE"]) // ranks,
    devices=ranks,
    strategy="ddp",
    max_epochs=100,
    default_root_dir=os.environ["RUN_DIR"],
    enable_progress_bar=False,
    enable_checkpointing=False,
    logger=False,
)
trainer.fit(Sum(), loader)
if trainer.is_global_zero:
    print(f"{trainer.world_size} ranks, final loss {trainer.callback_metrics['loss']:.4f}")
