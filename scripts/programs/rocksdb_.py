"""RocksDB, by its interface for C: batches of two keys, promised when they are written."""

import atexit
import ctypes
import os
import shutil
import sys
import tempfile

from promise import check_pair, marks, promise

LIBRARY = "librocksdb.so.7.8"
lib = ctypes.CDLL(LIBRARY)
for name in ["options_create", "open", "writeoptions_create", "readoptions_create",
             "writebatch_create", "flushoptions_create", "get"]:
    getattr(lib, f"rocksdb_{name}").restype = ctypes.c_void_p


def call(name, *args):
    """A function that says by its last argument whether it has failed."""
    error = ctypes.c_char_p()
    result = getattr(lib, f"rocksdb_{name}")(*args, ctypes.byref(error))
    if error.value:
        sys.exit(error.value.decode(errors="replace"))
    return result


def pointer(name):
    return ctypes.c_void_p(getattr(lib, f"rocksdb_{name}")())


def write(db, number, sync):
    options, batch = pointer("writeoptions_create"), pointer("writebatch_create")
    lib.rocksdb_writeoptions_set_sync(options, sync)
    for half in "ab":
        key, value = f"{number}{half}".encode(), str(number).encode() * 700
        lib.rocksdb_writebatch_put(
            batch, key, ctypes.c_size_t(len(key)), value, ctypes.c_size_t(len(value))
        )
    call("write", db, options, batch)


def get(db, key):
    length = ctypes.c_size_t()
    options = pointer("readoptions_create")
    value = call("get", db, options, key, ctypes.c_size_t(len(key)), ctypes.byref(length))
    return value and ctypes.string_at(value, length.value)


def leave():
    """As a program that is killed: nothing is closed."""
    shutil.rmtree(logs)
    os._exit(0)


verb, sync = sys.argv[1], sys.argv[2] == "sync"
path = os.environ["STETFS_DIR"] + "/db"
if verb == "check" and not os.path.exists(path + "/CURRENT"):
    # RocksDB makes CURRENT last: without it there was no database so far.
    sys.exit("the database is lost" if marks() else 0)
options = pointer("options_create")
lib.rocksdb_options_set_create_if_missing(options, verb == "run")
# No statistics by the clock, and its log for people elsewhere.
lib.rocksdb_options_set_stats_dump_period_sec(options, 0)
logs = tempfile.mkdtemp()
atexit.register(shutil.rmtree, logs)
lib.rocksdb_options_set_db_log_dir(options, logs.encode())
db = ctypes.c_void_p(call("open", options, path.encode()))

if verb == "run":
    for number in range(4):
        write(db, number, sync)
        promise(str(number))
        if number == 2:
            # The log goes into a table, and a new log begins.
            call("flush", db, pointer("flushoptions_create"))
    leave()

promised = marks()
for number in range(4):
    halves = [get(db, f"{number}{half}".encode()) for half in "ab"]
    check_pair(f"batch {number}", halves, str(number) in promised)
    if any(half not in (None, str(number).encode() * 700) for half in halves):
        sys.exit(f"batch {number} is damaged")
leave()
