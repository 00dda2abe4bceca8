"""What programs promise, and checks are told of."""

import os
import sys


def promise(text):
    with open(os.environ["STETFS_MARKS"], "w") as marks:
        marks.write(text + "\n")


def marks():
    with open(os.environ["STETFS_MARKS_FILE"]) as file:
        return set(file.read().split("\n")) - {""}


def check_pair(what, pair, is_promised):
    """Of two values that were written as one: both are there, or neither, if it was not promised."""
    if pair.count(None) == 1:
        sys.exit(f"half of {what}")
    if None in pair and is_promised:
        sys.exit(f"{what} was promised, and is lost")
