"""Real server and worker processes: exact equality with one process, the bound, crashes, hangs, repeats, checkpoints, traffic."""

import math

import pytest

from snippets.coding.system_design.param_server import Shard
from snippets.coding.system_design.param_server_processes import Job, example, merged, restore, save, single_process, train
from snippets.math.algorithms.parameter_sync import parameter_server


def test_synchronous_is_one_process_bit_for_bit_also_with_repeats():
    job = Job(faults={0: ("slow", 15), 2: ("twice", 1)})
    results = train(job)
    assert merged(results) == single_process(job)
    assert all(result["version"] == job.steps for result in results)
    pulled = sum(result["pulled"] for result in results)
    assert pulled == sum(len(example(job, w, s)[0]) for w in range(job.workers) for s in range(1, job.steps + 1))
    assert sum(result["pushed"] for result in results) == pulled  # sparse, and repeats are not counted


def test_bounded_staleness_is_measured():
    job = Job(staleness=2, faults={0: ("slow", 1)})
    results = train(job)
    for result in results:
        assert max(result["leads"]) == 2
        assert max(result["delays"]) <= (job.workers - 1) * (2 * 2 + 1)
        assert set(result["clock"].values()) == {job.steps}
    assert merged(results) != single_process(job)


def test_asynchronous_runs_ahead():
    results = train(Job(staleness=math.inf, faults={0: ("slow", 1)}))
    assert max(max(result["leads"]) for result in results) > 2


def test_a_crashed_worker_is_left_out_and_training_goes_on():
    job = Job(faults={1: ("crash", 8)})
    results = train(job)
    assert merged(results) == single_process(job, alive={1: 7})
    assert all(result["finished"] == {0, 2} for result in results)


def test_a_hung_worker_is_evicted_after_the_timeout():
    job = Job(workers=2, steps=6, timeout=2.0, faults={1: ("hang", 3)})
    assert merged(train(job)) == single_process(job, alive={1: 2})


def test_a_dead_server_is_restored_from_the_last_common_round(tmp_path):
    job = Job(workers=2, steps=12, folder=str(tmp_path), every=4, server_dies_at=7)
    with pytest.raises(RuntimeError, match="server 0"):
        train(job)
    assert restore(job)[0] == 4
    again = Job(workers=2, steps=12, folder=str(tmp_path), every=4)
    assert merged(train(again)) == single_process(again)


def test_restore_takes_one_round_for_all_and_removes_what_is_newer(tmp_path):
    job = Job(folder=str(tmp_path), servers=2)
    for index, version, value in ((0, 5, 1.0), (1, 5, 2.0), (1, 10, 3.0)):
        save(job, index, Shard({index: value}, [0], 0.1, version=version))
    assert restore(job) == (5, [{0: 1.0}, {1: 2.0}])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0-5.json", "1-5.json"]
    version, shards = restore(Job(servers=3))
    assert version == 0
    assert sorted(key for shard in shards for key in shard) == list(range(40))


def test_dense_traffic_is_q019s_count():
    job = Job(workers=2, servers=1, steps=2, keys=8)  # every example touches all eight keys
    (result,) = train(job)
    _, net = parameter_server([[0.0] * 8] * 2)
    assert result["pushed"] == 2 * net.received[2]
    assert result["pulled"] == 2 * net.sent[2]


def test_rejects():
    bad = [{"workers": 0}, {"timeout": math.nan}, {"folder": "x", "staleness": 1}, {"lr": math.nan}, {"lr": 0}, {"staleness": math.nan}]
    bad += [{"faults": {0: ("boom", 1)}}, {"faults": {9: ("crash", 1)}}, {"faults": {0: ("crash", 0)}}]
    for arguments in bad:
        with pytest.raises(ValueError, match=r"须|只对同步"):
            Job(**arguments)
