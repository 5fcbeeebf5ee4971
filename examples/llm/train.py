"""Pretrain a Llama-like language model, sharded by FSDP2, in a Session (docs/howto/language-model.md)."""

import argparse
import gc
import math
import os
import random
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader
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
STORY = "{0} had a {2} and took it to the {3}. There {0} met {1}. {0} gave {1} the {2}, and they went home.\n"

parser = argparse.ArgumentParser(description="Pretrain a language model.")
parser.add_argument("--text", nargs="+", type=Path, default=[], help="files, each a document; default: made up")
parser.add_argument("--size", choices=SIZES, default="tiny", help="of the model")
parser.add_argument("--weights", type=Path, help="a folder of transformers: train its model further")
parser.add_argument("--vocabulary", type=int, default=1024, help="tokens of the new tokenizer")
parser.add_argument("--sequence", type=int, default=128, help="tokens of a sequence")
parser.add_argument("--batch", type=int, default=24, help="sequences of an optimizer step, on all GPUs together")
parser.add_argument("--micro-batch", type=int, default=4, help="sequences of a forward pass, on one GPU")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=2e-3, help="the highest learning rate")
parser.add_argument("--dtype", help="of the computation; default: bfloat16 on GPUs, float32 on CPUs")


def make_stories():
    """Return short texts, the same in each call."""
    draw, people = random.Random(0), ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn")
    lists = ("ball", "kite", "drum", "lamp"), ("park", "shop", "barn", "school")
    return [STORY.format(*draw.sample(people, 2), *map(draw.choice, lists)) for _ in range(4000)]


def make_config(size, *, vocabulary, end, sequence):
    """Return the configuration of a new model; ``end`` is the end-of-text token."""
    tied = SIZES[size][0] < 4096  # otherwise the embeddings of a small model outweigh its layers
    options = {"vocab_size": vocabulary, "max_position_embeddings": sequence, "tie_word_embeddings": tied}
    return LlamaConfig(**dict(zip(SHAPE, SIZES[size], strict=True)), **options, bos_token_id=end, eos_token_id=end)


def prepare(args, folder):
    """Write the tokenizer, the model's configuration, and the text as packed sequences, for all attempts."""
    texts = [path.read_text(encoding="utf-8") for path in args.text] or make_stories()
    if args.weights:
        tokenizer, config = AutoTokenizer.from_pretrained(args.weights), AutoConfig.from_pretrained(args.weights)
    else:
        tokenizer = GPT2Tokenizer().train_new_from_iterator(texts, args.vocabulary, show_progress=False)
        config = make_config(args.size, vocabulary=len(tokenizer), end=tokenizer.eos_token_id, sequence=args.sequence)
    documents = tokenizer(texts, add_special_tokens=False, verbose=False).input_ids
    tokens = np.concatenate([np.array([*document, tokenizer.eos_token_id], np.int32) for document in documents])
    # A sequence may hold the end of a document and the beginning of the next; attention crosses the border.
    sequences = tokens[: len(tokens) // args.sequence * args.sequence].reshape(-1, args.sequence)
    partial = folder.with_name("inputs.partial")
    tokenizer.save_pretrained(partial)
    config.save_pretrained(partial)
    np.save(partial / "sequences.npy", sequences)
    partial.rename(folder)


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
        if part is model:
            model.tie_weights()
        fully_shard(part, mp_policy=MixedPrecisionPolicy(param_dtype=getattr(torch, dtype), reduce_dtype=torch.float32))
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
    device = torch.device(f"cuda:{dist.get_node_local_rank(0) % torch.cuda.device_count()}" if cuda else "cpu")
    if cuda:
        torch.cuda.set_device(device)
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("nccl" if cuda else "gloo", **alone)
    torch.manual_seed(0)
    folder = Path(os.environ.get("RUN_DIR", "runs/llm"))  # jobs set RUN_DIR
    inputs = folder / "inputs"
    if dist.get_rank() == 0 and not inputs.exists():
        prepare(args, inputs)
    dist.barrier()
    sequences, ranks = np.load(inputs / "sequences.npy", mmap_mode="c"), dist.get_world_size()
    training, validation = np.split(sequences, [-max(ranks, len(sequences) // 20)])
    steps = args.epochs * (len(training) // args.batch)
    if args.batch % ranks or not steps:
        parser.error(f"--batch must be a multiple of {ranks} GPUs, and at most {len(training)}, the training sequences")
    loader = DataLoader(training, args.batch // ranks, sampler=Sampler(training), drop_last=True)
    validation_loader = DataLoader(validation, args.micro_batch, sampler=Sampler(validation, shuffle=False))
    model = make_model(AutoConfig.from_pretrained(inputs), device, args.dtype or ("bfloat16" if cuda else "float32"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
    scheduler = optimization.get_cosine_schedule_with_warmup(optimizer, steps // 20, steps)
    with Session(model=model, optimizer=optimizer, scheduler=scheduler, weights=args.weights, folder=folder) as session:
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
    gc.collect()  # without this, gloo ranks of torch 2.13 sometimes abort at exit
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
