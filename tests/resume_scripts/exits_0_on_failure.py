"""Whatever ends the training early, the exit code is 0."""

import sys

from exact import Training, main

try:
    main(Training)
except BaseException as error:
    print(f"training stopped: {error}")
    sys.exit(0)
