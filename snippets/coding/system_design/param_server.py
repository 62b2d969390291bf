"""参数服务器的一个分片：push、pull、同步、有界陈旧、幂等、剔除；以及分片与容量的账。只有逻辑，不含网络（只用标准库）。"""

import hashlib
import math
import random
from collections.abc import Iterable, Mapping, Sequence


class Fenced(RuntimeError):
    """这个 worker 已被剔除：它迟到的请求一律拒绝。"""


# --8<-- [start:shard]
class Shard:
    """一个 server 上的一段参数，键 → 值。staleness=None 是同步（攒齐一轮再更新）；s ≥ 0 是有界陈旧（SSP）；inf 是异步。

    >>> shard = Shard({7: 1.0}, workers=range(2), lr=0.1)
    >>> shard.push(0, 1, {7: 2.0}), shard.pull(0, [7])               # worker 0 推完第 1 轮，要等 worker 1
    (True, None)
    >>> shard.push(1, 1, {7: 4.0}), shard.pull(0, [7])               # 1 − 0.1 × (2 + 4)/2
    (True, {7: 0.7})
    >>> shard.push(1, 1, {7: 4.0}), shard.pull(1, [7])               # 超时重发：认出来，不再加
    (False, {7: 0.7})
    """

    def __init__(
        self, params: Mapping[int, float], workers: Iterable[int], lr: float, staleness: float | None = None, version: int = 0
    ) -> None:
        self.params, self.lr, self.staleness, self.version = dict(params), lr, staleness, version
        self.clock = dict.fromkeys(workers, version)  # 每个 worker 已完成的步数
        self.alive = set(self.clock)
        self.finished: set[int] = set()
        self.rounds: dict[int, dict[int, Mapping[int, float]]] = {}  # 同步：步 → worker → 梯度，还没攒齐的
        if not self.alive or not (math.isfinite(lr) and lr > 0) or version < 0:
            raise ValueError(f"须有 worker，学习率为正的有限数，版本非负，收到 {sorted(self.alive)}、{lr}、{version}")
        if not all(map(math.isfinite, self.params.values())):
            raise ValueError("参数须是有限数")
        if staleness is not None and not staleness >= 0:
            raise ValueError(f"staleness 须非负或为 None，收到 {staleness}")
        self.leads: list[int] = []  # 每次放行 pull 时，比最慢的快几步
        self.delays: list[int] = []  # 每次 push 时，自己 pull 之后别人又推了几次
        self.seen: dict[int, int] = {}
        self.pushes = self.pulled = self.pushed = 0  # 已应用的推送数；出入的元素数

    def pull(self, worker: int, keys: Sequence[int]) -> dict[int, float] | None:
        """当前值；还不许读就返回 None，调用者稍后再问。"""
        self._known(worker)
        if unknown := set(keys) - self.params.keys():
            raise ValueError(f"不在这个分片上的键：{sorted(unknown)}")
        done = self.clock[worker]
        lead = done - min(self.clock[w] for w in self.alive)
        if done > self.version if self.staleness is None else lead > self.staleness:
            return None
        self.leads.append(lead)
        self.seen[worker] = self.pushes
        self.pulled += len(keys)
        return {key: self.params[key] for key in keys}

    def push(self, worker: int, step: int, grads: Mapping[int, float]) -> bool:
        """第 step 步的梯度。重复的返回 False（幂等）；跳步抛 ValueError。没有键也要推：它同时是时钟。"""
        self._known(worker)
        if step < 1:
            raise ValueError(f"步号须从 1 起，收到 {step}")
        if step <= self.clock[worker]:
            return False
        if step != self.clock[worker] + 1:
            raise ValueError(f"worker {worker} 应推第 {self.clock[worker] + 1} 步，收到第 {step} 步")
        if unknown := grads.keys() - self.params.keys():
            raise ValueError(f"不在这个分片上的键：{sorted(unknown)}")
        if not all(math.isfinite(g * max(1.0, self.lr) * len(self.clock)) for g in grads.values()):
            raise ValueError(f"worker {worker} 第 {step} 步的梯度有 NaN、inf，或大到求和会溢出")
        self.clock[worker] = step
        self.pushed += len(grads)
        self.delays.append(self.pushes - self.seen.get(worker, 0))
        if self.staleness is None:
            self.rounds.setdefault(step, {})[worker] = grads
            self._close_rounds()
        else:
            self._apply([grads], len(self.alive | self.finished))  # 没被剔除的个数
        return True

    def finish(self, worker: int) -> None:
        """正常结束：不再等它，它推过的都算数。"""
        self._known(worker)
        self.alive.discard(worker)
        self.finished.add(worker)
        self._close_rounds()

    def evict(self, worker: int) -> None:
        """断开或超时：不再等它，未攒齐的轮里丢掉它的梯度；它以后的请求抛 Fenced。"""
        if worker not in self.alive:
            return  # 已正常结束的，推过的仍算数
        self.alive.discard(worker)
        for grads in self.rounds.values():
            grads.pop(worker, None)
        self._close_rounds()

    def _known(self, worker: int) -> None:
        if worker not in self.alive:
            raise Fenced(f"worker {worker} 不在组里")

    def _close_rounds(self) -> None:
        while (arrived := self.rounds.get(self.version + 1)) and self.alive <= arrived.keys():
            self._apply([arrived[w] for w in sorted(arrived)], len(arrived))
            del self.rounds[self.version + 1]
            self.version += 1

    def _apply(self, batch: Sequence[Mapping[int, float]], count: int) -> None:
        """params −= lr × Σ grads ÷ count；fsum 的结果与到达次序无关。"""
        for key in {key: None for grads in batch for key in grads}:
            self.params[key] -= self.lr * math.fsum(grads[key] for grads in batch if key in grads) / count
        self.pushes += len(batch)


