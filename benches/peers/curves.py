#!/usr/bin/env python3
"""Processor time of proxies as work grows: longer bodies, more connections, more servers.

    curves.py --harness DIR --proxy NAME COMMAND [--proxy NAME COMMAND ...] [--seconds 3] [--rounds 3]

DIR has the programs `mock` and `load` of the side-by-side harness. COMMAND starts a proxy in the foreground and finds PORT,
BACKENDS and RUN_DIR in its environment (tidegate.sh beside this file). Each proxy has core 0, the mock servers and the
client share core 1. Every reply is compared by the client. Rounds alternate between the proxies; medians are printed, as a
Markdown table for each curve: microseconds of CPU for a request, and how many times that of the first proxy.
"""

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import tempfile
import time

CURVES = {
    "Length of the body": [(f"{size >> 10} KiB", 4, {"body": size, "conc": 16 if size < 1 << 20 else 4})
                           for size in (1 << 10, 1 << 13, 1 << 16, 1 << 19, 1 << 21, 1 << 23)],
    "Connections": [(f"{count:,}", 4, {"body": 1024, "conc": count}) for count in (1, 16, 256, 2_048, 9_000)],
    "Servers": [(f"{count:,}", count, {"body": 1024, "conc": 64}) for count in (2, 16, 128, 1_024)],
}


def free_ports(count):
    """A run of ports that nobody listens on now."""
    for base in range(20_000, 30_000, count + 50):
        sockets = []
        try:
            for port in range(base, base + count):
                one = socket.socket()
                sockets.append(one)
                one.bind(("127.0.0.1", port))
            return list(range(base, base + count))
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    raise SystemExit("no ports are free")


def start(core, command, **environment):
    return subprocess.Popen(["taskset", "-c", core, *command], env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def stop(process):
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def listens(port, process):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if process.poll() is not None:
            return False
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return True
        time.sleep(0.1)
    return False


def measure(harness, command, servers, arguments, seconds):
    """Microseconds of CPU for a request; None when it does not work, and why."""
    ports = free_ports(servers + 3)
    control, own, backends = ports[0], ports[1], ports[3:]
    mock = start("1", [f"{harness}/mock", "--ports", ",".join(map(str, backends)), "--ctl", str(control)])
    with tempfile.TemporaryDirectory() as folder:
        # Some give up their rights before they write there.
        os.chmod(folder, 0o755)
        proxy = None
        try:
            if not listens(control, mock):
                return None, "the mock does not start"
            proxy = start("0", ["bash", "-c", f"exec {command}"], PORT=str(own), RUN_DIR=folder,
                          BACKENDS=" ".join(f"127.0.0.1:{port}" for port in backends))
            if not listens(own, proxy):
                return None, "it does not start"
            time.sleep(1)
            call = ["taskset", "-c", "1", f"{harness}/load", "--addr", f"127.0.0.1:{own}", "--pids", str(proxy.pid), "--mock-pid",
                    str(mock.pid), "--secs", str(seconds), "--warm", "1.5"]
            for name, value in arguments.items():
                call += [f"--{name}", str(value)]
            result = subprocess.run(call, capture_output=True, text=True, timeout=seconds + 90)
            report = json.loads(result.stdout)
            wrong = report.get("errors") or report.get("altered")
            return report.get("cpu_us_per_req"), f"{wrong} wrong" if wrong else ""
        except (subprocess.TimeoutExpired, ValueError):
            return None, "no result"
        finally:
            if proxy:
                stop(proxy)
            stop(mock)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--harness", required=True)
    parser.add_argument("--proxy", nargs=2, action="append", required=True, metavar=("NAME", "COMMAND"))
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--curve", choices=CURVES, action="append")
    options = parser.parse_args()
    names = [name for name, _ in options.proxy]
    for curve in options.curve or CURVES:
        print(f"| {curve} | {' | '.join(names)} |\n|---|{'--:|' * len(names)}", flush=True)
        for label, servers, arguments in CURVES[curve]:
            found = {name: [] for name in names}
            said = {}
            for turn in range(options.rounds):
                for name, command in options.proxy if turn % 2 == 0 else options.proxy[::-1]:
                    figure, why = measure(options.harness, command, servers, arguments, options.seconds)
                    if figure is not None:
                        found[name].append(figure)
                    if why:
                        said[name] = why
            medians = {name: statistics.median(values) if values else None for name, values in found.items()}
            first = medians[names[0]]
            cells = []
            for name in names:
                figure = medians[name]
                cell = "–" if figure is None else f"{figure:,.0f}"
                if figure is not None and first and name != names[0]:
                    cell += f" ({figure / first:.2f})"
                cells.append(f"{cell} {said.get(name, '')}".strip())
            print(f"| {label} | {' | '.join(cells)} |", flush=True)
        print()


if __name__ == "__main__":
    main()
