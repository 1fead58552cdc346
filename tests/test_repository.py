"""Rules that hold for the whole source, read off its syntax trees."""

import ast
import pathlib

import pytest

PACKAGE = pathlib.Path(__file__).parent.parent / "truenegs_jax"
# From the bottom up: a folder imports from the floors below it and from itself.
FLOORS = (
  {"configs", "runtime"},
  {"data", "models", "objectives"},
  {"workdir", "tasks"},
  {"synonyms", "weights"},
  {"train"},
  {"corrections", "finetune"},
  {"pretrain"},
  {"main", "prepare", "export"},
)
FLOOR = {name: i for i, floor in enumerate(FLOORS) for name in floor}
JAX = {"jax", "jaxlib", "flax", "optax", "orbax", "chex"}
SOURCES = {
  ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path.read_text()
  for path in sorted(PACKAGE.rglob("*.py"))
  if path.relative_to(PACKAGE).parts[0] != "configs"  # a link
}
TREES = {module: ast.parse(source) for module, source in SOURCES.items()}
FUNCTIONS = [
  (module, node)
  for module, tree in TREES.items()
  for node in ast.walk(tree)
  if isinstance(node, ast.FunctionDef)
]


def imports(module: str) -> set[str]:
  """Full dotted names of all that a module imports, anywhere in it."""
  names = set()
  for node in ast.walk(TREES[module]):
    if isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, "imports are absolute"
      names |= {f"{node.module}.{alias.name}" for alias in node.names}
  return names


def own_imports(module: str) -> set[str]:
  """Imports from this package, without its name."""
  prefix = "truenegs_jax."
  return {
    name.removeprefix(prefix)
    for name in imports(module)
    if name.startswith(prefix)
  }


def test_folders_import_only_from_the_floors_below():
  upward = [
    f"{module} imports {name}"
    for module in TREES
    for name in own_imports(module)
    if (folder := module.split(".")[0]) != name.split(".")[0]
    and folder != "__init__"
    and FLOOR[name.split(".")[0]] >= FLOOR[folder]
  ]
  assert not upward


def test_no_modules_import_each_other_in_a_circle():
  graph = {
    module: {
      name if name in TREES else name.rpartition(".")[0]
      for name in own_imports(module)
    }
    for module in TREES
  }
  done = set()

  def visit(module, trail):
    assert module not in trail, " -> ".join([*trail, module])
    if module not in done:
      for other in graph.get(module, ()):
        visit(other, [*trail, module])
      done.add(module)

  for module in graph:
    visit(module, [])


@pytest.mark.parametrize("module", TREES)
def test_third_party_packages_stay_in_their_folders(module):
  folder = module.split(".")[0]
  tops = {name.split(".")[0] for name in imports(module)}
  if folder in ("data", "synonyms", "tasks"):  # run in workers, without jax
    assert not tops & JAX
  if folder in ("data", "models", "objectives", "tasks", "synonyms"):
    assert "ml_collections" not in tops
  if folder != "models":
    assert not any(name.startswith("flax.linen") for name in imports(module))
  if module != "workdir.checkpoints":
    assert "orbax" not in tops


def public_definitions(body, prefix=""):
  """Public classes, functions and methods, with their names."""
  for node in body:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
      if node.name.startswith("_") or "Protocol" in map(
        ast.unparse, getattr(node, "bases", [])
      ):
        continue
      yield prefix + node.name, node
      if isinstance(node, ast.ClassDef):
        yield from public_definitions(node.body, f"{node.name}.")


@pytest.mark.parametrize("module", TREES)
def test_public_definitions_have_docstrings(module):
  assert ast.get_docstring(TREES[module]), "the module"
  assert not [
    name
    for name, node in public_definitions(TREES[module].body)
    # `setup` is flax's name for a constructor.
    if not ast.get_docstring(node) and not name.endswith(".setup")
  ]


def test_functions_are_short():
  assert not [
    f"{module}.{node.name}: {size} lines"
    for module, node in FUNCTIONS
    if (size := node.end_lineno - node.lineno + 1) > 80
  ]


def test_no_boolean_is_passed_by_position():
  positional = (
    (module, node, arg)
    for module, node in FUNCTIONS
    for arg in (*node.args.posonlyargs, *node.args.args)
  )
  assert not [
    f"{module}.{node.name}: {arg.arg}"
    for module, node, arg in positional
    if arg.annotation and ast.unparse(arg.annotation) == "bool"
  ]


def test_every_error_has_an_exit_code_of_its_own():
  from truenegs_jax.runtime import errors

  codes = [kind.exit_code for kind in errors.TrueNegsError.__subclasses__()]
  codes += [errors.SAVED_RESTART, errors.SAVED_INTERRUPT]
  assert len(codes) == len(set(codes)) and not {0, 1} & set(codes)
