"""A small transformer over characters with tied weights; pieces of the text are drawn on the device, step by step."""

import argparse

import torch
from torch import nn
from torch.nn import functional as F

from slipway import Session

TEXT = "the quick brown fox jumps over the lazy dog. pack my box with five dozen liquor jugs. " * 40
LETTERS = sorted(set(TEXT))
BLOCK, WIDTH, STEPS = 16, 32, 40


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(len(LETTERS), WIDTH)
        self.places = nn.Parameter(torch.zeros(BLOCK, WIDTH))
        self.layer = nn.TransformerEncoderLayer(WIDTH, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.head = nn.Linear(WIDTH, len(LETTERS), bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.layer(self.tokens(tokens) + self.places, src_mask=mask, is_causal=True))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    data = torch.tensor([LETTERS.index(letter) for letter in TEXT], device=device)
    torch.manual_seed(1)
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=STEPS)
    with Session(model=model, optimizer=optimizer, scheduler=scheduler, checkpoint_steps=7) as session:
        for _ in session.steps(STEPS):
            starts = torch.randint(len(data) - BLOCK - 1, (8, 1), device=device)
            pieces = data[starts + torch.arange(BLOCK + 1, device=device)]
            loss = F.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            session.log(loss=loss)


if __name__ == "__main__":
    main()
