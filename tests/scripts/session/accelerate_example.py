"""Accelerate's loop: everything prepared, accumulation, warm-up by step, predictions gathered for the metric."""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from slipway import Session


def get_dataloaders(batch_size):
    def sentences(count, seed):
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(1, 20, (count, 10), generator=generator)
        return TensorDataset(tokens, (tokens.sum(1) > 100).long())

    train = DataLoader(sentences(640, 1), shuffle=True, batch_size=batch_size, drop_last=True, num_workers=1)
    return train, DataLoader(sentences(130, 2), shuffle=False, batch_size=32)


def get_model():
    return nn.Sequential(
        *(nn.Embedding(20, 16), nn.Flatten(), nn.Linear(160, 32), nn.ReLU()),
        *(nn.Dropout(0.1), nn.Linear(32, 2)),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--seed", type=int, default=42)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
    set_seed(args.seed)
    train_dataloader, eval_dataloader = get_dataloaders(args.batch_size)
    model = get_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    total, warm_up = len(train_dataloader) * args.epochs // args.accumulate, 20
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(step / warm_up, max(0.0, (total - step) / (total - warm_up)))
    )
    model, optimizer, train_dataloader, eval_dataloader, scheduler = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader, scheduler
    )
    with Session(model=model, optimizer=optimizer, scheduler=scheduler, checkpoint_steps=15) as session:
        for epoch in session.epochs(args.epochs):
            model.train()
            for tokens, labels in session.batches(train_dataloader):
                with accelerator.accumulate(model):
                    loss = nn.functional.cross_entropy(model(tokens), labels)
                    session.mean("loss", loss)
                    accelerator.backward(loss)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                session.log(loss=loss)
            model.eval()
            right = 0
            for tokens, labels in eval_dataloader:
                with torch.no_grad():
                    predictions = model(tokens).argmax(dim=-1)
                predictions, references = accelerator.gather_for_metrics((predictions, labels))
                right += int((predictions == references).sum())
            accuracy = right / len(eval_dataloader.dataset)
            session.metrics(accuracy=accuracy)
            accelerator.print(f"epoch {epoch}: train loss {session.mean('loss')}, accuracy {accuracy}")
    accelerator.print(f"last learning rate {scheduler.get_last_lr()[0]}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