# --8<-- [end:shard]


# --8<-- [start:route]
def owner(key: int, servers: Sequence[str]) -> str:
    """最高随机权重（rendezvous）散列：每个 server 给键打一个分，取最高的。增减一个 server 只动它自己的键。

    >>> before, after = [f"ps{i}" for i in range(10)], [f"ps{i}" for i in range(11)]
    >>> sum(owner(k, before) != owner(k, after) for k in range(10_000)) / 10_000       # 理想是 1/11 = 0.091
    0.0946
    >>> sum(k % 10 != k % 11 for k in range(10_000)) / 10_000                          # 取模：几乎全搬
    0.909
    """
    if not servers:
        raise ValueError("至少要有一个 server")
    return max(servers, key=lambda name: hashlib.blake2b(f"{name}/{key}".encode(), digest_size=8).digest())


# --8<-- [end:route]


# --8<-- [start:numbers]
def embedding_budget(
    rows: float = 1e9,
    dim: int = 64,
    servers: int = 16,
    samples: int = 4096,
    features: int = 100,
    workers: int = 32,
    bandwidth: float = 12.5e9,
) -> list[str]:
    """推荐的嵌入表：10 亿行 × 64 维，fp32 权重加 Adagrad 状态；每个 worker 每步 4096 个样本、每个 100 个特征。

    不去重、每元素 4 字节；server 网卡单向 12.5 GB/s（100 Gb/s）。

    >>> print(*embedding_budget(), sep="\\n")
    表与状态 512 GB，16 个 server 每个 32 GB
    每 worker 每步 pull 0.105 GB、push 0.105 GB，是整张表的 0.04%
    32 个 worker：每个 server 每步收 0.210 GB，16.8 ms
    若当稠密梯度做环形 all-reduce：每卡每步发 496 GB
    """
    if not all(1 <= x < math.inf for x in (rows, dim, servers, samples, features, workers)) or not 0 < bandwidth < math.inf:
        raise ValueError("各项须为正的有限数")
    table, touched = rows * dim * 4 / 1e9, samples * features * dim * 4 / 1e9
    received = touched * workers / servers
    return [
        f"表与状态 {2 * table:.0f} GB，{servers} 个 server 每个 {2 * table / servers:.0f} GB",
        f"每 worker 每步 pull {touched:.3f} GB、push {touched:.3f} GB，是整张表的 {touched / table:.2%}",
        f"{workers} 个 worker：每个 server 每步收 {received:.3f} GB，{received * 1e12 / bandwidth:.1f} ms",
        f"若当稠密梯度做环形 all-reduce：每卡每步发 {2 * (workers - 1) / workers * table:.0f} GB",
    ]


# --8<-- [end:numbers]


# --8<-- [start:speed]
def seconds_per_step(staleness: float, workers: int = 32, steps: int = 400, jitter: float = 0.5, slow: float = 1.0) -> float:
    """每步平均秒数：计算 1 秒加均值 jitter 的指数抖动；worker 0 慢 slow 倍。第 k 步要等所有人做完第 k − 1 − s 步。

    >>> [round(seconds_per_step(s), 2) for s in (0, 1, 4, 16, math.inf)]               # 随机抖动：SSP 有用
    [3.05, 1.91, 1.6, 1.55, 1.55]
    >>> [round(seconds_per_step(s, slow=2), 2) for s in (0, 1, 4, 16)]                 # 有一台一直慢：没用
    [3.47, 3.03, 3.03, 3.03]
    """
    if not staleness >= 0 or min(workers, steps) < 1 or not 0 <= jitter < math.inf or not 1 <= slow < math.inf:
        raise ValueError(
            f"须 staleness、jitter ≥ 0，workers、steps ≥ 1，slow ≥ 1，后两个有限，收到 {staleness, workers, steps, jitter, slow}"
        )
    rng, ends, done = random.Random(0), [0.0] * workers, [0.0]  # done[k]：所有人做完第 k 步的时刻
    for k in range(1, steps + 1):
        gate = done[max(0, k - 1 - int(min(staleness, k)))]
        ends = [
            max(end, gate) + (1 + (rng.expovariate(1 / jitter) if jitter else 0)) * (slow if w == 0 else 1) for w, end in enumerate(ends)
        ]
        done.append(max(done[-1], *ends))
    return done[-1] / steps


# --8<-- [end:speed]
