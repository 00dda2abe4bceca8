#!/usr/bin/env python3
"""Shares one exploration of `stetfs crash` among joblib's workers.

    crash_shards.py --recording a.rec --shards 64 --reports DIR [-- --model posix ...]

Each worker runs `stetfs crash --recording a.rec --shard I/N` and gives the report back, so only the
recording, the program, the check and stetfs itself have to be where the workers are. Reports that
are in DIR already are not made again. The end is `stetfs crash merge`: its words, its exit code.

The workers are processes of this machine (joblib's backend loky), or those of a Dask cluster: --dask
with the address of its scheduler, or "local" for a cluster on this machine.
"""

import argparse
import contextlib
import pathlib
import subprocess
import sys
import tempfile

import joblib

# What `stetfs crash` exits with when it has a report: nothing found, something found, nothing
# found in a part of what was to be looked at.
HAS_REPORT = (0, 1, 4)


def explore(stetfs, recording, shard, options):
    """Explores a shard where it is called; its report, or what went wrong."""
    with tempfile.TemporaryDirectory(prefix="stetfs-shard-") as scratch:
        report = pathlib.Path(scratch, "report.json")
        command = [stetfs, "crash", "--recording", recording, "--shard", shard]
        command += ["--json", str(report), *options]
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if ran.returncode in HAS_REPORT:
            return report.read_text(), None
        return None, f"shard {shard}: exit code {ran.returncode}\n{ran.stderr}"


def explore_all(args, files):
    """Explores the shards whose files are not there; what went wrong."""
    todo = [number for number, file in files.items() if not file.exists()]
    calls = [
        joblib.delayed(explore)(args.stetfs, args.recording, f"{number}/{args.shards}", args.options)
        for number in todo
    ]
    wrong = []
    found = joblib.Parallel(n_jobs=args.jobs, return_as="generator")(calls)
    for number, (report, error) in zip(todo, found):
        if error:
            wrong.append(error)
            continue
        # A file that is there is whole.
        beside = files[number].with_suffix(".new")
        beside.write_text(report)
        beside.rename(files[number])
        print(f"shard {number} of {args.shards} is done", file=sys.stderr)
    return wrong


@contextlib.contextmanager
def workers(dask):
    """Those of this machine, or of a Dask cluster."""
    if not dask:
        with joblib.parallel_config(backend="loky"):
            yield
        return
    from distributed import Client

    client = Client(processes=True) if dask == "local" else Client(dask)
    with client, joblib.parallel_config(backend="dask"):
        yield


def parsed():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recording", required=True, help="what `stetfs crash --save` has written")
    parser.add_argument("--shards", type=int, required=True, help="how many parts")
    parser.add_argument("--reports", type=pathlib.Path, required=True, help="a directory")
    parser.add_argument("--jobs", type=int, default=-1, help="shards at once; -1: one a processor")
    parser.add_argument("--dask", help="the address of a Dask scheduler, or local")
    parser.add_argument("--junit", help="write the sum as JUnit's XML to this file")
    parser.add_argument("--stetfs", default="stetfs", help="the command")
    parser.add_argument("options", nargs="*", help="options of stetfs crash, behind --")
    return parser.parse_args()


def main():
    args = parsed()
    args.reports.mkdir(parents=True, exist_ok=True)
    numbers = range(1, args.shards + 1)
    files = {number: args.reports / f"{number}-of-{args.shards}.json" for number in numbers}
    with workers(args.dask):
        wrong = explore_all(args, files)
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 2
    merge = [args.stetfs, "crash", "merge", *map(str, files.values())]
    merge += ["--junit", args.junit] if args.junit else []
    return subprocess.run(merge).returncode


if __name__ == "__main__":
    sys.exit(main())
