#!/usr/bin/env python3
"""What power cuts do to real programs: runs `stetfs crash` on them, and makes the table in
docs/CRASH.md from what is kept in docs/programs.json.

    table.py STETFS [ROW...]     runs these rows, or all, and keeps what they gave
    table.py --only-table        makes the table from what is kept
    table.py --check             whether the table is the one of what is kept
    table.py --list              the rows
"""

import datetime
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
DOCS = HERE.parent.parent / "docs"
KEPT, PAGE = DOCS / "programs.json", DOCS / "CRASH.md"
BEGIN, END = "<!-- programs: scripts/programs/table.py -->\n", "<!-- end of programs -->\n"

# Debian's, for which its packages have modules.
PYTHON = "/usr/bin/python3"
MODELS = "ext4-ordered,posix,stet"
# States of which the check is asked, for each model.
BUDGET = 400


def row(program, package, promise, script, *words, setup=False, budget=BUDGET, pypi=None):
    """A row: what is run is `script VERB words`, with the verbs setup, run and check. `package`: of
    Debian; `pypi`: a requirement for pip instead."""
    return {
        "program": program,
        "package": package,
        "promise": promise,
        "script": script,
        "words": words,
        "setup": setup,
        "budget": budget,
        "pypi": pypi,
    }


COMMITTED = "committed transactions are there, others whole or not"
SQLITE = [
    ("DELETE", "EXTRA"), ("DELETE", "FULL"), ("DELETE", "NORMAL"), ("DELETE", "OFF"),
    ("TRUNCATE", "FULL"), ("TRUNCATE", "NORMAL"), ("TRUNCATE", "OFF"),
    ("PERSIST", "FULL"), ("WAL", "FULL"), ("WAL", "NORMAL"), ("WAL", "OFF"),
]
ROWS = {
    f"sqlite-{journal}-{sync}".lower(): row(
        f"SQLite, {journal}, {sync}", "libsqlite3-0", COMMITTED, "sqlite.py", journal, sync
    )
    for journal, sync in SQLITE
}
for mode, title in [
    ("sync", "LMDB"), ("writemap", "LMDB, MDB_WRITEMAP"), ("nometasync", "LMDB, MDB_NOMETASYNC"),
    ("nosync", "LMDB, MDB_NOSYNC"),
]:
    ROWS[f"lmdb-{mode}"] = row(
        title, "liblmdb0", COMMITTED, "lmdb_.py", mode, setup=True
    )
ROWS["lmdb-create"] = row(
    "LMDB, making a database", "liblmdb0", "it can be opened", "lmdb_.py", "sync"
)
for mode, title in [("sync", "LevelDB, sync"), ("nosync", "LevelDB, no sync")]:
    ROWS[f"leveldb-{mode}"] = row(
        title, "libleveldb1d", "batches that were written are there, others whole or not",
        "leveldb.py", mode,
    )
for fsync in ["default", "all", "none"]:
    ROWS[f"git-{fsync}"] = row(
        f"git, core.fsync={fsync}", "git", "`git fsck` finds nothing; commits are there",
        "git.sh", fsync, setup=True,
    )
for fsync in ["always", "everysec"]:
    ROWS[f"redis-{fsync}"] = row(
        f"Redis, appendfsync={fsync}", "redis-server",
        "it starts; keys that it confirmed are there", "redis.sh", fsync,
    )
for io in ["safe", "unsafe-io"]:
    ROWS[f"dpkg-{io}"] = row(
        "dpkg, a package over an older one" + ("" if io == "safe" else ", --force-unsafe-io"),
        "dpkg", "files are old or new; new ones when it returns", "dpkg.sh", io, setup=True,
        budget=1500,
    )
for number in ["0.1.5", "1.0.0", "1.4.1"]:
    ROWS[f"atomicwrites-{number}"] = row(
        "atomicwrites", None, "the file is old or new; new when it returns", "atomic_writes.py",
        setup=True, pypi=f"atomicwrites=={number}",
    )


