"""A user's own stages: the requirements of the contract for a plain stage are checked on them."""

from __future__ import annotations

from gradconform.run.source import Source
from gradconform.user_input.option import Option, names_written, objects_of

SOURCE = Source(
    options=(
        Option(
            name="stage",
            loads_files=True,
            metavar="STAGE",
            default=(),
            kind="several",
            help="judge TARGET on your own STAGE instead of the contract; name STAGE as you name TARGET",
            check=objects_of,
            written=names_written,
            selects=True,
        ),
    ),
)
