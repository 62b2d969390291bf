"""混合精度训练框架：半精度权重、fp32 主权重、动态损失缩放、fp32 累积、跨分片的溢出与裁剪、断点续训（PyTorch）。"""

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from snippets.deep_learning.training.loss_scaling import LossScaler


# --8<-- [start:framework]
class MixedPrecision:
    """包住模型与优化器。用法：每个 micro-batch 调 backward(loss)，然后 step()。

    构造时把 model 的参数改成 dtype，另留 fp32 主权重交给优化器；损失须在 fp32 里算好再交进来。
    shards：参数切在这个进程组上（每个 rank 只有一片）时给出，溢出与范数要跨片归约；数据并行的归约应在 step 之前做完。

    >>> _ = torch.manual_seed(0)
    >>> model = nn.Linear(4, 3)
    >>> trainer = MixedPrecision(model, lambda ps: torch.optim.AdamW(ps, lr=0.1))
    >>> model.weight.dtype, trainer.masters[0].dtype, trainer.scaler.scale
    (torch.float16, torch.float32, 65536.0)
    >>> trainer.backward(model(torch.ones(2, 4).half()).float().square().mean())
    >>> trainer.step()
    True
    """

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer],
        *,
        dtype: torch.dtype = torch.float16,
        scaler: LossScaler | None = None,
        max_norm: float = 1.0,
        shards: dist.ProcessGroup | None = None,
    ) -> None:
        if not dtype.is_floating_point or not max_norm > 0:
            raise ValueError(f"dtype 须是浮点、max_norm 须为正，收到 {dtype}、{max_norm}")
        if any(p.dtype != torch.float32 for p in model.parameters()):
            raise ValueError("构造时模型须是 float32：主权重要从没有舍入过的值开始")
        self.params = [p for p in model.parameters() if p.requires_grad]
        self.masters = [p.detach().clone().requires_grad_() for p in self.params]
        for p in model.parameters():  # 冻结的也改，但不留主权重
            p.data = p.data.to(dtype)
        self.sums = [torch.zeros_like(m) for m in self.masters]
        self.optimizer = make_optimizer(self.masters)
        # bf16 与 fp32 的范围相同，不用缩放
        self.scaler = scaler or (LossScaler() if dtype == torch.float16 else None)
        self.max_norm, self.shards = max_norm, shards

    @property
    def scale(self) -> float:
        return self.scaler.scale if self.scaler else 1.0

    def backward(self, loss: Tensor, micro_batches: int = 1) -> None:
        """放大、反向，把这个 micro-batch 的梯度加进 fp32 的累积；损失按 micro_batches 平均。"""
        if loss.dtype != torch.float32 or loss.ndim or micro_batches < 1:
            raise ValueError(f"损失须是 fp32 标量、micro_batches 须为正，收到 {loss.dtype}、{tuple(loss.shape)}、{micro_batches}")
        # --8<-- [start:blank-backward]
        # 乘 scale、除 micro_batches 再反向；各参数的 grad 升到 fp32 加进 self.sums，然后清空
        (loss * (self.scale / micro_batches)).backward()
        for p, total in zip(self.params, self.sums, strict=True):
            if p.grad is not None:
                total += p.grad.float()
                p.grad = None
        # --8<-- [end:blank-backward]

    def _over_shards(self, value: Tensor, op: dist.ReduceOp.RedOpType) -> Tensor:
        if self.shards is not None:
            dist.all_reduce(value, op, group=self.shards)
        return value

    @torch.no_grad()
    def step(self) -> bool:
        """用累积的梯度更新一次。溢出则整步跳过（参数、优化器状态不变），返回 False。次序：查溢出 → 还原 → 裁剪 → 更新 → 写回。"""
        # --8<-- [start:blank-overflow]
        # overflow：任何一个 rank 的任何一个梯度不是有限的
        bad = any(not total.isfinite().all() for total in self.sums)
        overflow = bool(self._over_shards(torch.tensor(float(bad)), dist.ReduceOp.MAX) > 0)
        # --8<-- [end:blank-overflow]
        scale = self.scale  # 累积时用的那个；update 会改它
        if self.scaler:
            go = self.scaler.update(overflow)
        elif overflow:
            raise ValueError("梯度里有 inf 或 NaN，又没有损失缩放可调：查数据、学习率与数值范围")
        else:
            go = True
        if go:
            # --8<-- [start:blank-unscale]
            # 还原：先除掉 scale，之后的范数与裁剪才是真实尺度
            for total in self.sums:
                total /= scale
            # --8<-- [end:blank-unscale]
            # --8<-- [start:blank-clip]
            # 全局范数（跨分片）超过 max_norm 就等比例缩小
            square = sum((total.square().sum() for total in self.sums), torch.zeros(()))
            norm = self._over_shards(square, dist.ReduceOp.SUM).sqrt().item()
            if norm > self.max_norm:
                for total in self.sums:
                    total *= self.max_norm / norm
            # --8<-- [end:blank-clip]
            # --8<-- [start:blank-update]
            # 主权重用还原后的梯度更新，再舍入回半精度
            for master, total in zip(self.masters, self.sums, strict=True):
                master.grad = total
            self.optimizer.step()
            for p, master in zip(self.params, self.masters, strict=True):
                p.copy_(master)
                master.grad = None
            # --8<-- [end:blank-update]
        for total in self.sums:
            total.zero_()
        return go

    def state_dict(self) -> dict:
        """续训要的全部：主权重、优化器、缩放器。半精度权重可由主权重舍入得到，不用存。"""
        return {
            "masters": [m.detach().clone() for m in self.masters],
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler else None,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict) -> None:
        """装回 state_dict() 的内容；形状或有无缩放器不符时抛 ValueError。"""
        if [m.shape for m in state["masters"]] != [m.shape for m in self.masters] or (state["scaler"] is None) != (self.scaler is None):
            raise ValueError("检查点与模型不符：主权重的形状或有无缩放器不同")
        for p, master, saved in zip(self.params, self.masters, state["masters"], strict=True):
            master.copy_(saved)
            p.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scaler:
            self.scaler.load_state_dict(state["scaler"])


