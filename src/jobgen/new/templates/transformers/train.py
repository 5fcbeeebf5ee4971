"""Train a model of Hugging Face transformers; a run that was stopped or killed continues exactly."""

import argparse
import gc

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoModelForSequenceClassification, BertConfig, get_cosine_schedule_with_warmup

from slipway import Sampler, Session

VOCABULARY, LENGTH = 100, 16
MODEL = BertConfig(
    vocab_size=VOCABULARY,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    problem_type="single_label_classification",
)


def sequences(samples, seed):
    """Return random tokens; the label is 1 if most of them are in the upper half of the vocabulary."""
    tokens = torch.randint(VOCABULARY, (samples, LENGTH), generator=torch.Generator().manual_seed(seed))
    return TensorDataset(tokens, ((tokens >= VOCABULARY // 2).sum(dim=1) > LENGTH // 2).long())


def train(session, model, loader, optimizer, scheduler, device):
    model.train()
    for tokens, labels in session.batches(loader, device=device):
        loss = model(input_ids=tokens, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        session.log(loss=loss)


@torch.no_grad()
def validate(session, model, loader, device):
    model.eval()
    for tokens, labels in session.batches(loader, device=device):
        output = model(input_ids=tokens, labels=labels)
        correct = (output.logits.argmax(dim=1) == labels).float().mean()
        session.mean("loss", output.loss, len(labels))
        session.mean("accuracy", correct, len(labels))
    return session.mean("loss"), session.mean("accuracy")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="samples per rank and step")
    parser.add_argument("--lr", type=float, default=0.002)
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    gpu = dist.get_node_local_rank() % max(1, torch.cuda.device_count())
    device = torch.device("cuda", gpu) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(0)

    training, validation = sequences(4096, seed=1), sequences(1024, seed=2)
    options = {"batch_size": args.batch_size, "num_workers": 1, "pin_memory": cuda}
    loader = DataLoader(training, sampler=Sampler(training), **options)
    validation_loader = DataLoader(validation, sampler=Sampler(validation, shuffle=False), **options)

    model = AutoModelForSequenceClassification.from_config(MODEL).to(device)
    model = DistributedDataParallel(model, device_ids=[gpu] if cuda else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    steps = args.epochs * len(loader)
    scheduler = get_cosine_schedule_with_warmup(optimizer, steps // 10, steps)

    with Session(model=model, optimizer=optimizer, scheduler=scheduler, best="accuracy") as session:
        example = torch.zeros(1, LENGTH, dtype=torch.long, device=device)
        # Without this, three ranks or more resume with rounding errors: DDP regroups gradients after its first step.
        session.warm_up(lambda: model(input_ids=example).logits.sum().backward())
        for epoch in session.epochs(args.epochs):
            train(session, model, loader, optimizer, scheduler, device)
            loss, accuracy = validate(session, model, validation_loader, device)
            session.metrics(loss=loss, accuracy=accuracy)
            if session.is_root:
                print(f"epoch {epoch}: validation loss {loss:.4f}, accuracy {accuracy:.3f}", flush=True)
    gc.collect()  # without this, gloo ranks of torch 2.13 sometimes abort at exit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
