"""Training with Lightning's Trainer and SlipwayCallback for stop and resume; writes the samples of each batch."""

import argparse
import json
import os
import time

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from slipway.lightning import SlipwayCallback

SAMPLES = 80


class Regression(LightningModule):
    def __init__(self, pause):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
        self.pause = pause

    def training_step(self, batch, index):
        time.sleep(self.pause)
        ids = batch[0]
        with open(f"{os.environ['RUN_DIR']}.seen.{self.global_rank}", "a", encoding="utf-8") as file:  # noqa: PTH123
            file.write(json.dumps([self.current_epoch, index, ids.flatten().int().tolist()]) + "\n")
        return (self.layers(ids / SAMPLES) - ids / SAMPLES).square().mean()

    def validation_step(self, batch, _index):
        self.log("error", self.layers(batch[0]).square().mean(), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0)
    parser.add_argument("--forget", action="store_true")
    args = parser.parse_args()
    seed_everything(0)
    data = TensorDataset(torch.arange(float(SAMPLES))[:, None])
    callback = SlipwayCallback()
    trainer = Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        callbacks=[callback],
        logger=False,
        enable_progress_bar=False,
    )
    loader = DataLoader(data, 4, shuffle=True)
    resumed = None if args.forget else callback.ckpt_path
    trainer.fit(Regression(args.pause), loader, DataLoader(data, 16), ckpt_path=resumed)
    print(f"fitted to step {trainer.global_step}")


if __name__ == "__main__":
    main()
