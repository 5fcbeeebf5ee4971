"""Pretrain a Llama-like language model, sharded by FSDP2, in a Session (docs/howto/language-model.md)."""

import argparse
import math
import os
import time
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, Subset
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GPT2Tokenizer, LlamaConfig, optimization

from slipway import Sampler, Session

SHAPE = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
SIZES = {
    "tiny": (128, 4, 4, 2, 352),
    "0.1B": (640, 12, 10, 2, 1728),
    "1B": (2048, 16, 32, 8, 8192),
    "3B": (3072, 28, 24, 8, 8192),
    "8B": (4096, 32, 32, 8, 14336),
    "70B": (8192, 80, 64, 8, 28672),
}
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("--text", nargs="+", metavar="FILE", help="documents in UTF-8; default: some of Python's sources")
parser.add_argument("--size", choices=SIZES, default="tiny", help="of the model")
parser.add_argument("--weights", type=Path, help="a folder of transformers: train its model further")
parser.add_argument("--vocabulary", type=int, default=1024, help="tokens of the new tokenizer")
parser.add_argument("--sequence", type=int, default=128, help="tokens of a sequence")
parser.add_argument("--batch", type=int, default=24, help="sequences of an optimizer step, on all GPUs together")
parser.add_argument("--micro-batch", type=int, default=4, help="sequences of a forward pass, on one GPU")
parser.add_argument("--epochs", type=int, default=3, help="passes over the text")
parser.add_argument("--lr", type=float, default=2e-3, help="the highest learning rate")


def make_config(size, *, vocabulary, end, sequence):
    """Return the configuration of a new model; ``end`` is the end-of-text token."""
    options = {"vocab_size": vocabulary, "max_position_embeddings": sequence, "bos_token_id": end, "eos_token_id": end}
    return LlamaConfig(
        **dict(zip(SHAPE, SIZES[size], strict=True)), **options, tie_word_embeddings=SIZES[size][0] < 4096
    )


def prepare(args, flags, folder):
    """Write the tokenizer, the model's configuration, the text as packed sequences across documents, and the flags."""
    texts = []
    for path in args.text or sorted(Path(os.__file__).parent.glob("[ab]*.py")):
        try:
            texts.append(Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            parser.error(f"--text {path}: {error}")
    if args.weights:
        tokenizer, config = AutoTokenizer.from_pretrained(args.weights), AutoConfig.from_pretrained(args.weights)
        config.max_position_embeddings = max(config.max_position_embeddings, args.sequence)
    else:
        tokenizer = GPT2Tokenizer().train_new_from_iterator(texts, args.vocabulary, show_progress=False)
        config = make_config(args.size, vocabulary=len(tokenizer), end=tokenizer.eos_token_id, sequence=args.sequence)
    documents = tokenizer(texts, add_special_tokens=False, verbose=False).input_ids
    tokens = np.concatenate([np.array([*document, tokenizer.eos_token_id], np.int32) for document in documents])
    sequences = tokens[: len(tokens) // args.sequence * args.sequence].reshape(-1, args.sequence)
    if len(sequences) * 19 // 20 < args.batch:
        parser.error(f"the text gives {len(sequences)} sequences, too few: add text, or lower --sequence or --batch")
    tokenizer.save_pretrained(folder)
    config.save_pretrained(folder)
    np.save(folder / "sequences.npy", sequences)
    (folder / "flags").write_text("\n".join(flags))  # at the end: without it, the next attempt prepares them again


@torch.no_grad()
def make_model(config, device, dtype):
    """Return the sharded model in float32, computed in ``dtype``; a rank never holds more than one layer whole."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for part in [*model.get_decoder().layers, model]:
        for module in part.modules():
            if any(own.is_meta for own in (*module.parameters(recurse=False), *module.buffers(recurse=False))):
                module.to_empty(device=device, recurse=False)
                model._init_weights(module)  # of whole tensors: the same weights on any number of GPUs
        model.tie_weights()
        fully_shard(part, mp_policy=MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32))
    model.activation_checkpointing_enable()
    return model


@torch.no_grad()
def evaluate(model, session, loader, device):
    """Return the mean loss on the validation set."""
    model.eval()
    for batch in session.batches(loader, device=device):
        session.mean("loss", model(batch.long(), labels=batch.long(), use_cache=False).loss, len(batch))
    model.train()
    return session.mean("loss")


def main():
    args, cuda = parser.parse_args(), torch.cuda.is_available()
    if args.weights and not (args.weights / "config.json").exists():
        parser.error(f"--weights {args.weights}: no config.json (slipway export RUN FOLDER/ --extra RUN/inputs)")
    dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(hours=1))
    device = torch.device(f"cuda:{dist.get_node_local_rank() % torch.cuda.device_count()}" if cuda else "cpu")
    if cuda:
        torch.cuda.set_device(device)
    torch.manual_seed(0)
    ranks, inputs = dist.get_world_size(), Path(os.environ.setdefault("RUN_DIR", "runs/llm"), "inputs")
    if args.batch % ranks:
        parser.error(f"--batch must be a multiple of the {ranks} ranks")
    flags = [f"--{name} {value}" for name, value in vars(args).items() if name != "micro_batch"]
    if dist.get_rank() == 0 and not (inputs / "flags").exists():
        prepare(args, flags, inputs)
    dist.barrier()
    if other := sorted({*flags}.symmetric_difference((inputs / "flags").read_text().splitlines())):
        parser.error(f"{inputs} is of other flags ({', '.join(other)}): repeat those, or set another RUN_DIR")
    sequences = np.load(inputs / "sequences.npy", mmap_mode="c")
    numbers = np.arange(len(sequences))
    training, validation = (Subset(sequences, numbers[own]) for own in (numbers % 20 > 0, numbers % 20 == 0))
    steps = args.epochs * (len(training) // args.batch)
    loader = DataLoader(training, args.batch // ranks, sampler=Sampler(training), drop_last=True)
    validation_loader = DataLoader(validation, args.micro_batch, sampler=Sampler(validation, shuffle=False))
    model = make_model(AutoConfig.from_pretrained(inputs), device, torch.bfloat16 if cuda else torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    scheduler = optimization.get_cosine_schedule_with_warmup(optimizer, steps // 20, steps)
    with Session(
        model=model, optimizer=optimizer, scheduler=scheduler, weights=args.weights, log_interval=10
    ) as session:
        for epoch in session.epochs(args.epochs):
            before = time.perf_counter()
            for batch in session.batches(loader, device=device):
                for part in batch.long().split(args.micro_batch):
                    loss = model(part, labels=part, use_cache=False).loss
                    (loss * len(part) / len(batch)).backward()  # also reduces the gradients: whole, they may not fit
                    session.log(loss=loss)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()
                seconds, before = time.perf_counter() - before, time.perf_counter()
                session.log(tokens_per_second=args.batch * args.sequence / seconds)
            loss = evaluate(model, session, validation_loader, device)
            session.metrics(loss=loss, perplexity=math.exp(loss))
            if session.is_root:
                print(f"epoch {epoch}: validation loss {loss:.4f}, perplexity {math.exp(loss):.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
