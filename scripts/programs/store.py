"""Stores for Python: TinyDB, dbm.dumb and DuckDB. Two values are stored, each promised when the
store says that it is done."""

import os
import sys

from promise import marks, promise

verb, kind = sys.argv[1:]
path = os.environ["STETFS_DIR"] + "/data"
VALUES = {key: key * 2000 for key in "ab"}


class Tiny:
    def __init__(self):
        from tinydb import TinyDB

        self.db = TinyDB(path)

    def put(self, key, value):
        self.db.insert({"key": key, "value": value})

    def all(self):
        return {row["key"]: row["value"] for row in self.db.all()}


class Dumb:
    def __init__(self):
        import dbm.dumb

        self.db = dbm.dumb.open(path, "c")

    def put(self, key, value):
        self.db[key] = value
        self.db.sync()

    def all(self):
        return {key.decode(): self.db[key].decode() for key in self.db.keys()}


class Duck:
    def __init__(self):
        import duckdb

        self.db = duckdb.connect(path)
        self.db.execute("CREATE TABLE IF NOT EXISTS t (key TEXT, value TEXT)")

    def put(self, key, value):
        self.db.execute("INSERT INTO t VALUES (?, ?)", [key, value])

    def all(self):
        return dict(self.db.execute("SELECT key, value FROM t").fetchall())


store = {"tinydb": Tiny, "dumb": Dumb, "duckdb": Duck}[kind]()
if verb == "setup":
    store.put("old", "old")
elif verb == "run":
    for key, value in VALUES.items():
        store.put(key, value)
        promise(key)
else:
    found, promised = store.all(), marks()
    if found.get("old") != "old":
        sys.exit("what was there before is lost")
    for key, value in VALUES.items():
        if key in promised and key not in found:
            sys.exit(f"{key} was promised, and is lost")
        if found.get(key, value) != value:
            sys.exit(f"{key} is damaged")
sys.stdout.flush()
os._exit(0)
