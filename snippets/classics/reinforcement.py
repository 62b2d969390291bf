"""一个 4×4 网格世界：价值迭代、Q-learning、策略梯度求的是同一个最优解（只用标准库）。"""

import math
from random import Random

SIZE, GOAL, STEP_REWARD, GAMMA = 4, 15, -1.0, 0.9
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))  # 上下左右


# --8<-- [start:world]
def step(state: int, action: int) -> tuple[int, float]:
    """走一步：返回 (新状态, 奖励)。撞墙不动，每步 −1，到右下角（15）结束。"""
    if any(not isinstance(v, int) or isinstance(v, bool) for v in (state, action)) or not (0 <= state < SIZE * SIZE and 0 <= action < 4):
        raise ValueError(f"没有这个状态或动作：{state}、{action}")
    if state == GOAL:
        return state, 0.0
    row, col = state // SIZE + MOVES[action][0], state % SIZE + MOVES[action][1]
    inside = 0 <= row < SIZE and 0 <= col < SIZE
    return (row * SIZE + col if inside else state), STEP_REWARD


# --8<-- [end:world]


# --8<-- [start:planning]
def value_iteration(sweeps: int = 100) -> list[float]:
    """知道环境：反复用 V(s) ← max_a [r + γ V(s')]（Bellman 最优方程），直到不动点。

    >>> [round(v, 3) for v in value_iteration()[:4]], round(value_iteration()[14], 3)
    ([-4.686, -4.095, -3.439, -2.71], -1.0)
    """
    if sweeps < 0:
        raise ValueError(f"sweeps 不能为负，收到 {sweeps}")
    values = [0.0] * (SIZE * SIZE)
    for _ in range(sweeps):
        values = [max(r + GAMMA * values[s2] for s2, r in (step(s, a) for a in range(4))) for s in range(SIZE * SIZE)]
    return values


# --8<-- [end:planning]


# --8<-- [start:learning]
def q_learning(episodes: int = 2000, *, lr: float = 0.5, explore: float = 0.2, seed: int = 0) -> list[list[float]]:
    """不知道环境，只靠试：Q(s,a) ← Q + α [r + γ max_a' Q(s',a') − Q]。ε-贪心探索，离策略。

    >>> q = q_learning()
    >>> max(abs(max(row) - v) for row, v in zip(q, value_iteration())) < 1e-6      # 与价值迭代一致
    True
    """
    if not (0 < lr <= 1 and 0 <= explore <= 1 and episodes >= 0):
        raise ValueError(f"须 0 < lr ≤ 1、0 ≤ explore ≤ 1、episodes ≥ 0，收到 {lr}、{explore}、{episodes}")
    random = Random(seed)
    q = [[0.0] * 4 for _ in range(SIZE * SIZE)]
    for _ in range(episodes):
        state = random.randrange(GOAL)
        for _ in range(50):
            greedy = max(range(4), key=lambda a: q[state][a])
            action = random.randrange(4) if random.random() < explore else greedy
            after, reward = step(state, action)
            q[state][action] += lr * (reward + GAMMA * max(q[after]) - q[state][action])
            state = after
            if state == GOAL:
                break
    return q


# --8<-- [end:learning]


# --8<-- [start:policy]
def policy_gradient_variance(baseline: float, samples: int = 20_000, seed: int = 0) -> tuple[float, float]:
    """三臂老虎机、均匀策略、奖励 (10, 11, 12)：REINFORCE 对第三个 logit 的梯度估计的（均值, 标准差）。

    单个样本的估计是 (r − b)·(1[a = 3] − 1/3)。基线 b 不改变均值（真值 1/3），只改变方差。

    >>> [tuple(round(v, 2) for v in policy_gradient_variance(b)) for b in (0.0, 11.0)]
    [(0.34, 5.43), (0.33, 0.27)]
    """
    if not math.isfinite(baseline) or samples < 1:
        raise ValueError(f"baseline 须有限、samples 须为正，收到 {baseline}、{samples}")
    random = Random(seed)
    draws = [random.randrange(3) for _ in range(samples)]
    estimates = [((10 + a) - baseline) * ((a == 2) - 1 / 3) for a in draws]
    mean = math.fsum(estimates) / samples
    return mean, math.sqrt(math.fsum((e - mean) ** 2 for e in estimates) / samples)


# --8<-- [end:policy]
