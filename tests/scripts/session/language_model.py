"""An LSTM over characters: hidden state carried from batch to batch, perplexity, learning rate lowered on a plateau."""

import argparse
import math
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slipway import Session

TEXT = "the quick brown fox jumps over the lazy dog. pack my box with five dozen liquor jugs. " * 60
LETTERS = sorted(set(TEXT))


class RNNModel(nn.Module):
    def __init__(self, width, dropout):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(len(LETTERS), width)
        self.rnn = nn.LSTM(width, width, 2, dropout=dropout)
        self.decoder = nn.Linear(width, len(LETTERS))
        self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)

    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(tokens)), hidden)
        return self.decoder(self.drop(output)), hidden


class Counters(dict):
    state_dict = dict.copy
    load_state_dict = dict.update


def batchify(data, columns):
    rows = len(data) // columns
    return data[: rows * columns].view(columns, rows).t().contiguous()


def get_batch(source, start, bptt):
    length = min(bptt, len(source) - 1 - start)
    return source[start : start + length], source[start + 1 : start + 1 + length].flatten()


def zero_hidden(args, columns):
    return tuple(torch.zeros(2, columns, args.width) for _ in range(2))


def evaluate(model, source, criterion, args):
    model.eval()
    total_loss = 0.0
    hidden = zero_hidden(args, source.shape[1])
    with torch.no_grad():
        for start in range(0, len(source) - 1, args.bptt):
            inputs, targets = get_batch(source, start, args.bptt)
            output, hidden = model(inputs, hidden)
            total_loss += len(inputs) * criterion(output.flatten(0, 1), targets).item()
    return total_loss / (len(source) - 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=5.0)
    parser.add_argument("--bptt", type=int, default=12)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--clip", type=float, default=0.25)
    parser.add_argument("--seed", type=int, default=1111)
    args = parser.parse_args()

    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    corpus = torch.tensor([LETTERS.index(letter) for letter in TEXT])
    train_data = batchify(corpus[:-600], 8 * ranks)[:, 8 * rank : 8 * rank + 8]
    val_data = batchify(corpus[-600:], 4)
    model = RNNModel(args.width, args.dropout)
    if ranks > 1:
        model = DistributedDataParallel(model)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    state = Counters(best_val_loss=float("inf"), hidden=zero_hidden(args, train_data.shape[1]))
    with Session(model=model, optimizer=optimizer, scheduler=scheduler, extra=state, checkpoint_steps=10) as session:
        for epoch in session.epochs(args.epochs):
            model.train()
            if session.batch == 0:
                state["hidden"] = zero_hidden(args, train_data.shape[1])
            starts = range(0, len(train_data) - 1, args.bptt)
            for batch, start in enumerate(session.batches(starts), session.batch):
                inputs, targets = get_batch(train_data, start, args.bptt)
                hidden = tuple(part.detach() for part in state["hidden"])
                optimizer.zero_grad()
                output, state["hidden"] = model(inputs, hidden)
                loss = criterion(output.flatten(0, 1), targets)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), args.clip)
                optimizer.step()
                session.mean("loss", loss)
                session.log(loss=loss)
                if (batch + 1) % 10 == 0 and rank == 0:
                    mean = session.mean("loss")
                    print(f"epoch {epoch} | {batch + 1}/{len(starts)} batches | loss {mean} | ppl {math.exp(mean)}")
            val_loss = evaluate(model, val_data, criterion, args)
            session.metrics(val_loss=val_loss)
            scheduler.step(val_loss)
            state["best_val_loss"] = min(state["best_val_loss"], val_loss)
            if rank == 0:
                lr = optimizer.param_groups[0]["lr"]
                print(f"end of epoch {epoch} | valid loss {val_loss} | valid ppl {math.exp(val_loss)} | next lr {lr}")
    if rank == 0:
        best_val_loss = state["best_val_loss"]
        print(f"best valid loss {best_val_loss}, ppl {math.exp(best_val_loss)}")


if __name__ == "__main__":
    main()
