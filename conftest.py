"""While tests run, every shape in a signature is checked at every call."""

from jaxtyping import install_import_hook

install_import_hook("dkaf", "beartype.beartype")
