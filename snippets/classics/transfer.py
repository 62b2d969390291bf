"""数据从多到少：从头训、只训最后一层、全量微调，谁赢（PyTorch，CPU，人造任务）。"""

import copy

import torch
from torch import Tensor, nn

DIM = 20


# --8<-- [start:tasks]
def features(x: Tensor) -> Tensor:
    """两个任务共享的底层特征：20 维输入的 8 个非线性量。x: (n, 20) → (n, 8)。"""
    if x.ndim != 2 or x.shape[1] != DIM:
        raise ValueError(f"x 须为 (n, {DIM})，收到 {tuple(x.shape)}")
    mixing = torch.randn(DIM, 8, generator=torch.Generator().manual_seed(7)) / DIM**0.5
    return (1.5 * x @ mixing).sin()


def sample(n: int, task: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """任务 0（源）与 1（目标）：同样的特征、不同的线性规则，各 4 类。"""
    if n < 1 or task not in (0, 1):
        raise ValueError(f"n 须为正，task 须为 0 或 1，收到 {n}、{task}")
    x = torch.randn(n, DIM, generator=generator)
    rule = torch.randn(8, 4, generator=torch.Generator().manual_seed(task))
    return x, (features(x) @ rule).argmax(1)


# --8<-- [end:tasks]


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(DIM, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4))


def _fit(net: nn.Sequential, x: Tensor, y: Tensor, steps: int, lr: float) -> nn.Sequential:
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr)
    for _ in range(steps):
        pick = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x[pick]), y[pick]).backward()
        optimizer.step()
    return net


# --8<-- [start:compare]
def pretrain(seed: int = 0, steps: int = 2000) -> nn.Sequential:
    """在源任务的 2 万个样本上训好的网络。"""
    torch.manual_seed(seed)
    return _fit(_net(), *sample(20_000, 0, torch.Generator().manual_seed(seed)), steps, 3e-3)


def target_accuracy(how: str, n: int, source: nn.Sequential, seed: int = 0, steps: int = 300) -> float:
    """目标任务只有 n 个标注，按 how（从头训、线性探针、全量微调）训 steps 步，返回 4000 个新样本上的准确率。

    >>> source = pretrain()
    >>> for n in (50, 2000):
    ...     print(n, {how: round(target_accuracy(how, n, source), 1) for how in ("从头训", "线性探针", "全量微调")})
    50 {'从头训': 0.5, '线性探针': 0.7, '全量微调': 0.6}
    2000 {'从头训': 0.7, '线性探针': 0.8, '全量微调': 0.8}
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    net = _net() if how == "从头训" else copy.deepcopy(source)
    if how in ("线性探针", "全量微调"):
        net[4] = nn.Linear(128, 4)  # 类别含义变了，换新的头
    elif how != "从头训":
        raise ValueError(f"how 须为从头训、线性探针、全量微调，收到 {how!r}")
    if how == "线性探针":
        net[:4].requires_grad_(False)
    _fit(net, *sample(n, 1, generator), steps, 3e-3 if how != "全量微调" else 1e-3)
    x, y = sample(4000, 1, generator)
    with torch.no_grad():
        return (net(x).argmax(1) == y).float().mean().item()


# --8<-- [end:compare]
