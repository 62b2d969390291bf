"""模型并行下的梯度同步：PP × DP × TP（可选序列并行）× EP，在真实进程上与一个进程逐个梯度比（PyTorch，gloo）。

模型：词嵌入（与输出头共享）→ 稠密 MLP 与 MoE 交替的 L 层 → RMSNorm → logits。没有注意力：它的切法与 MLP 相同。
"""

import functools
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from snippets.infra.memory.tensor_parallel import Copy, GatherSequence, Reduce, ScatterSequence, gather_sequence

IGNORE = -100


@dataclass(frozen=True)
class Plan:
    """p 段流水线 × d 路数据并行 × t 路张量并行；d 个副本里每 e 个分一套专家（EP）。b 是全局 batch（序列数）。"""

    p: int = 1
    d: int = 1
    t: int = 1
    e: int = 1
    sequence_parallel: bool = False
    micro: int = 2
    layers: int = 4
    h: int = 8
    f: int = 12
    vocab: int = 16
    experts: int = 4
    b: int = 8
    s: int = 4
    bucket: int = 300  # 一桶最多几个元素
    clip: float = 0.1
    lr: float = 0.5

    def __post_init__(self) -> None:
        sizes = (
            self.p,
            self.d,
            self.t,
            self.e,
            self.micro,
            self.layers,
            self.h,
            self.f,
            self.vocab,
            self.experts,
            self.b,
            self.s,
            self.bucket,
        )
        if any(type(size) is not int or size < 1 for size in sizes) or not (self.clip > 0 and self.lr > 0):
            raise ValueError(f"各项须为正整数，clip、lr 须为正，收到 {self}")
        for total, parts in ((self.d, self.e), (self.layers, self.p), (self.f, self.t), (self.experts, self.e)):
            if total % parts:
                raise ValueError(f"{total} 不能被 {parts} 整除：{self}")
        if self.b % (self.d * self.micro) or (self.sequence_parallel and self.s % self.t):
            raise ValueError(f"batch 或序列分不匀：{self}")


# --8<-- [start:rule]
KIND = {"up": "column", "down": "row", "experts_in": "expert", "experts_out": "expert"}  # 其余在 TP 组内复制


def kind(name: str) -> str:
    return KIND.get(name.split(".")[-1], "replicated")


def groups_to_sum(name: str, sequence_parallel: bool) -> tuple[str, ...]:
    """参数 name 的梯度要在哪些组里**相加**。原则：这个组里各 rank 的梯度是不是同一个和的不同部分。

    >>> for name in ("0.up", "0.norm", "0.bias", "1.router", "1.experts_in", "embed"):
    ...     print(f"{name:13}", *groups_to_sum(name, False), "| 序列并行:", *groups_to_sum(name, True))
    0.up          dp | 序列并行: dp
    0.norm        dp | 序列并行: dp tp
    0.bias        dp | 序列并行: dp tp
    1.router      dp | 序列并行: dp tp
    1.experts_in  edp | 序列并行: edp tp
    embed         dp embed | 序列并行: dp tp embed
    """
    groups = ["edp" if kind(name) == "expert" else "dp"]  # 专家：EP 组内的 token 已经由 all-to-all 送来，只差别的副本
    if sequence_parallel and kind(name) in ("replicated", "expert"):
        groups.append("tp")  # 只见过 s/t 个位置
    if name == "embed":
        groups.append("embed")  # 首段查表、末段输出头，各有一份
    return tuple(groups)


# --8<-- [end:rule]


