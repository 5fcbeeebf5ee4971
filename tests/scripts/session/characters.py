"""A small GPT over characters, with tied weights, trained step by step on random pieces of a text."""

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from slipway import Session

TEXT = "the quick brown fox jumps over the lazy dog. pack my box with five dozen liquor jugs. " * 40
LETTERS = sorted(set(TEXT))
BLOCK, WIDTH = 16, 32


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(len(LETTERS), WIDTH)
        self.places = nn.Embedding(BLOCK, WIDTH)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, len(LETTERS), bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        hidden = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.layer(hidden, src_mask=mask, is_causal=True)))


def pieces(data, count):
    starts = torch.randint(len(data) - BLOCK - 1, (count,)).tolist()
    return (torch.stack([data[s + shift : s + shift + BLOCK] for s in starts]) for shift in (0, 1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    args = parser.parse_args()

    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    data = torch.tensor([LETTERS.index(letter) for letter in TEXT])
    torch.manual_seed(1)
    model = Model()
    if ranks > 1:
        model = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=args.steps)
    with Session(model=model, optimizer=optimizer, scheduler=scheduler, checkpoint_steps=11) as session:
        for step in session.steps(args.steps):
            inputs, targets = pieces(data, 8)
            loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            session.log(loss=loss)
            if step % 40 == 39:
                print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
