"""SQLite: two transactions of two rows each, promised when they are committed."""

import os
import sqlite3
import sys

from promise import marks, promise

verb, journal, synchronous = sys.argv[1:4]
path = os.environ["STETFS_DIR"] + "/data.db"
db = sqlite3.connect(path, isolation_level=None)

if verb == "run":
    db.execute(f"PRAGMA journal_mode={journal}")
    db.execute(f"PRAGMA synchronous={synchronous}")
    db.execute("CREATE TABLE t (transaction_number, row, filler)")
    promise("table")
    for number in range(2):
        db.execute("BEGIN")
        for row in range(2):
            db.execute("INSERT INTO t VALUES (?, ?, ?)", (number, row, str(number) * 2000))
        db.execute("COMMIT")
        promise(str(number))
    # As a program that is killed: nothing is closed.
    os._exit(0)

state = db.execute("PRAGMA integrity_check").fetchall()
if state != [("ok",)]:
    sys.exit(f"integrity_check: {state}")
promised = marks()
has_table = db.execute("SELECT count(*) FROM sqlite_master WHERE name = 't'").fetchone()[0]
if "table" in promised and not has_table:
    sys.exit("the table is lost")
for number in range(2):
    rows = has_table and db.execute(
        "SELECT count(*) FROM t WHERE transaction_number = ?", (number,)
    ).fetchone()[0]
    if rows not in (0, 2):
        sys.exit(f"transaction {number} has {rows} rows of 2")
    if str(number) in promised and rows != 2:
        sys.exit(f"transaction {number} was committed, and is lost")
