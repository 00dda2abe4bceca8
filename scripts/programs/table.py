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
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
DOCS = HERE.parent.parent / "docs"
KEPT, PAGE = DOCS / "programs.json", DOCS / "CRASH.md"
BEGIN, END = "<!-- programs: scripts/programs/table.py -->\n", "<!-- end of programs -->\n"

# Debian's, for which its packages have modules.
PYTHON = "/usr/bin/python3"
MODELS = "ext4-ordered,ext4-dioread-lock,posix,stet"
# States of which the check is asked, for each model.
BUDGET = 2000


def row(
    program, package, promise, script, *words, setup=False, budget=BUDGET, pypi=None, npm=None,
    go=None, options=(), shard="1/1", check_timeout=10,
):
    """A row: what is run is `script VERB words`, with the verbs setup, run and check. `package`: of
    Debian; `pypi`, `npm`: a requirement for pip or npm instead; `go`: a Go module that the script,
    a folder of `go`, takes in the version of its go.mod. `options`: of `stetfs crash`. `shard`: the
    part of the states that is judged, where all are too many."""
    return {
        "program": program,
        "package": package,
        "promise": promise,
        "script": script,
        "words": words,
        "setup": setup,
        "budget": budget,
        "pypi": pypi,
        "npm": npm,
        "go": go,
        "options": options,
        "shard": shard,
        "check_timeout": check_timeout,
    }


REPLACED = "the file is old or new; new when it returns"
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
ROWS["redis-users"] = row(
    "Redis, ACL SAVE", "redis-server", "it starts; users that were saved are there", "redis.sh",
    "users", setup=True,
)
for io in ["safe", "unsafe-io"]:
    ROWS[f"dpkg-{io}"] = row(
        "dpkg, a package over an older one" + ("" if io == "safe" else ", --force-unsafe-io"),
        "dpkg", "files are old or new; new ones when it returns", "dpkg.sh", io, setup=True,
    )
for number in ["0.1.5", "1.0.0", "1.4.1"]:
    ROWS[f"atomicwrites-{number}"] = row(
        "atomicwrites", None, "the file is old or new; new when it returns", "atomic_writes.py",
        setup=True, pypi=f"atomicwrites=={number}",
    )
for mode, title in [
    ("sync", "bbolt"), ("nofreelistsync", "bbolt, NoFreelistSync"),
    ("nogrowsync", "bbolt, NoGrowSync"), ("nosync", "bbolt, NoSync"),
]:
    ROWS[f"bbolt-{mode}"] = row(
        title, None, COMMITTED, "bbolt", mode, setup=True, go="go.etcd.io/bbolt"
    )
ROWS["bbolt-create"] = row(
    "bbolt, making a database", None, "it can be opened", "bbolt", "sync", go="go.etcd.io/bbolt"
)
for major, module in [("2", "github.com/coreos/etcd"), ("3", "go.etcd.io/etcd/server/v3")]:
    ROWS[f"etcd-{major}"] = row(
        "etcd, its write-ahead log", None, "it can be read; entries that were saved are there",
        "etcd", major, go=module, options=("--size", "256M"),
    )
for mode, title in [("sync", "RocksDB, sync"), ("nosync", "RocksDB, no sync")]:
    ROWS[f"rocksdb-{mode}"] = row(
        title, "librocksdb7.8", "batches that were written are there, others whole or not",
        "rocksdb_.py", mode, options=("--size", "256M"),
    )
for mode, title in [("sync", "GDBM, GDBM_SYNC"), ("nosync", "GDBM")]:
    ROWS[f"gdbm-{mode}"] = row(
        title, "libgdbm6", "it can be opened; keys that were stored are there", "gdbm.py", mode,
        setup=True,
    )
for package, title, promise in [
    ("level@10.0.0", "level (npm), making a database", "it can be opened"),
    ("write-file-atomic@8.0.0", "write-file-atomic (npm)", REPLACED),
    ("conf@16.0.0", "conf (npm)", REPLACED),
    ("lowdb@7.0.1", "lowdb (npm)", REPLACED),
]:
    name = package.split("@")[0]
    # A runtime is started for each state.
    ROWS[name] = row(
        title, None, promise, "node.mjs", name, setup=name != "level", npm=package, budget=300
    )
