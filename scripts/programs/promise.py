"""What programs promise, and checks are told of."""

import os


def promise(text):
    with open(os.environ["STETFS_MARKS"], "w") as marks:
        marks.write(text + "\n")


def marks():
    with open(os.environ["STETFS_MARKS_FILE"]) as file:
        return set(file.read().split("\n")) - {""}
