"""The benchmark of rollout workers tells whose CPU time an episode takes, and whose memory."""

import subprocess
import sys

from benchmarks.training import workers

BUSY = "import time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\ninput()"


def test_programs_of_all_threads_of_a_worker_are_counted():
    """An environment may start its program in a thread of its own."""
    command = f"""
import subprocess, sys, threading, time
def start():
    while time.process_time() < 0.05:  # the system counts in steps of 0.01 s
        pass
    child = subprocess.Popen([sys.executable, "-c", {BUSY!r}], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child.stdout.readline()
    print("ready", flush=True)
    input()
    child.communicate("\\n")
threading.Thread(target=start).start()
"""
    with subprocess.Popen([sys.executable, "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()
        (program,) = workers.list_programs(worker.pid)
        assert program != worker.pid
        spent = workers.read_spent_s([worker.pid])
        assert spent["the environments' programs"] >= 0.25
        assert spent["the workers"] > 0
        assert workers.read_spent_s([])["the environments' programs"] == 0
        memory = workers.read_memory_mb([worker.pid])
        assert 1 < memory["its environments' programs"] < 100
        assert 1 < memory["a worker"] < 100
        worker.communicate(b"\n")
