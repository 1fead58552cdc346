"""Arrays of a checkpoint on the disk, known by name and not read yet."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping

import numpy as np


@dataclasses.dataclass(frozen=True)
class Arrays:
  """What a file or several hold.

  Attributes:
    path: for messages: the file, or the folder of several.
    shapes: by name; only looked up in the headers, so that all can be checked
      before anything is read.
    dtypes: by name, as numpy calls them: "float32", "bfloat16", "int64", ...
    read: gives the array of a name, of its dtype and shape.
  """

  path: pathlib.Path
  shapes: Mapping[str, tuple[int, ...]]
  dtypes: Mapping[str, str]
  read: Callable[[str], np.ndarray]