# --8<-- [start:groups]
def rank_lists(p: int, d: int, t: int, e: int) -> dict[str, list[list[int]]]:
    """每种组由哪些 rank 组成；TP 最内（相邻 rank，同一台机器），PP 最外。

    >>> lists = rank_lists(p=2, d=4, t=2, e=2)
    >>> for name in lists: print(f"{name:5}", lists[name][:3])
    tp    [[0, 1], [2, 3], [4, 5]]
    dp    [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14]]
    ep    [[0, 2], [1, 3], [4, 6]]
    edp   [[0, 4], [1, 5], [2, 6]]
    pp    [[0, 8], [1, 9], [2, 10]]
    embed [[0, 8], [1, 9], [2, 10]]
    """
    if min(p, d, t, e) < 1 or d % e:
        raise ValueError(f"并行度须为正且 d 被 e 整除，收到 {p, d, t, e}")
    ranks = torch.arange(p * d * t).view(p, d // e, e, t)
    pp = ranks.permute(1, 2, 3, 0).reshape(-1, p)
    lists = {
        "tp": ranks.reshape(-1, t),
        "dp": ranks.permute(0, 3, 1, 2).reshape(-1, d),
        "ep": ranks.permute(0, 1, 3, 2).reshape(-1, e),
        "edp": ranks.permute(0, 2, 3, 1).reshape(-1, d // e),
        "pp": pp,
        "embed": pp[:, [0, -1]] if p > 1 else pp,
    }
    return {name: table.tolist() for name, table in lists.items()}


@functools.cache
def make_groups(p: int, d: int, t: int, e: int) -> dict[str, dist.ProcessGroup]:
    """本 rank 所在的每种组。建组是全体参加的集合操作、要几毫秒到几秒，所以一个进程里每种布局只建一次。"""
    return {name: dist.new_subgroups_by_enumeration(table)[0] for name, table in rank_lists(p, d, t, e).items()}


# --8<-- [end:groups]


def full_parameters(plan: Plan) -> dict[str, Tensor]:
    """没有切分的参数，float64，随机但固定。"""
    g = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)  # noqa: E731
    out = {"embed": draw(plan.vocab, plan.h) / 2}
    for i in range(plan.layers):
        out[f"{i}.norm"] = 1 + draw(plan.h) / 4
        if i % 2 == 0:
            out |= {f"{i}.up": draw(plan.f, plan.h) / 3, f"{i}.down": draw(plan.h, plan.f) / 3, f"{i}.bias": draw(plan.h) / 4}
        else:
            out[f"{i}.router"] = draw(plan.experts, plan.h)
            out[f"{i}.experts_in"] = draw(plan.experts, plan.f, plan.h) / 3
            out[f"{i}.experts_out"] = draw(plan.experts, plan.h, plan.f) / 3
    return out | {"norm": 1 + draw(plan.h) / 4}


def batch(plan: Plan, step: int) -> tuple[Tensor, Tensor]:
    """全局 batch 的输入与目标 (b, s)；越靠后的序列，算损失的位置越少，所以各副本的有效 token 数不等。"""
    g = torch.Generator().manual_seed(100 + step)
    x, y = (torch.randint(plan.vocab, (plan.b, plan.s), generator=g) for _ in range(2))
    keep = plan.s - torch.arange(plan.b) * (plan.s - 1) // plan.b
    return x, y.where(torch.arange(plan.s) < keep[:, None], IGNORE)


def local_piece(name: str, full: Tensor, plan: Plan, tp: int, ep: int) -> Tensor:
    """完整张量里归 (tp, ep) 的那一片：列切与行切按 TP，专家按 EP，其余复制。"""
    parts, dim, index = {"column": (plan.t, 0, tp), "row": (plan.t, 1, tp), "expert": (plan.e, 0, ep)}.get(kind(name), (1, 0, 0))
    return full.chunk(parts, dim=dim)[index].clone()


def rms_norm(x: Tensor, gain: Tensor) -> Tensor:
    return x * gain / x.square().mean(-1, keepdim=True).add(1e-6).sqrt()


# --8<-- [start:buckets]
class Buckets:
    """反向时分桶 all-reduce：一桶的梯度齐了就异步发出，与剩下的反向重叠。按参数倒序装桶，近似就绪的次序。"""

    def __init__(self, parameters: list[Tensor], group: dist.ProcessGroup, numel: int):
        self.group, self.buckets = group, []
        for p in reversed(parameters):
            if not self.buckets or sum(q.numel() for q in self.buckets[-1]) + p.numel() > numel:
                self.buckets.append([])
            self.buckets[-1].append(p)
        self.home = {p: k for k, bucket in enumerate(self.buckets) for p in bucket}
        self.armed, self.early = False, 0
        for p in parameters:
            p.register_post_accumulate_grad_hook(self._ready)

    def arm(self) -> None:
        """最后一个 micro-batch 的反向之前调用；之前的只累加，不通信。"""
        self.armed, self.works, self.missing = True, [], [len(bucket) for bucket in self.buckets]

    def _ready(self, p: Tensor) -> None:
        if self.armed:
            self.missing[self.home[p]] -= 1
            while len(self.works) < len(self.buckets) and self.missing[len(self.works)] == 0:
                self._send()  # 只按桶的次序发：所有 rank 的集合通信才对得上

    def _send(self) -> None:
        bucket = self.buckets[len(self.works)]
        flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in bucket])
        self.works.append((bucket, flat, dist.all_reduce(flat, group=self.group, async_op=True)))

    def finish(self) -> None:
        """没用到的参数不会触发钩子：剩下的桶在这里补发（按零），否则别的 rank 会一直等。"""
        self.early, self.armed = len(self.works), False
        while len(self.works) < len(self.buckets):
            self._send()
        for bucket, flat, work in self.works:
            work.wait()
            for p, grad in zip(bucket, flat.split([p.numel() for p in bucket]), strict=True):
                p.grad = grad.view_as(p)


