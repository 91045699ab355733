"""Program that logs the machine's metrics and the memory of the processes whose pids it reads; needs psutil."""

import argparse
import logging
import sys

from ts.metrics import system_metrics
from ts.metrics.process_memory_metric import check_process_mem_usage

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpu", type=int, default=0, help="number of GPUs")
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
    system_metrics.collect_all(system_metrics, parser.parse_args().gpu)
    check_process_mem_usage(sys.stdin)
