"""LMDB: four transactions of two keys each, promised when they are committed."""

import os
import sys

import lmdb

from promise import check_pair, marks, promise

OPTIONS = {
    "sync": {},
    "nometasync": {"metasync": False},
    "nosync": {"sync": False},
    "writemap": {"writemap": True},
}

verb, mode = sys.argv[1:3]
path = os.environ["STETFS_DIR"] + "/db"
if verb == "check" and not os.path.exists(path + "/data.mdb"):
    sys.exit("the database is lost" if marks() else 0)
env = lmdb.open(path, map_size=1 << 20, **OPTIONS[mode])

if verb == "setup":
    env.close()
    sys.exit()
if verb == "run":
    for number in range(4):
        with env.begin(write=True) as txn:
            for half in "ab":
                txn.put(f"{number}{half}".encode(), str(number).encode() * 1500)
        promise(str(number))
    os._exit(0)

promised = marks()
with env.begin() as txn:
    for number in range(4):
        halves = [txn.get(f"{number}{half}".encode()) for half in "ab"]
        check_pair(f"transaction {number}", halves, str(number) in promised)
        if any(half not in (None, str(number).encode() * 1500) for half in halves):
            sys.exit(f"transaction {number} is damaged")
    for _ in txn.cursor():
        pass
