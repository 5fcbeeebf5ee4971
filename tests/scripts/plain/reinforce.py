"""REINFORCE: episodes of varying length in an environment with its own generator, and a running reward."""

import argparse
import math
import os
import random

import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel


class Pole:
    """A pole on a cart; it falls unless the cart is pushed after it."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def reset(self):
        self.state = [self.random.uniform(-0.05, 0.05) for _ in range(4)]
        return self.state

    def step(self, action):
        place, speed, angle, turn = self.state
        push = 10.0 if action == 1 else -10.0
        part = (push + 0.05 * turn**2 * math.sin(angle)) / 1.1
        turning = (9.8 * math.sin(angle) - math.cos(angle) * part) / (0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1))
        moving = part - 0.05 * turning * math.cos(angle) / 1.1
        self.state = [place + 0.02 * speed, speed + 0.02 * moving, angle + 0.02 * turn, turn + 0.02 * turning]
        return self.state, 1.0, abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.affine1 = nn.Linear(4, 32)
        self.dropout = nn.Dropout(0.2)
        self.affine2 = nn.Linear(32, 2)

    def forward(self, x):
        return F.softmax(self.affine2(F.relu(self.dropout(self.affine1(x)))), dim=1)


def finish_episode(optimizer, log_probs, rewards, gamma):
    returns, later = [], 0.0
    for reward in reversed(rewards):
        later = reward + gamma * later
        returns.insert(0, later)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + 1e-8)
    loss = -(torch.cat(log_probs) * returns).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--episodes", type=int, default=150)
    parser.add_argument("--longest", type=int, default=60)
    parser.add_argument("--gamma", type=float, default=0.99)
    parser.add_argument("--solved", type=float, default=50.0)
    parser.add_argument("--seed", type=int, default=543)
    parser.add_argument("--log-interval", type=int, default=10)
    args = parser.parse_args()

    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(args.seed)
    env = Pole(args.seed + rank)
    policy = Policy()
    if ranks > 1:
        policy = DistributedDataParallel(policy)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    running_reward = 10.0
    for episode in range(args.episodes):
        state, log_probs, rewards = env.reset(), [], []
        for _ in range(args.longest):
            choice = Categorical(policy(torch.tensor([state])))
            action = choice.sample()
            log_probs.append(choice.log_prob(action))
            state, reward, done = env.step(action.item())
            rewards.append(reward)
            if done:
                break
        running_reward = 0.05 * sum(rewards) + 0.95 * running_reward
        loss = finish_episode(optimizer, log_probs, rewards, args.gamma)
        mean_reward = torch.tensor(running_reward)
        if ranks > 1:
            dist.all_reduce(mean_reward)
        if episode % args.log_interval == 0 and rank == 0:
            print(f"episode {episode}: {len(rewards)} steps, loss {loss}, running {running_reward}")
        if mean_reward.item() / ranks > args.solved:
            if rank == 0:
                print(f"solved in episode {episode}")
            break
    if rank == 0:
        print(f"running reward {running_reward}, of all ranks {mean_reward.item() / ranks}")


if __name__ == "__main__":
    main()
