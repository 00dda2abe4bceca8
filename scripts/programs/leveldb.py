"""LevelDB: batches of two keys, promised when they are written."""

import os
import sys

import plyvel

from promise import check_pair, marks, promise

verb, sync = sys.argv[1], sys.argv[2] == "sync"
path = os.environ["STETFS_DIR"] + "/db"
if verb == "check" and not os.path.exists(path + "/CURRENT"):
    # LevelDB makes CURRENT last: without it there was no database so far.
    sys.exit("the database is lost" if marks() else 0)
db = plyvel.DB(path, create_if_missing=verb == "run")

if verb == "run":
    for number in range(4):
        with db.write_batch(sync=sync) as batch:
            for half in "ab":
                batch.put(f"{number}{half}".encode(), str(number).encode() * 700)
        promise(str(number))
        if number == 2:
            # The log goes into a table, and a new log begins.
            db.compact_range()
    os._exit(0)

promised = marks()
for number in range(4):
    halves = [db.get(f"{number}{half}".encode()) for half in "ab"]
    check_pair(f"batch {number}", halves, str(number) in promised)
for _ in db:
    pass
