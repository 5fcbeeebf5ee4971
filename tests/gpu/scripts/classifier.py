"""Mixed precision with loss scaling, batches copied ahead, workers that augment, dropout, and a validation pass."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from slipway import Session

CLASSES = 5


class Images(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(7)
        self.labels = torch.randint(CLASSES, (80,), generator=generator)
        self.images = torch.randn(80, 3, 16, 16, generator=generator) + self.labels[:, None, None, None] / 2

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.images[index] + 0.1 * torch.randn(3, 16, 16), self.labels[index]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    device = torch.device(parser.parse_args().device)
    torch.manual_seed(1)
    stem = [nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()]
    model = nn.Sequential(*stem, nn.Dropout(0.2), nn.Linear(256, CLASSES)).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    scaler = torch.amp.GradScaler(device.type, enabled=device.type == "cuda")
    loader = DataLoader(Images(), 8, shuffle=True, num_workers=2)
    dtype = torch.float16 if device.type == "cuda" else torch.bfloat16
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    with Session(**parts, checkpoint_steps=7) as session:
        for _ in session.epochs(3):
            for images, labels in session.batches(loader, device=device):
                with torch.autocast(device.type, dtype):
                    logits = model(images)
                    loss = nn.functional.cross_entropy(logits, labels)
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                session.log(loss=loss)
            scheduler.step()


if __name__ == "__main__":
    main()