# --8<-- [end:buckets]


class Engine:
    def __init__(self, plan: Plan):
        if dist.get_world_size() != plan.p * plan.d * plan.t:
            raise ValueError(f"进程数 {dist.get_world_size()} 不等于 p·d·t = {plan.p * plan.d * plan.t}")
        self.plan = plan
        self.groups = make_groups(plan.p, plan.d, plan.t, plan.e)
        self.at = {name: self.groups[name].rank() for name in ("tp", "dp", "ep", "pp")}
        self.stage, self.first, self.last = self.at["pp"], self.at["pp"] == 0, self.at["pp"] == plan.p - 1
        per_stage = plan.layers // plan.p
        self.layers = range(self.stage * per_stage, (self.stage + 1) * per_stage)
        self.w = {}
        for name, full in full_parameters(plan).items():
            mine = {"embed": self.first or self.last, "norm": self.last}.get(name)
            if mine if mine is not None else int(name.split(".")[0]) in self.layers:
                self.w[name] = torch.nn.Parameter(local_piece(name, full, plan, self.at["tp"], self.at["ep"]))
        self.buckets = [
            Buckets([w for name, w in self.w.items() if (kind(name) == "expert") == expert], self.groups[group], plan.bucket)
            for expert, group in ((False, "dp"), (True, "edp"))
        ]

    # --8<-- [start:layers]
    def mlp(self, x: Tensor, i: int) -> Tensor:
        """列切、行切，一对 f 与 g；bias 在 g 之后加，只加一次。"""
        f, g = (GatherSequence, ScatterSequence) if self.plan.sequence_parallel else (Copy, Reduce)
        w, tp = self.w, self.groups["tp"]
        n = f.apply(rms_norm(x, w[f"{i}.norm"]), tp)
        return x + g.apply((n @ w[f"{i}.up"].T).relu() @ w[f"{i}.down"].T, tp) + w[f"{i}.bias"]

    def moe(self, x: Tensor, i: int) -> Tensor:
        """top-1 路由。EP 组内 all-gather token、各算自己的专家、reduce-scatter 送回：与 all-to-all 同义，量更大但好懂。"""
        w, ep = self.w, self.groups["ep"]
        n = rms_norm(x, w[f"{i}.norm"])
        probability, choice = (n @ w[f"{i}.router"].T).softmax(-1).max(-1, keepdim=True)
        tokens, choice = GatherSequence.apply(n, ep), gather_sequence(choice, ep)  # (b, e·s, h)
        out = torch.zeros_like(tokens)
        for k, (w_in, w_out) in enumerate(zip(w[f"{i}.experts_in"], w[f"{i}.experts_out"], strict=True)):
            mine = choice == self.at["ep"] * len(w[f"{i}.experts_in"]) + k
            out = out + mine * ((tokens @ w_in.T).relu() @ w_out.T)
        return x + probability * ScatterSequence.apply(out, ep)

    # --8<-- [end:layers]

    def forward(self, x: Tensor, tokens: Tensor, targets: Tensor, total: Tensor) -> Tensor:
        """本段的前向：首段查表，末段返回损失之和 ÷ 全局有效 token 数。"""
        if self.plan.sequence_parallel:
            tokens, targets = (z.chunk(self.plan.t, dim=1)[self.at["tp"]] for z in (tokens, targets))
        if self.first:
            x = F.embedding(tokens, self.w["embed"])
        for i in self.layers:
            x = self.moe(x, i) if i % 2 else self.mlp(x, i)
        if self.last:
            logits = rms_norm(x, self.w["norm"]) @ self.w["embed"].T
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum") / total
        return x

    def neighbour(self, step: int) -> int:
        return dist.get_global_rank(self.groups["pp"], self.stage + step)

    # --8<-- [start:step]
    def gradients(self, x: Tensor, y: Tensor) -> Tensor:
        """x、y 是本副本的 (b/d, s)。先全部前向再全部反向（GPipe）；返回本 rank 那份损失。之后 .grad 就是全局梯度。"""
        plan, saved = self.plan, []
        total = (y != IGNORE).sum()
        dist.all_reduce(total, group=self.groups["dp"])  # 分母是全局的有效 token 数，所以后面求和、不求平均
        for xs, ys in zip(x.chunk(plan.micro), y.chunk(plan.micro), strict=True):
            received = None
            if not self.first:
                s = plan.s // plan.t if plan.sequence_parallel else plan.s
                received = torch.empty(len(xs), s, plan.h, dtype=torch.float64)
                dist.recv(received, self.neighbour(-1))
                received.requires_grad_()
            out = self.forward(received, xs, ys, total)
            if not self.last:
                dist.send(out.detach().contiguous(), self.neighbour(+1))
            saved.append((received, out))
        for k, (received, out) in enumerate(saved):
            if k == plan.micro - 1:
                for buckets in self.buckets:
                    buckets.arm()
            grad = None
            if not self.last:
                grad = torch.empty_like(out)
                dist.recv(grad, self.neighbour(+1))
            out.backward(grad)
            if not self.first:
                dist.send(received.grad, self.neighbour(-1))
        self.synchronize()
        return sum(out.detach() for _, out in saved) if self.last else torch.zeros((), dtype=torch.float64)

    def synchronize(self) -> None:
        for buckets in self.buckets:
            buckets.finish()  # 一、DP（专家用 EDP），大头，已与反向重叠
        for name, p in self.w.items():  # 二、TP 与首末段，量小；生产里拼成一条发
            for group in groups_to_sum(name, self.plan.sequence_parallel)[1:]:
                dist.all_reduce(p.grad, group=self.groups[group])

    def counted(self, name: str) -> bool:
        """全局范数里每个参数只算一次：复制的由组内 0 号算，共享的词嵌入由首段算。"""
        if name == "embed" and not self.first:
            return False
        once = {"column": ("ep",), "row": ("ep",), "expert": ("tp",)}.get(kind(name), ("tp", "ep"))
        return all(self.at[group] == 0 for group in once)

    def global_norm(self) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for name, p in self.w.items():
            if self.counted(name):
                total += p.grad.square().sum()
        for group in ("tp", "ep", "pp"):
            dist.all_reduce(total, group=self.groups[group])
        return total.sqrt()

    def update(self) -> Tensor:
        """按全局范数裁剪，SGD。范数是 NaN 或 inf 时所有 rank 一起跳过（人人看到同一个数）。"""
        norm = self.global_norm()
        with torch.no_grad():
            for p in self.w.values():
                if norm.isfinite():
                    p -= self.plan.lr * min(1.0, self.plan.clip / (norm.item() + 1e-6)) * p.grad
                p.grad = None
        return norm

    # --8<-- [end:step]