STORED = "it can be opened; values that were stored are there"
ROWS["duckdb"] = row(
    "DuckDB", None, STORED, "store.py", "duckdb", setup=True, pypi="duckdb==2.0.1", budget=300
)
ROWS["tinydb"] = row(
    "TinyDB", None, STORED, "store.py", "tinydb", setup=True, pypi="tinydb==4.9.0", budget=300
)
ROWS["dumb"] = row(
    "Python's dbm.dumb", "python3", STORED, "store.py", "dumb", setup=True, budget=300
)
ROWS["sponge"] = row("sponge", "moreutils", REPLACED, "replace.sh", "sponge", setup=True)
ROWS["tar"] = row(
    "GNU tar, a file over an older one", "tar", REPLACED, "replace.sh", "tar", setup=True
)
ROWS["hg"] = row(
    "Mercurial", "mercurial", "`hg verify` finds nothing; commits are there", "hg.sh", setup=True,
    budget=60,
)
for fsync in ["on", "off"]:
    # It is started for each state.
    ROWS[f"postgres-fsync-{fsync}"] = row(
        f"PostgreSQL, fsync={fsync}", "postgresql-15",
        "it starts; committed transactions are there, others whole or not", "postgres.sh",
        f"fsync={fsync}", setup=True, budget="70s", options=("--size", "256M", "--timeout", "120"),
        shard="1/200", check_timeout=60,
    )
for state in ["on", "off"]:
    # It is started for each state, too.
    ROWS[f"mariadb-doublewrite-{state}"] = row(
        f"MariaDB, innodb_doublewrite={state.upper()}", "mariadb-server",
        "it starts; committed transactions are there, others whole or not", "mariadb.sh",
        f"innodb_doublewrite={state}", setup=True, budget="60s",
        options=("--size", "256M", "--timeout", "120"), shard="1/60", check_timeout=60,
    )


def version(row):
    if row["pypi"]:
        return row["pypi"].split("==")[1]
    if row["npm"]:
        return row["npm"].rsplit("@", 1)[1]
    if row["go"]:
        lines = (HERE / "go" / row["script"] / "go.mod").read_text().split("\n")
        pairs = (line.removeprefix("require").split()[:2] for line in lines)
        found = dict(pair for pair in pairs if len(pair) == 2)[row["go"]]
        return found.removeprefix("v").removesuffix("+incompatible")
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


def runner(what, scratch):
    """What runs a row's program, before the verb."""
    script = str(HERE / what["script"])
    if what["go"]:
        if not shutil.which("go"):
            sys.exit("it takes Go 1.26, from https://go.dev/dl")
        built = os.path.join(scratch, "built")
        subprocess.run(["go", "build", "-o", built], cwd=HERE / "go" / what["script"], check=True)
        return [built]
    if what["npm"]:
        # A script finds packages beside it.
        shutil.copy(script, scratch)
        npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", scratch]
        subprocess.run([*npm, what["npm"]], check=True)
        return ["node", os.path.join(scratch, what["script"])]
    return [python(what, scratch), script] if script.endswith(".py") else [script]


def run(stetfs, name):
    """The report on a row."""
    what = ROWS[name]
    with tempfile.TemporaryDirectory() as scratch:
        before = runner(what, scratch)

        def command(verb):
            return [*before, verb, *what["words"]]

        def crash(*words):
            words = [stetfs, "crash", "--check-timeout", str(what["check_timeout"]), *words]
            ran = subprocess.run(words, stdout=subprocess.DEVNULL)
            # 4: the budget has ended it early.
            if ran.returncode not in (0, 1, 4):
                sys.exit(f"{name}: exit code {ran.returncode}")

        recording, report = (os.path.join(scratch, file) for file in ("recording", "report"))
        words = ["--save", recording, *what["options"], "--check", shlex.join(command("check"))]
        if what["setup"]:
            words += ["--setup", shlex.join(command("setup"))]
        crash(*words, "--", *command("run"))
        words = ["--recording", recording, "--model", MODELS, "--budget", str(what["budget"])]
        crash(*words, "--shard", what["shard"], "--json", report)
        with open(report) as file:
            return json.load(file)


def kept(name, report):
    """What is kept of a report."""
    def of(model):
        counts = model["counts"]
        return {
            "model": model["model"],
            "finished": "early" not in model,
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
        states = f"{sum(model['states'] for model in result['models']):,}"
        if what["shard"] != "1/1":
            states += f" (shard {what['shard']})"
        cells = [what["program"], result["version"], what["promise"]]
        cells += [verdict(of[model]) if model in of else "not run" for model in models]
        cells += [states, f"{result['judged']:,}", f"{result['seconds']:.0f}", f"`{name}`"]
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
