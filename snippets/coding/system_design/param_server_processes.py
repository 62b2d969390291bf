"""参数服务器跑在真实的进程上：server 与 worker 各一个进程、管道相连，含崩溃、卡死、重发、检查点（只用标准库）。"""

import json
import math
import multiprocessing
import os
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path

from snippets.coding.system_design.param_server import Fenced, Shard, owner


@dataclass(frozen=True)
class Job:
    """一次训练。staleness：None 同步、s 有界、inf 异步。faults：worker →（"crash"|"hang"|"slow"|"twice"，从第几步起）。

    folder 给定时每 every 轮存一次检查点（只在同步时）；server_dies_at：0 号 server 做完那一轮就崩溃。
    """

    workers: int = 3
    servers: int = 2
    steps: int = 20
    keys: int = 40
    lr: float = 0.1
    staleness: float | None = None
    timeout: float = 30.0
    faults: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    folder: str = ""
    every: int = 5
    server_dies_at: int = 0

    def __post_init__(self) -> None:
        if min(self.workers, self.servers, self.steps, self.keys, self.every) < 1 or not self.timeout > 0:
            raise ValueError(f"worker、server、步数、键数、间隔、超时须为正，收到 {self}")
        if not (math.isfinite(self.lr) and self.lr > 0) or not (self.staleness is None or self.staleness >= 0):
            raise ValueError(f"学习率须为正的有限数，staleness 须非负或为 None，收到 {self.lr}、{self.staleness}")
        for worker, (kind, since) in self.faults.items():
            if kind not in ("crash", "hang", "slow", "twice") or worker not in range(self.workers) or since < 1:
                raise ValueError(f"须是已有的 worker、认识的故障、从第 1 步起，收到 {worker}: {kind, since}")
        if self.folder and self.staleness is not None:
            raise ValueError("按轮存检查点只对同步成立")

    def shard_of(self, key: int) -> int:
        return int(owner(key, [str(i) for i in range(self.servers)]))


# --8<-- [start:model]
def example(job: Job, worker: int, step: int) -> tuple[dict[int, float], float]:
    """worker 第 step 步的样本：8 个特征（键 → 值）与目标；真值是 w_k = sin k。只由 (worker, step) 决定，重启后相同。"""
    rng = random.Random(1000 * worker + step)
    x = {key: rng.uniform(-1, 1) for key in rng.sample(range(job.keys), min(8, job.keys))}
    return x, math.fsum(math.sin(key) * value for key, value in x.items())


def gradient(params: Mapping[int, float], x: Mapping[int, float], y: float) -> dict[int, float]:
    """½(w·x − y)² 的梯度，只有用到的键。"""
    error = math.fsum(params[key] * value for key, value in x.items()) - y
    return {key: error * value for key, value in x.items()}


def single_process(job: Job, alive: Mapping[int, int] | None = None) -> dict[int, float]:
    """参照：一个进程里逐轮求平均、更新。alive：worker → 它最后算数的步（缺省全程）。

    >>> params = single_process(Job(steps=2000))
    >>> max(abs(params[key] - math.sin(key)) for key in params) < 1e-3
    True
    """
    params = dict.fromkeys(range(job.keys), 0.0)
    for step in range(1, job.steps + 1):
        members = [w for w in range(job.workers) if step <= (alive or {}).get(w, job.steps)]
        grads = [gradient(params, *example(job, w, step)) for w in members]
        for key in {key for g in grads for key in g}:
            params[key] -= job.lr * math.fsum(g[key] for g in grads if key in g) / len(members)
    return params


# --8<-- [end:model]


# --8<-- [start:worker]
def work(job: Job, worker: int, first: int, servers: list[connection.Connection]) -> None:
    """拉用到的键 → 算梯度 → 推给每个 server（没有键也推，当时钟）。被剔除或 server 断开就退出。"""
    fault, since = job.faults.get(worker, ("", 0))
    try:
        for step in range(first, job.steps + 1):
            acts = fault if step >= since else ""
            x, y = example(job, worker, step)
            params: dict[int, float] = {}
            for s, server in enumerate(servers):
                server.send(("pull", [key for key in x if job.shard_of(key) == s]))
            for server in servers:
                params |= _reply(server)
            if acts == "crash":
                os._exit(1)
            time.sleep({"hang": 3600, "slow": 0.02}.get(acts, 0))
            grads = gradient(params, x, y)
            for _ in range(2 if acts == "twice" else 1):  # 没等到确认就重发：同一个步号
                for s, server in enumerate(servers):
                    server.send(("push", step, {key: g for key, g in grads.items() if job.shard_of(key) == s}))
                for server in servers:
                    _reply(server)
        for server in servers:
            server.send(("finish",))
    except (Fenced, EOFError, OSError):
        return


def _reply(server: connection.Connection) -> dict[int, float]:
    reply = server.recv()
    if reply is None:
        raise Fenced("已被剔除")
    return reply


# --8<-- [end:worker]


