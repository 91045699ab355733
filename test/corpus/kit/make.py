"""Runs make.py files of cases, each in its own folder, in one process: importing torch takes longer than most of them.

make.py SCRIPT FOLDER [SCRIPT FOLDER …]
"""

import os
import runpy
import sys

sys.dont_write_bytecode = True

for script, folder in zip(sys.argv[1::2], sys.argv[2::2]):
    os.chdir(folder)
    try:
        runpy.run_path(script, run_name="__main__")
    except BaseException:
        print("failed: %s" % script)
        raise
