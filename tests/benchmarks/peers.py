"""Every workload beside what one would use instead: python -m tests.benchmarks.peers [--rounds 7] [--markdown] [--json PATH]

    pip install -e ".[bench]"        peers that are missing are named, and left out
    python -m tests.benchmarks.peers --only tree-2 cube        all of it takes some ten minutes

Every case runs in a process of its own, all its calls once in each round, ours compiled before the first; the ratio is that of
the medians, below 1 where we are faster. Peers that take more than some two seconds run once. We are given arrays of JAX and
return them, peers arrays of numpy (OpenDP lists). Memory: the peak of a process that makes one call, compiling and its inputs
included, beyond what it had when the libraries were imported.
"""

import argparse
import datetime
import importlib
import importlib.metadata
import json
import multiprocessing
import os
import statistics
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import dpinfer as dp
from tests.benchmarks.peer_cases import CASES
from tests.benchmarks.timing import interleaved, machine

PACKAGES = ("jax", "numpy", "scipy", "scikit-learn", "opendp", "mbi", "ruptures", "numba", "pandas", "dp-accounting")
COLUMNS = ("workload", "size", "beside", "theirs", "ours", "ratio", "dpinfer", "agreement", "MiB, theirs and ours")


def timed(name: str, rounds: int, is_tiny: bool = False) -> dict[str, Any]:
    """One case: times of both sides, ratios, agreement. Peers that are not installed say so."""
    dp.enable_x64()
    case = CASES[name]
    problem = case.build(*(case.tiny if is_tiny else case.arguments))
    ours = problem.ours()
    result = jax.block_until_ready(ours())
    found: dict[str, Any] = {"name": name, "workload": case.workload, "size": case.size, "peers": {}}
    calls, once = {"dpinfer": ours}, {}
    for title, peer in problem.peers.items():
        if peer.missing:
            found["peers"][title] = {"missing": peer.missing}
            continue
        try:
            call = peer.prepare()
            begin = time.perf_counter()
            theirs = call()
            elapsed = time.perf_counter() - begin
        except (ImportError, AttributeError, TypeError, ValueError, RuntimeError) as error:  # another release of the peer, say
            found["peers"][title] = {"missing": f"raises {type(error).__name__}: {error}".partition("\n")[0]}
            continue
        agreement = peer.agreement(result, theirs)
        found["peers"][title] = {"agreement": agreement.words, "agrees": bool(agreement.is_met)}
        if peer.is_slow and not is_tiny:
            once[title] = [elapsed]
        else:
            calls[title] = call
        del theirs
    seconds = interleaved(calls, rounds) | once
    found |= {"seconds": statistics.median(seconds["dpinfer"]), "least": min(seconds["dpinfer"])}
    for title, each in seconds.items():
        if title == "dpinfer":
            continue
        median, least = statistics.median(each), min(each)
        ratios = {"ratio": found["seconds"] / median, "ratio_of_least": found["least"] / least}
        found["peers"][title] |= {"seconds": median, "least": least, "rounds": len(each)} | ratios
    return found


def memory(name: str, title: str | None) -> float | None:
    """MiB at the highest of one call of ours or of a peer; None where the system does not tell."""
    dp.enable_x64()
    case = CASES[name]
    problem = case.build(*case.tiny)
    for module in problem.peers[title].modules if title else ():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(module)
    jnp.zeros(1).block_until_ready()
    before = _highest()
    problem = case.build(*case.arguments)
    call = problem.peers[title].prepare() if title else problem.ours()
    result = call()
    jax.block_until_ready(None if title else result)
    after = _highest()
    return None if before is None or after is None else after - before


def _highest() -> float | None:
    """Of this process: the maximum of getrusage counts the one that started it."""
    try:
        status = Path("/proc/self/status").read_text(encoding="utf-8")
    except OSError:
        return None
    return int(status.split("VmHWM:")[1].split()[0]) / 2**10 if "VmHWM:" in status else None


def verdict(ratio: float) -> str:
    if 0.95 <= ratio <= 1.05:
        return "as fast"
    factor = max(ratio, 1 / ratio)
    return ("loses" if ratio > 1 else "wins") + (f" {factor:,.0f}x" if factor >= 9.95 else f" {factor:.1f}x")


def lines(found: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """The rows of the table, a row a peer."""
    rows = []
    for case in found:
        for title, peer in case["peers"].items():
            if "missing" in peer:
                rows.append((case["workload"], case["size"], title, peer["missing"], _time(case["seconds"]), "", "", "", ""))
                continue
            note = " (one round)" if peer["rounds"] == 1 else ""
            agreement = peer["agreement"] if peer["agrees"] else f"DISAGREES: {peer['agreement']}"
            used = [] if peer.get("memory") is None or case.get("memory") is None else [peer["memory"], case["memory"]]
            row = (case["workload"], case["size"], title, _time(peer["seconds"]) + note, _time(case["seconds"]))
            ratio = f"{peer['ratio']:,.0f}x" if peer["ratio"] >= 10 else f"{peer['ratio']:.2g}x"
            row += (ratio, verdict(peer["ratio"]), agreement, ", ".join(f"{x:,.0f}" for x in used))
            rows.append(row)
    return rows


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} µs"


def table(rows: Sequence[tuple[str, ...]], *, markdown: bool) -> str:
    if markdown:
        return "\n".join("| " + " | ".join(row) + " |" for row in (COLUMNS, ("---",) * len(COLUMNS), *rows))
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    return "\n".join("  ".join(f"{x:{k}}" for x, k in zip(row, widths, strict=True)).rstrip() for row in (COLUMNS, *rows))


def versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="NAME", default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--json", type=Path, metavar="PATH")
    parser.add_argument("--markdown", action="store_true", help="print the table as the README has it")
    parser.add_argument("--no-memory", action="store_true")
    options = parser.parse_args()
    load = os.getloadavg() if hasattr(os, "getloadavg") else None
    facts = {"machine": machine(), "versions": versions(), "date": datetime.date.today().isoformat(), "load": load}
    found = []
    # Fresh processes: what a large array leaves behind in the allocator changes the next measurement by half.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as fresh:
        for name in (name for name in CASES if name in options.only):
            case = fresh.submit(timed, name, options.rounds).result()
            if not options.no_memory:
                case["memory"] = fresh.submit(memory, name, None).result()
                for title, peer in case["peers"].items():
                    if "missing" not in peer:
                        peer["memory"] = fresh.submit(memory, name, title).result()
            found.append(case)
            if not options.markdown:
                print("\n".join("  ".join(x for x in row if x) for row in lines([case])), flush=True)
            if options.json:
                text = json.dumps(facts | {"rounds": options.rounds, "cases": found}, indent=1)
                options.json.write_text(text + "\n", encoding="utf-8")
    print("" if options.markdown else "\n", end="")
    print(table(lines(found), markdown=options.markdown))
    others = ", ".join(f"{name} {number}" for name, number in versions().items() if name != "jax")
    print(f"\n{facts['machine']}; {others}")


if __name__ == "__main__":
    main()
