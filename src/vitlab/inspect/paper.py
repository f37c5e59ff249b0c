"""What figures are drawn on."""

from vitlab.inspect.figure import _INK as INK  # noqa: F401
from vitlab.inspect.figure import Style as Style
from vitlab.inspect.figure import _entitle as entitle  # noqa: F401
from vitlab.inspect.figure import _paper as new_paper  # noqa: F401
from vitlab.inspect.figure import _tint as tint  # noqa: F401
from vitlab.inspect.figure import _written as written  # noqa: F401
