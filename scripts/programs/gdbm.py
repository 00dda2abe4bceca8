"""GDBM: four keys, each promised when it is stored and, in the mode sync, the file is synced."""

import dbm.gnu
import os
import sys

from promise import marks, promise

verb, sync = sys.argv[1], sys.argv[2] == "sync"
path = os.environ["STETFS_DIR"] + "/data.gdbm"
if verb == "check" and not os.path.exists(path):
    sys.exit("the database is lost" if marks() else 0)
db = dbm.gnu.open(path, ("c" if verb != "check" else "w") + ("s" if sync else ""))

if verb == "setup":
    db.close()
    sys.exit()
if verb == "run":
    for number in range(4):
        db[str(number)] = str(number) * 3000
        promise(str(number))
    os._exit(0)

promised = marks()
for number in range(4):
    value = db.get(str(number))
    if value is None and str(number) in promised:
        sys.exit(f"key {number} was promised, and is lost")
    if value not in (None, str(number).encode() * 3000):
        sys.exit(f"key {number} is damaged")
key = db.firstkey()
while key is not None:
    key = db.nextkey(key)
