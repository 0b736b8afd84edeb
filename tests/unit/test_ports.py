"""Ports for servers: no two processes get the same while neither has bound it."""

import subprocess
import sys

from fedfa.local import processes
from fedfa.local.processes import free_ports

ASK = """
from fedfa.local import processes
processes.PORTS = range(22_500, 22_508)
print(*processes.free_ports(4))
input()
"""


def test_processes_that_ask_together_get_different_ports() -> None:
    asking = [
        subprocess.Popen(
            [sys.executable, "-c", ASK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        answers = [process.stdout.readline().split() for process in asking if process.stdout]
    finally:
        for process in asking:
            process.communicate("\n")
    assert len({port for answer in answers for port in answer}) == 8


def test_a_process_gets_no_port_twice_in_a_row() -> None:
    ports = free_ports(processes.RESERVED_KEPT // 2) + free_ports(processes.RESERVED_KEPT // 2)
    assert len(set(ports)) == processes.RESERVED_KEPT
