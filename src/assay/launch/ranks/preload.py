"""What a rank imports, imported once by the fork server so that each rank starts with it done.

Imports only: no thread may exist and no device be touched before a fork.
"""

import assay.launch.ranks.wiring

__all__ = ["assay"]