def train(rank: int, plan: Plan, steps: int = 2) -> dict:
    """训练 steps 步；返回损失、范数、最后一步的梯度（裁剪前）与参数，都只有本 rank 那一片，外加坐标与提前发出的桶数。"""
    engine, losses, norms, grads = Engine(plan), [], [], {}
    for step in range(steps):
        x, y = (z.chunk(plan.d)[engine.at["dp"]] for z in batch(plan, step))
        loss = engine.gradients(x, y)
        for group in ("dp", "pp", *(["tp"] if plan.sequence_parallel else [])):
            dist.all_reduce(loss, group=engine.groups[group])
        grads = {name: p.grad.clone() for name, p in engine.w.items()}
        losses.append(loss.item())
        norms.append(engine.update().item())
    out = {"losses": losses, "norms": norms, "grads": grads, "at": engine.at, "early": [b.early for b in engine.buckets]}
    return out | {"parameters": {name: p.detach().clone() for name, p in engine.w.items()}}


# --8<-- [start:numbers]
def traffic_per_step(
    layers: int = 96,
    h: int = 12288,
    vocab: int = 51200,
    s: int = 2048,
    p: int = 16,
    d: int = 8,
    t: int = 8,
    micro: int = 192,
    grad_bytes: int = 4,
) -> list[str]:
    """GPT-3 175B（词表补齐到 51200），p·d·t = 1024 张卡，micro-batch 1 条序列；每卡每步发出，环形，GB = 10⁹ 字节。

    梯度 fp32，激活 bf16；每层 12h² 个切开的权重、6h 个复制的（两个 LayerNorm 的增益与偏置、两个行切的偏置）。

    >>> print(*traffic_per_step(), sep="\\n")
    DP：1.36e+09 个梯度，9.5 GB，单向 50 GB/s 要 190 ms
    TP（序列并行时的归一化与偏置）：4.4e+05 个，3.1 MB
    首末段（共享的词嵌入）：7.9e+07 个，315 MB
    范数：一个标量
    对比，TP 的激活（f 与 g）：192 个 micro-batch 共 406 GB
    对比，计算（989 TFLOP/s 的 40%）：一个 micro-batch 的反向 28 ms，一步连 bubble 8.7 s
    """
    if min(layers, h, vocab, s, p, d, t, micro, grad_bytes) < 1 or layers % p:
        raise ValueError("各项须为正整数，层数须能被 p 整除")
    own = layers // p
    dense, small, table = own * 12 * h * h // t, own * 6 * h, vocab * h // t
    ring = lambda n: 2 * (n - 1) / n  # noqa: E731
    activations = own * micro * 4 * ring(t) * s * h * 2  # 每层 4 次 all-reduce：前向两次 g，反向两次 f
    backward = 4 * dense * s / (989e12 * 0.4)  # 前向是它的一半
    sent = dense * grad_bytes * ring(d)
    whole = (micro + p - 1) * 1.5 * backward
    return [
        f"DP：{dense:.2e} 个梯度，{sent / 1e9:.1f} GB，单向 50 GB/s 要 {sent / 50e9 * 1e3:.0f} ms",
        f"TP（序列并行时的归一化与偏置）：{small:.1e} 个，{small * grad_bytes * ring(t) / 1e6:.1f} MB",
        f"首末段（共享的词嵌入）：{table:.1e} 个，{table * grad_bytes * ring(2) / 1e6:.0f} MB",
        "范数：一个标量",
        f"对比，TP 的激活（f 与 g）：{micro} 个 micro-batch 共 {activations / 1e9:.0f} GB",
        f"对比，计算（989 TFLOP/s 的 40%）：一个 micro-batch 的反向 {backward * 1e3:.0f} ms，一步连 bubble {whole:.1f} s",
    ]


