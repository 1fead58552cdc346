"""Rules that hold for the whole of the source, read off its syntax trees."""

import ast
import functools
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "truenegs_jax"

# docs: architecture, section 2. A name ending in "." is a folder; the longest
# entry that fits decides. -1: what every layer may import.
LAYERS = {
  "__init__": -1,
  "errors": -1,
  "randomness": -1,
  "cache": -1,
  "distributed": -1,
  "cpu": -1,
  "joining": 0,
  "objectives.": 0,
  "objectives.electra": 2,
  "objectives.mlm": 2,
  "models.": 0,
  "models.pretrain": 1,
  "models.downstream": 1,
  "data.": 1,
  "data.tokenizer": 0,
  "data.reading": 0,
  "data.documents": 0,
  "data.compression": 0,
  "data.files": 0,
  "data.lines": 0,
  "data.arrow": 0,
  "data.hub": 0,
  "data.sources": 0,
  "data.layouts": 0,
  "data.segments": 0,
  "tasks.": 1,
  "tasks.examples": 0,
  "synonyms.": 1,
  "synonyms.__main__": 6,
  "train.sharding": 3,
  "train.optim": 3,
  "train.checkpoint": 3,
  "train.metrics": 3,
  "train.speed": 3,
  "train.writers": 3,
  "train.guards": 3,
  "train.step": 4,
  "train.own_table": 5,
  "train.build": 5,
  "train.checks": 5,
  "train.plan": 5,
  "train.startup": 5,
  "train.loop": 5,
  "evals.": 5,
  "evals.scoring": 0,
  "tensor_names": 4,
  "huggingface": 4,
  "model_card": 5,
  "parity": 5,
  "config_flag": 5,
  "progress": 5,
  "preparation": 5,
  "saved": 5,
  "weights.": 5,
  "weights.arrays": 0,
  "weights.files": 0,
  "weights.hub": 0,
  "weights.safetensors_files": 0,
  "weights.tensor_bundle": 0,
  "subject": 5,
  "dry_run": 5,
  "tables": 5,
  "main": 6,
  "prepare": 6,
  "pretraining": 6,
  "finetuning": 6,
  "task_export": 6,
  "finetune.": 5,
  "finetune.runs": 6,
  "finetune.seeds": 0,
  "finetune.bootstrap": 0,
  "finetune.reference": 0,
  "corrections": 6,
  "export": 6,
  "conversion": 6,
  "delivery": 6,
  "report": 6,
  "status": 6,
}
NO_JAX = {"jax", "jaxlib", "flax", "optax", "orbax", "chex"}
MAX_FUNCTION, MAX_LOOP, MAX_FILE = 60, 150, 300


def module_name(path: pathlib.Path) -> str:
  return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


@functools.cache
def sources() -> dict[str, ast.Module]:
  """Module name, as in LAYERS, -> syntax tree; `configs` is a link."""
  return {
    module_name(path): ast.parse(path.read_text())
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.relative_to(PACKAGE).parts[0] != "configs"
  }


def files() -> list[pathlib.Path]:
  found = [
    path
    for folder in ("truenegs_jax", "configs", "tests", "benchmarks")
    for path in sorted((ROOT / folder).rglob("*.py"))
  ]
  return [p for p in found if PACKAGE / "configs" not in p.parents]


def imports(tree: ast.Module) -> set[str]:
  """Full dotted names of all that a module imports, anywhere in it."""
  names = set()
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, "imports are absolute here"
      names |= {f"{node.module}.{alias.name}" for alias in node.names}
  return names


def our_imports(tree: ast.Module) -> set[str]:
  """Modules of ours among the imports, named as in LAYERS."""
  known = set(sources())
  ours = set()
  for name in imports(tree):
    if name.startswith("truenegs_jax."):
      name = name.removeprefix("truenegs_jax.")
      if name not in known and f"{name}.__init__" not in known:
        name = name.rpartition(".")[0] or name  # a member of a module
      ours.add(name)
  return ours - {f"{n}" for n in ours if f"{n}.__init__" in known}


def layer(module: str) -> int:
  if module.endswith(".__init__"):
    return -1
  fits = [
    n for n in LAYERS if n == module or (n[-1] == "." and module.startswith(n))
  ]
  assert fits, f"{module} stands in no layer: add it to LAYERS"
  return LAYERS[max(fits, key=len)]


def functions(tree: ast.AST):
  kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
  return [node for node in ast.walk(tree) if isinstance(node, kinds)]


@pytest.mark.parametrize("module", sources())
def test_imports_go_down_the_layers(module):
  for name in our_imports(sources()[module]):
    if name.split(".")[0] != "configs":
      assert layer(name) <= layer(module), f"{module} imports {name}"


