"""Lightning, told only how many nodes and ranks there are, as its users do."""

import os

import lightning
import torch


class Linear(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = torch.nn.Linear(8, 1)

    def training_step(self, batch):
        inputs, targets = batch
        self.loss = torch.nn.functional.mse_loss(self.model(inputs), targets)
        return self.loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.05)


lightning.seed_everything(0)
inputs = torch.randn(256, 8)
data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
ranks = int(os.environ["LOCAL_WORLD_SIZE"])
nodes = int(os.environ["WORLD_SIZE"]) // ranks
trainer = lightning.Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=ranks,
    num_nodes=nodes,
    max_epochs=50,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
model = Linear()
trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=16))
if trainer.is_global_zero:
    print(f"{trainer.world_size} ranks, final loss {model.loss.item():.4f}")
