"""A small GPT over characters, trained step by step: accumulation, cosine learning rate, evaluation every few steps."""

import argparse
import math
import os
from contextlib import nullcontext

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

    def forward(self, tokens, targets):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        hidden = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        logits = self.head(self.norm(self.layer(hidden, src_mask=mask, is_causal=True)))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch(data, count):
    starts = torch.randint(len(data) - BLOCK - 1, (count,)).tolist()
    return (torch.stack([data[s + shift : s + shift + BLOCK] for s in starts]) for shift in (0, 1))


class Counters(dict):
    state_dict = dict.copy
    load_state_dict = dict.update


@torch.no_grad()
def estimate_loss(model, parts, iterations=4):
    out = {}
    model.eval()
    for name, data in parts.items():
        out[name] = torch.tensor([model(*get_batch(data, 8)).item() for _ in range(iterations)]).mean().item()
    model.train()
    return out


def get_lr(step, args):
    if step < args.warmup:
        return args.lr * (step + 1) / (args.warmup + 1)
    ratio = (step - args.warmup) / (args.steps - args.warmup)
    return 0.1 * args.lr + 0.45 * args.lr * (1 + math.cos(math.pi * ratio))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--eval-interval", type=int, default=20)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1337)
    args = parser.parse_args()

    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(args.seed + rank)
    data = torch.tensor([LETTERS.index(letter) for letter in TEXT])
    parts = {"train": data[:-400], "val": data[-400:]}
    raw_model = model = Model()
    if ranks > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    best = Counters(val_loss=1e9)
    with Session(model=model, optimizer=optimizer, extra=best, checkpoint_steps=11) as session:
        for step in session.steps(args.steps):
            for group in optimizer.param_groups:
                group["lr"] = get_lr(step, args)
            if step % args.eval_interval == 0:
                losses = estimate_loss(raw_model, parts)
                best["val_loss"] = min(best["val_loss"], losses["val"])
                session.metrics(**losses)
                if rank == 0:
                    print(f"step {step}: train loss {losses['train']}, val loss {losses['val']}")
            for micro_step in range(args.accumulate):
                last = micro_step == args.accumulate - 1
                with nullcontext() if last or ranks == 1 else model.no_sync():
                    inputs, targets = get_batch(parts["train"], 8)
                    loss = model(inputs, targets) / args.accumulate
                    loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            session.log(loss=loss * args.accumulate)
            if step % 10 == 0 and rank == 0:
                print(f"iter {step}: loss {loss.item() * args.accumulate}")
    if rank == 0:
        print(f"best val loss {best['val_loss']}")


if __name__ == "__main__":
    main()