def version(row):
    if row["pypi"]:
        return row["pypi"].split("==")[1]
    package = row["package"]
    show = ["dpkg-query", "-W", "-f", "${Version}", package]
    said = subprocess.run(show, capture_output=True, text=True)
    return said.stdout or "not installed"


def python(what, scratch):
    """The Python that has what a row needs."""
    if not what["pypi"]:
        return PYTHON
    venv = os.path.join(scratch, "venv")
    subprocess.run([PYTHON, "-m", "venv", venv], check=True)
    pip = [os.path.join(venv, "bin", "pip"), "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", what["pypi"]], check=True)
    return os.path.join(venv, "bin", "python")


def run(stetfs, name):
    """The report on a row."""
    what = ROWS[name]
    script = str(HERE / what["script"])
    with tempfile.TemporaryDirectory() as scratch:
        runner = [python(what, scratch), script] if script.endswith(".py") else [script]

        def command(verb):
            return [*runner, verb, *what["words"]]

        report = os.path.join(scratch, "report.json")
        words = [stetfs, "crash", "--model", MODELS, "--budget", str(what["budget"])]
        words += ["--json", report]
        words += ["--keep", os.path.join(scratch, "recording")]
        words += ["--check", shlex.join(command("check"))]
        if what["setup"]:
            words += ["--setup", shlex.join(command("setup"))]
        ran = subprocess.run([*words, "--", *command("run")], stdout=subprocess.DEVNULL)
        if ran.returncode not in (0, 1):
            sys.exit(f"{name}: exit code {ran.returncode}")
        with open(report) as file:
            return json.load(file)


def kept(name, report):
    """What is kept of a report."""
    def of(model):
        counts = model["counts"]
        return {
            "model": model["model"],
            "finished": model["finished"],
            "states": counts["states"],
            "judged": counts["states"] - counts["folded"],
            "moments": counts["moments"],
            "moments_all": counts["moments_all"],
            "causes": [finding["headline"] for finding in model["findings"]],
        }

    return {
        "version": version(ROWS[name]),
        "date": datetime.date.today().isoformat(),
        "judged": report["judged"],
        "seconds": round(report["seconds"], 1),
        "models": [of(model) for model in report["models"]],
    }


def verdict(model):
    causes = len(model["causes"])
    said = {0: "holds", 1: "1 cause"}.get(causes, f"{causes} causes")
    if not model["finished"]:
        said += f" ({model['moments']} of {model['moments_all']} moments)"
    return said


def table(results):
    models = MODELS.split(",")
    head = ["program", "version", "promise", *(f"`{model}`" for model in models)]
    head += ["states", "distinct", "seconds", "row"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for name, what in ROWS.items():
        result = results.get(name)
        if result is None:
            continue
        of = {model["model"]: model for model in result["models"]}
        states = sum(model["states"] for model in result["models"])
        cells = [what["program"], result["version"], what["promise"]]
        cells += [verdict(of[model]) if model in of else "" for model in models]
        cells += [f"{states:,}", f"{result['judged']:,}", f"{result['seconds']:.0f}", f"`{name}`"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main():
    words = sys.argv[1:]
    if words == ["--list"]:
        print("\n".join(ROWS))
        return
    if not words:
        sys.exit(__doc__)
    results = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    if not words[0].startswith("--"):
        for name in words[1:] or ROWS:
            results[name] = kept(name, run(os.path.abspath(words[0]), name))
            print(name, *(verdict(model) for model in results[name]["models"]), sep=": ")
            KEPT.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    made = f"{before}{BEGIN}\n{table(results)}\n{END}{after}"
    if words == ["--check"]:
        sys.exit(0 if made == page else "the table is not of docs/programs.json: --only-table")
    PAGE.write_text(made)


if __name__ == "__main__":
    main()
