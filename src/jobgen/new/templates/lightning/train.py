"""Train a classifier with Lightning's Trainer; a run that was stopped or killed continues exactly."""

import argparse
import os

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from slipway.lightning import SlipwayCallback


def rings(samples, seed):
    """Return points in three concentric rings, labelled by ring."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (samples,), generator=generator)
    angles = 2 * torch.pi * torch.rand(samples, generator=generator)
    radii = 1 + labels + 0.2 * torch.randn(samples, generator=generator)
    return TensorDataset(torch.stack([radii * angles.cos(), radii * angles.sin()], dim=1), labels)


class Classifier(LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.layers = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 3))

    def training_step(self, batch, index):
        points, labels = batch
        loss = nn.functional.cross_entropy(self.layers(points), labels)
        self.log("loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, index):
        points, labels = batch
        output = self.layers(points)
        correct = (output.argmax(dim=1) == labels).float().mean()
        self.log("val_loss", nn.functional.cross_entropy(output, labels), sync_dist=True)
        self.log("accuracy", correct, sync_dist=True)

    def on_train_epoch_end(self):
        loss, accuracy = (self.trainer.callback_metrics[name] for name in ("val_loss", "accuracy"))
        self.print(f"epoch {self.current_epoch}: validation loss {loss:.4f}, accuracy {accuracy:.3f}", flush=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.lr)
        return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.trainer.max_epochs)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32, help="samples per rank and step")
    parser.add_argument("--lr", type=float, default=0.01)
    args = parser.parse_args()

    seed_everything(0)
    options = {"batch_size": args.batch_size, "num_workers": 1}
    loader = DataLoader(rings(4096, seed=1), shuffle=True, **options)
    validation_loader = DataLoader(rings(1024, seed=2), **options)

    local, ranks = (int(os.environ.get(name, "1")) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    callback = SlipwayCallback()
    best = ModelCheckpoint(callback.folder / "best", monitor="accuracy", mode="max", enable_version_counter=False)
    trainer = Trainer(
        max_epochs=args.epochs,
        devices=local,
        num_nodes=ranks // local,
        callbacks=[callback, best],
        logger=CSVLogger(callback.folder, name="csv"),
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(args.lr), loader, validation_loader, ckpt_path=callback.ckpt_path)


if __name__ == "__main__":
    main()