# --8<-- [end:numbers]


# --8<-- [start:overlap]
def exposed_seconds(
    bucket_bytes: float,
    total_bytes: float = 2 * 8.03e9,
    backward: float = 4 * 8.03e9 * 8192 / (989e12 * 0.4),
    d: int = 8,
    bandwidth: float = 50e9,
    latency: float = 10e-6,
) -> float:
    """反向结束后还要等多少秒梯度才齐。梯度匀速产出，攒满一桶就排队发；一桶 2(d−1)·latency + 2(d−1)/d·桶 ÷ 带宽。

    缺省：Llama-3-8B 的 bf16 梯度，每卡 8192 个 token，H100 稠密峰值的 40%（反向 0.67 秒），单向 50 GB/s，每跳 10 µs（假设）。

    >>> for size in (1e6, 25e6, 100e6, 1e9, 16.06e9):
    ...     print(f"桶 {size / 1e6:5.0f} MB：多等 {exposed_seconds(size) * 1e3:4.0f} ms")
    桶     1 MB：多等 2145 ms
    桶    25 MB：多等    1 ms
    桶   100 MB：多等    3 ms
    桶  1000 MB：多等   35 ms
    桶 16060 MB：多等  562 ms
    """
    values = (bucket_bytes, total_bytes, backward, d, bandwidth, latency)
    if not all(0 <= value < float("inf") for value in values) or min(bucket_bytes, total_bytes, bandwidth) <= 0 or d < 1:
        raise ValueError(f"桶、总量、带宽须为正，其余非负有限，收到 {values}")
    done, sent = 0.0, 0.0
    while sent < total_bytes * (1 - 1e-12):
        size = min(bucket_bytes, total_bytes - sent)
        sent += size
        done = max(done, backward * sent / total_bytes) + 2 * (d - 1) * latency + 2 * (d - 1) / d * size / bandwidth
    return done - backward


# --8<-- [end:overlap]
