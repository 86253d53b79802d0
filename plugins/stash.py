"""What the plugin keeps on ``pytest.Config``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from gradconform.plugins.contract_run import ContractRun
    from gradconform.plugins.options import Options

OPTIONS_KEY: pytest.StashKey[Options] = pytest.StashKey()
#: The runs of ``--gradconform TARGET``: the contract's, and that of added stages if there are any.
RUNS_KEY: pytest.StashKey[list[ContractRun]] = pytest.StashKey()
#: Names of the items that the command line names by node id.
NAMES_KEY: pytest.StashKey[tuple[str, ...]] = pytest.StashKey()