# --8<-- [end:framework]


# --8<-- [start:bytes]
def checkpoint_gb(psi: float = 8.03e9) -> dict[str, float]:
    """AdamW 的训练状态与检查点（GB，10⁹ 字节）：半精度权重 2、fp32 累积 4、主权重 4、m 4、v 4 字节每参数。

    >>> checkpoint_gb()                                                      # Llama-3-8B
    {'显存里': 144.5, '检查点': 96.4, '只存半精度权重': 16.1}
    """
    if not 0 < psi < float("inf"):
        raise ValueError(f"参数量须为正，收到 {psi}")
    per = {"显存里": 2 + 4 + 4 + 4 + 4, "检查点": 4 + 4 + 4, "只存半精度权重": 2}
    return {name: round(psi * n / 1e9, 1) for name, n in per.items()}


# --8<-- [end:bytes]


# --8<-- [start:shards]
def one_shard_overflows(rank: int, shared: bool) -> tuple[bool, float]:
    """两个 rank 各持一片参数，只有 rank 1 的梯度溢出；返回这个 rank 这一步（更新了吗，之后的 scale）。shared 为假是反例：各查各的。"""
    model = nn.Linear(2, 1, bias=False)
    nn.init.ones_(model.weight)
    group = dist.group.WORLD if shared else None
    trainer = MixedPrecision(model, lambda ps: torch.optim.SGD(ps, lr=0.1), scaler=LossScaler(scale=2.0**4), shards=group)
    x = torch.full((1, 2), 60_000.0 if rank == 1 else 1.0, dtype=torch.float16)  # 60000 × 16 超过 65504
    trainer.backward((x * model.weight).float().sum())
    return trainer.step(), trainer.scale


# --8<-- [end:shards]
