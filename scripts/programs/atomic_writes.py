"""atomicwrites (PyPI): a file of settings is written anew, promised when that has returned."""

import os
import sys

from promise import marks, promise

verb = sys.argv[1]
path = os.environ["STETFS_DIR"] + "/settings"

if verb == "setup":
    with open(path, "w") as settings:
        settings.write("green\n" * 1000)
elif verb == "run":
    from atomicwrites import atomic_write

    with atomic_write(path, overwrite=True) as settings:
        settings.write("blue\n" * 1000)
    promise("saved")
else:
    with open(path) as settings:
        words = settings.read().split()
    if len(words) != 1000 or len(set(words)) != 1:
        sys.exit(f"the settings are torn: {len(words)} words")
    if "saved" in marks() and words[0] != "blue":
        sys.exit("the user was told that blue is saved")