# --8<-- [start:server]
def serve(
    job: Job, index: int, version: int, params: dict[int, float], clients: list[connection.Connection], parent: connection.Connection
) -> None:
    """一个 server 进程：收消息、放行等着的 pull、剔除断开或超时的 worker；所有 worker 离开后把结果交给父进程。"""
    shard = Shard(params, range(job.workers), job.lr, job.staleness, version)
    live = {client: worker for worker, client in enumerate(clients)}
    waiting: dict[connection.Connection, list[int]] = {}
    saved = version
    heard: dict[int, float] = {}  # worker → 上次消息的时刻；没露过面的不算超时

    def step(client: connection.Connection, worker: int) -> None:
        kind, *body = client.recv()
        heard[worker] = time.monotonic()
        if worker not in shard.alive:
            client.send(None)  # 已剔除：拒绝
        elif kind == "pull":
            waiting[client] = body[0]
        elif kind == "push":
            shard.push(worker, *body)
            client.send({})
        else:
            shard.finish(worker)
            del live[client]

    while shard.alive:
        for client in connection.wait(list(live), timeout=0.05):
            try:
                step(client, live[client])
            except (EOFError, OSError):  # 进程没了，管道断开
                shard.evict(live.pop(client))
                waiting.pop(client, None)
        if waiting:  # 有人在等，才去看是谁不来
            busy = {live[client] for client in waiting}
            for worker, last in heard.items():
                if worker in shard.alive - busy and time.monotonic() - last > job.timeout:
                    shard.evict(worker)
        for client, keys in list(waiting.items()):
            values = shard.pull(live[client], keys)
            if values is not None:
                del waiting[client]
                client.send(values)
        if job.folder and shard.version != saved and shard.version % job.every == 0:
            save(job, index, shard)
            saved = shard.version
        if index == 0 and 0 < job.server_dies_at <= shard.version:
            os._exit(1)
    parent.send({name: getattr(shard, name) for name in ("params", "version", "clock", "leads", "delays", "pulled", "pushed", "finished")})


# --8<-- [end:server]


# --8<-- [start:checkpoint]
def save(job: Job, index: int, shard: Shard) -> None:
    """写临时文件再改名：进程崩溃时要么是旧的，要么是新的，没有半个。要防断电，改名前还得 fsync 文件、改名后 fsync 目录。"""
    target = Path(job.folder) / f"{index}-{shard.version}.json"
    part = target.with_suffix(".part")
    part.write_text(json.dumps(sorted(shard.params.items())))
    part.replace(target)


def restore(job: Job) -> tuple[int, list[dict[int, float]]]:
    """所有 server 都存了的最新一轮；没有就从头开始。各分片必须是同一轮，否则是一个从未存在过的模型。

    比它新的文件先删掉：那是崩溃后残留的（别的 server 可能只收到一部分梯度就关了那一轮），不能与重跑的混用。
    """
    versions: list[set[int]] = [set() for _ in range(job.servers)]
    files = [(file, *map(int, file.stem.split("-"))) for file in Path(job.folder).glob("*-*.json")] if job.folder else []
    for _, s, version in files:
        versions[s].add(version)
    latest = max(set.intersection(*versions), default=0)
    shards: list[dict[int, float]] = [{} for _ in range(job.servers)]
    for file, s, version in files:
        if version > latest:
            file.unlink()
        elif version == latest:
            shards[s] = dict(map(tuple, json.loads(file.read_text())))
    if not latest:
        for key in range(job.keys):
            shards[job.shard_of(key)][key] = 0.0
    return latest, shards


# --8<-- [end:checkpoint]


# --8<-- [start:train]
def train(job: Job, deadline: float = 60.0) -> list[dict]:
    """起全部进程，跑完返回每个 server 的结果。server 死了抛 RuntimeError（再调一次就从检查点续）。"""
    context = multiprocessing.get_context("spawn")
    version, shards = restore(job)
    links = [[context.Pipe() for _ in range(job.servers)] for _ in range(job.workers)]
    results = [context.Pipe(duplex=False) for _ in range(job.servers)]
    servers = [
        context.Process(target=serve, args=(job, s, version, shards[s], [links[w][s][0] for w in range(job.workers)], results[s][1]))
        for s in range(job.servers)
    ]
    workers = [context.Process(target=work, args=(job, w, version + 1, [pair[1] for pair in links[w]])) for w in range(job.workers)]
    processes = servers + workers
    try:
        for process in processes:
            process.start()
        for end in [end for row in links for pair in row for end in pair] + [pair[1] for pair in results]:
            end.close()  # 父进程不留副本，对端退出时才看得到断开
        done: dict[int, dict] = {}
        until = time.monotonic() + deadline
        while len(done) < job.servers:
            ready = connection.wait([results[s][0] for s in range(job.servers) if s not in done], timeout=max(0, until - time.monotonic()))
            if not ready:
                raise RuntimeError(f"{deadline} 秒内没有跑完")
            for s in range(job.servers):
                if s not in done and results[s][0] in ready:
                    try:
                        done[s] = results[s][0].recv()
                    except EOFError:
                        raise RuntimeError(f"server {s} 崩溃") from None
        return [done[s] for s in range(job.servers)]
    finally:
        for process in processes:
            if process.pid is not None:
                process.terminate()
                process.join()


# --8<-- [end:train]


def merged(results: list[dict]) -> dict[int, float]:
    """各分片的参数合成一份。"""
    return {key: value for result in results for key, value in result["params"].items()}
