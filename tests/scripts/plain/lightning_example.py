"""An autoencoder by Lightning's Trainer: validation, a scheduler, metrics logged by epoch."""

import argparse
import os

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class LitAutoEncoder(LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 64))

    def step(self, batch):
        (x,) = batch
        return nn.functional.mse_loss(self.decoder(self.encoder(x)), x)

    def training_step(self, batch, index):
        loss = self.step(batch)
        self.log("train_loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self.step(batch), sync_dist=True)

    def on_train_epoch_end(self):
        metrics = self.trainer.callback_metrics
        self.print(f"epoch {self.current_epoch}: train {metrics['train_loss_epoch']}, val {metrics.get('val_loss')}")

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    seed_everything(args.seed)
    images = torch.rand(480, 3) @ torch.rand(3, 64)
    train_loader = DataLoader(TensorDataset(images[:400]), batch_size=10, shuffle=True)
    val_loader = DataLoader(TensorDataset(images[400:]), batch_size=20)
    trainer = Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = LitAutoEncoder()
    trainer.fit(model, train_loader, val_loader)
    (metrics,) = trainer.validate(model, val_loader, verbose=False)
    if trainer.is_global_zero:
        print(f"val loss {metrics['val_loss']}")


if __name__ == "__main__":
    main()