def test_no_modules_import_one_another_in_a_circle():
  graph = {name: our_imports(tree) for name, tree in sources().items()}
  done = set()

  def visit(name, trail):
    assert name not in trail, " -> ".join([*trail, name])
    if name not in done:
      for other in graph.get(name, ()):
        visit(other, [*trail, name])
      done.add(name)

  for name in graph:
    visit(name, [])


@pytest.mark.parametrize("module", sources())
def test_folders_keep_to_what_they_may_know(module):
  names = imports(sources()[module])
  tops = {name.split(".")[0] for name in names}
  folder = module.split(".")[0]
  if folder in ("data", "synonyms", "tasks") or module == "evals.scoring":
    assert not tops & NO_JAX
  if folder == "objectives":
    assert not any(n.startswith("truenegs_jax.models") for n in names)
  if folder != "models":
    assert not any(n.startswith("flax.linen") for n in names)
  if folder != "train" or module != "train.checkpoint":
    assert "orbax" not in tops
  assert not any(n.startswith("truenegs_jax.configs") for n in names)
  if layer(module) < 5 and folder != "train":
    assert "ml_collections" not in tops


def is_public(node) -> bool:
  return not node.name.startswith("_")


def public_definitions(body, *, inside=""):
  """Public classes, functions and methods, with their names."""
  for node in body:
    if isinstance(node, ast.FunctionDef) and is_public(node):
      yield f"{inside}{node.name}", node
    if isinstance(node, ast.ClassDef) and is_public(node):
      if "Protocol" in map(ast.unparse, node.bases):
        continue  # says what others document
      yield f"{inside}{node.name}", node
      yield from public_definitions(node.body, inside=f"{node.name}.")


@pytest.mark.parametrize("module", sources())
def test_all_that_is_public_has_a_docstring(module):
  tree = sources()[module]
  assert ast.get_docstring(tree), "the module"
  # `setup` is flax's name for a constructor.
  missing = [
    name
    for name, node in public_definitions(tree.body)
    if not ast.get_docstring(node) and not name.endswith(".setup")
  ]
  assert not missing


@pytest.mark.parametrize(
  "path", files(), ids=lambda p: str(p.relative_to(ROOT))
)
def test_functions_and_files_are_short(path):
  text = path.read_text()
  assert len(text.splitlines()) <= MAX_FILE or "tests" in path.parts
  limit = MAX_LOOP if path.name == "loop.py" else MAX_FUNCTION
  too_long = [
    f"{node.name}: {node.end_lineno - node.lineno + 1}"
    for node in functions(ast.parse(text))
    if node.end_lineno - node.lineno >= limit
    and node.name != "get_config"  # a table of values
  ]
  assert not too_long


@pytest.mark.parametrize("module", sources())
def test_no_boolean_is_passed_by_position(module):
  for node in functions(sources()[module]):
    positional = [*node.args.posonlyargs, *node.args.args]
    defaults = node.args.defaults
    for arg, default in zip(
      positional[len(positional) - len(defaults) :], defaults, strict=True
    ):
      is_bool = isinstance(default, ast.Constant) and isinstance(
        default.value, bool
      )
      assert not is_bool, f"{node.name}: {arg.arg}"
    for arg in positional:
      annotated = isinstance(arg.annotation, ast.Name) and arg.annotation.id
      assert annotated != "bool", f"{node.name}: {arg.arg}"


def test_no_module_is_named_for_nothing_in_particular():
  vague = {"utils", "util", "helpers", "common", "lib", "misc"}
  names = {name.split(".")[-1] for name in sources()}
  assert not names & vague


def test_only_modules_and_errors_are_inherited_from():
  bases = {
    ast.unparse(base)
    for tree in sources().values()
    for node in ast.walk(tree)
    if isinstance(node, ast.ClassDef)
    for base in node.bases
  }
  allowed = {"nn.Module", "NamedTuple", "Exception", "ValueError"}
  allowed |= {"Protocol", "Hashable"}
  errors = {
    node.name
    for node in sources()["errors"].body
    if isinstance(node, ast.ClassDef)
  }
  assert bases <= allowed | errors


def test_every_error_has_an_exit_code_of_its_own():
  from truenegs_jax.runtime import errors as errors_lib

  kinds = errors_lib.TrueNegsError.__subclasses__()
  codes = [kind.exit_code for kind in kinds]
  codes += [errors_lib.SAVED_RESTART, errors_lib.SAVED_INTERRUPT]
  assert len(codes) == len(set(codes)) and not {0, 1} & set(codes)
