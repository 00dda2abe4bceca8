"""``python3 -m stetfs ARGS`` is ``stetfs ARGS``."""

import os
import sys

from stetfs import command

os.execv(command(), ["stetfs", *sys.argv[1:]])
