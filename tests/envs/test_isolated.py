"""Isolation: whatever an environment does, its caller gets an answer or a typed fault within the deadline."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from envs.contract import EnvFault, Message, Step
from envs.errors import InputError
from envs.isolated import EnvProcess
from envs.number_search import SPEC, NumberSearchParams
from envs.transcript import play
from tests.envs.faulty import task_that_fails_at

ROOT = Path(__file__).parents[2]
SOUND = task_that_fails_at(None)
# A deadline is the longest that a call may take, so a test that waits for one allows this much more, on a busy machine.
PATIENCE_S = 5.0


@pytest.fixture(scope="module")
def host() -> Iterator[EnvProcess]:
    with EnvProcess(deadline_s=10.0) as process:
        yield process


def pid_of(host: EnvProcess, episode: str) -> int:
    return int(host.step(episode, "nothing").observation.split()[0])


def is_running(pid: int) -> bool:
    try:
        # A zombie runs no longer: it only waits for its parent to read its status.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(*pids: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while any(is_running(pid) for pid in pids):
        assert time.monotonic() < end, f"still running: {[pid for pid in pids if is_running(pid)]}"
        time.sleep(0.01)


def test_an_isolated_episode_equals_one_in_this_process(host):
    params = NumberSearchParams()
    for number, task in enumerate(islice(SPEC.tasks(params, "train", 0), 16)):
        expected = play(SPEC, params, task, SPEC.players["random"](task, number).act)
        assert host.start(number, task) == expected.messages
        assert tuple(host.step(number, action) for action in expected.actions) == expected.steps
        assert host.close(number) == expected.summary


def test_hostile_text_crosses_the_border_unchanged(host):
    task = next(SPEC.tasks(NumberSearchParams(guesses=50), "eval", 0))
    host.start("hostile", task)
    for text in ("\ud800", "\0\n\r\u2028", "guess(8)\n", "{}" * 1000):
        assert not host.step("hostile", text).valid
        assert host.step("hostile", "guess(2)") == Step(observation="lower")
    host.close("hostile")


@pytest.mark.parametrize(
    ("action", "kind", "words"),
    [
        ("raise", "raised", "RuntimeError: out of cheese"),
        ("raise-unshowable", "raised", "UnshowableError: (its text cannot be shown)"),
        ("return-tuple", "garbage", "object of type tuple; expected a Step"),
        ("return-lambda", "garbage", "expected text"),
        ("return-bool", "garbage", "(bool); expected a finite number"),
        ("return-nan", "garbage", "the reward is nan"),
        ("return-huge", "garbage", "a huge int"),
    ],
)
def test_a_fault_of_one_episode_leaves_the_others_alone(host, action, kind, words):
    host.start("culprit", SOUND)
    host.start("other", SOUND)
    pid = pid_of(host, "other")
    with pytest.raises(EnvFault) as caught:
        host.step("culprit", action)
    assert caught.value.kind == kind
    assert words in caught.value.message
    assert pid_of(host, "other") == pid
    assert host.close("other") == {"turns": 2.0}
    assert host.close("culprit") == {}, "a fault closes its episode, and closing again is safe"


@pytest.mark.parametrize("place", ["make", "start", "summary"])
def test_every_call_has_the_same_border(host, place):
    with pytest.raises(EnvFault, match=f"raised: ValueError: refused at {place}"):
        host.start("border", task_that_fails_at(place))
        host.close("border")


def test_messages_are_checked_too(host):
    with pytest.raises(EnvFault, match="garbage: start returned 'hello'"):
        host.start("border", task_that_fails_at("messages"))


@pytest.mark.parametrize(
    ("action", "kind", "deadline_s"),
    [
        ("hang", "timed_out", 1.0),
        ("slow 30", "timed_out", 0.2),
        ("exit", "died", 10.0),
        ("sys-exit", "died", 10.0),
        ("segfault", "died", 10.0),
        ("write-into-the-pipe nonsense", "garbage", 10.0),
        ('write-into-the-pipe {"answer":1,"more":2}', "garbage", 10.0),
        ('write-into-the-pipe {"fault":"mine","message":""}', "garbage", 10.0),
        ("write-into-the-pipe " + "[" * 100_000, "garbage", 10.0),
        ("forge true", "garbage", 10.0),
        ("forge NaN", "garbage", 10.0),
    ],
)
def test_a_fault_of_the_process_replaces_it(host, action, kind, deadline_s):
    host.start("culprit", SOUND)
    host.start("other", SOUND)
    pid = pid_of(host, "other")
    began = time.monotonic()
    with pytest.raises(EnvFault) as caught:
        host.step("culprit", action, deadline_s=deadline_s)
    assert caught.value.kind == kind
    assert time.monotonic() - began < deadline_s + PATIENCE_S
    wait_until_gone(pid)
    with pytest.raises(EnvFault, match=r"lost: its process was replaced because of episode 'culprit'"):
        host.step("other", "nothing")
    assert host.start("next", SOUND) == (Message(role="user", content="Break something."),)
    assert pid_of(host, "next") != pid
    assert host.close("next") == {"turns": 1.0}


def test_slow_is_not_hung(host):
    host.start("slow", SOUND)
    assert host.step("slow", "slow 0.3", deadline_s=10.0).valid
    assert host.close("slow") == {"turns": 1.0}


def test_a_new_process_takes_tens_of_milliseconds(host):
    took_s = []
    for _ in range(5):
        host.start("culprit", SOUND)
        with pytest.raises(EnvFault):
            host.step("culprit", "exit")
        began = time.monotonic()
        host.start("next", next(SPEC.tasks(NumberSearchParams(), "eval", 0)))
        took_s.append(time.monotonic() - began)
        host.close("next")
    assert min(took_s) < 0.1, took_s


def test_what_an_environment_started_dies_with_it(host, tmp_path):
    host.start("parent", SOUND)
    with pytest.raises(EnvFault, match="timed_out"):
        host.step("parent", f"spawn-and-hang {tmp_path}/pids", deadline_s=2.0)
    wait_until_gone(*map(int, (tmp_path / "pids").read_text().split()))


def test_a_killed_warm_process_is_replaced():
    with EnvProcess(deadline_s=10.0) as host:
        host.start("a", SOUND)
        pid = pid_of(host, "a")
        os.kill(host._warm.pid, signal.SIGKILL)
        wait_until_gone(pid)
        with pytest.raises(EnvFault, match="died"):
            host.step("a", "nothing")
        host.start("b", SOUND)
        assert host.close("b") == {"turns": 0.0}


def test_shutdown_ends_both_processes():
    with EnvProcess(deadline_s=10.0) as host:
        host.start("a", SOUND)
        pids = (host._warm.pid, pid_of(host, "a"))
    wait_until_gone(*pids)


def test_threads_share_one_process(host):
    failures: list[str] = []

    def run(number: int) -> None:
        for _ in range(20):
            host.start(number, SOUND)
            turns = [host.step(number, "nothing").observation.split()[1] for _ in range(5)]
            if turns != ["1", "2", "3", "4", "5"] or host.close(number) != {"turns": 5.0}:
                failures.append(f"thread {number}: {turns}")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_wrong_use_is_refused(host):
    with pytest.raises(InputError, match="not live"):
        host.step("never started", "nothing")
    host.start("twice", SOUND)
    with pytest.raises(InputError, match="live already"):
        host.start("twice", SOUND)
    host.close("twice")
    with pytest.raises(InputError, match="seconds > 0"):
        EnvProcess(deadline_s=0)


def test_a_fault_survives_pickling():
    fault = pickle.loads(pickle.dumps(EnvFault(kind="died", message="gone")))
    assert (fault.kind, fault.message, str(fault)) == ("died", "gone", "died: gone")


CALLER = """
import signal, sys
from envs.isolated import EnvProcess
from tests.envs.faulty import task_that_fails_at
host = EnvProcess(deadline_s=600)
host.start(0, task_that_fails_at(None))
print("ready", host.step(0, "nothing").observation.split()[0], host._warm.pid, flush=True)
if sys.argv[1] == "interrupt":
    signal.signal(signal.SIGINT, lambda *_: print("interrupted", host.step(0, "nothing").observation, flush=True))
    signal.pause()
host.step(0, "hang")
"""


@pytest.fixture
def caller(request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    command = [sys.executable, "-c", CALLER, request.param]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        word, *pids = process.stdout.readline().split()
        assert word == "ready"
        yield process, [int(pid) for pid in pids]
        process.kill()


@pytest.mark.parametrize("caller", ["die"], indirect=True)
def test_a_hanging_environment_dies_with_its_killed_caller(caller):
    process, pids = caller
    time.sleep(0.3)
    assert all(is_running(pid) for pid in pids)
    process.kill()
    wait_until_gone(*pids)


@pytest.mark.parametrize("caller", ["interrupt"], indirect=True)
def test_ctrl_c_is_left_to_the_caller(caller):
    process, pids = caller
    time.sleep(0.3)
    for pid in (process.pid, *pids):
        os.kill(pid, signal.SIGINT)
    assert process.stdout.readline().split() == ["interrupted", str(pids[0]), "2"]
