"""Checks rules for all source files on their syntax trees."""

import ast
import functools
import pathlib
import re

import packaging.requirements
import packaging.utils
import pytest

ROOT = pathlib.Path(__file__).parent.parent
PACKAGE = ROOT / "truenegs_jax"
# From the bottom up: a folder imports from itself and from lower layers.
LAYERS = (
  {"runtime"},
  {"config"},
  {"configs"},
  {"data", "models", "objectives", "stats"},
  {"workdir", "tasks"},
  {"synonyms", "weights", "report"},
  {"train", "torch"},
  {"finetune", "pretrain"},
  {"blimp", "corrections", "robustness"},
  {"study"},
  {"main"},
  {"__main__"},
)
LAYER = {name: i for i, layer in enumerate(LAYERS) for name in layer}
JAX = {"jax", "jaxlib", "flax", "optax", "orbax", "chex"}
SOURCES = {
  ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path.read_text()
  for path in sorted(PACKAGE.rglob("*.py"))
  if path.relative_to(PACKAGE).parts[0] != "configs"  # a link
}


@functools.cache
def trees() -> dict[str, ast.Module]:
  """Returns the syntax tree of each module."""
  return {module: ast.parse(source) for module, source in SOURCES.items()}


def functions() -> list[tuple[str, ast.FunctionDef]]:
  """Returns (module, node) for all functions."""
  return [
    (module, node)
    for module, tree in trees().items()
    for node in ast.walk(tree)
    if isinstance(node, ast.FunctionDef)
  ]


def imports(module: str) -> set[str]:
  """Returns the full dotted names that a module imports, at any depth."""
  names = set()
  for node in ast.walk(trees()[module]):
    if isinstance(node, ast.Import):
      names |= {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
      assert node.level == 0, "imports are absolute"
      names |= {f"{node.module}.{alias.name}" for alias in node.names}
  return names


def package_imports(module: str) -> set[str]:
  """Returns the imports from this package, without its name."""
  split = [name.partition(".") for name in imports(module)]
  return {rest for top, _, rest in split if top == "truenegs_jax"}


def test_folders_import_only_from_lower_layers():
  for module in trees().keys() - {"__init__"}:
    folder = module.split(".")[0]
    for name in package_imports(module):
      other = name.split(".")[0]
      lower = other == folder or LAYER[other] < LAYER[folder]
      assert lower, f"{module} imports {name}"


def test_only_verbs_and_tasks_take_the_whole_config():
  """All other functions get values or typed sections."""
  verbs = LAYERS[-2] | LAYERS[-1]
  for module, node in functions():
    args = (*node.args.args, *node.args.kwonlyargs)
    notes = [ast.unparse(arg.annotation) for arg in args if arg.annotation]
    if any("ConfigDict" in note for note in notes):
      is_task = module.endswith(".run")
      is_config = module.startswith("config.")
      assert is_task or is_config or module in verbs, f"{module}.{node.name}"


def test_imports_have_no_cycles_and_no_long_chains():
  graph = {
    module: {
      name if name in trees() else name.rpartition(".")[0]
      for name in package_imports(module)
    }
    for module in trees()
  }
  lengths = dict[str, int]()

  def measure(module, trail):
    """Returns the number of modules of the longest chain from a module."""
    assert module not in trail, " -> ".join([*trail, module])
    if module not in lengths:
      others = graph[module] & graph.keys()
      below = [measure(x, [*trail, module]) for x in others]
      lengths[module] = 1 + max(below, default=0)
    return lengths[module]

  for module in graph:
    assert measure(module, []) <= 14, module


def test_third_party_packages_stay_in_their_folders():
  for module in trees():
    folder = module.split(".")[0]
    tops = {name.split(".")[0] for name in imports(module)}
    if folder in ("data", "synonyms", "tasks", "torch"):  # without jax
      assert not tops & JAX, module
    if folder in ("data", "models", "objectives", "tasks", "synonyms"):
      assert "ml_collections" not in tops, module
    if folder != "models":
      assert not [x for x in imports(module) if "flax.linen" in x], module
    if module != "workdir.checkpoints":
      assert "orbax" not in tops, module


def public_definitions(body, prefix=""):
  """Yields the names and nodes of public classes, functions and methods."""
  for node in body:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
      if node.name.startswith("_") or "Protocol" in map(
        ast.unparse, getattr(node, "bases", [])
      ):
        continue
      yield prefix + node.name, node
      if isinstance(node, ast.ClassDef):
        yield from public_definitions(node.body, f"{node.name}.")


def test_public_definitions_have_docstrings():
  for module, tree in trees().items():
    assert ast.get_docstring(tree), module
    for name, node in public_definitions(tree.body):
      # flax calls a method `setup` like a constructor.
      is_exempt = name.endswith(".setup")
      assert is_exempt or ast.get_docstring(node), f"{module}.{name}"


def test_functions_have_at_most_80_lines_of_code():
  for module, node in functions():
    lines = node.end_lineno - node.lineno + 1
    if ast.get_docstring(node):
      lines -= node.body[0].end_lineno - node.body[0].lineno + 1
    assert lines <= 80, f"{module}.{node.name} has {lines}"


def test_booleans_are_keyword_only():
  for module, node in functions():
    for arg in (*node.args.posonlyargs, *node.args.args):
      is_bool = arg.annotation and ast.unparse(arg.annotation) == "bool"
      assert not is_bool, f"{module}.{node.name}: {arg.arg}"


def test_each_line_assigns_one_value_and_conditions_are_said_with_if():
  """Packed assignments and texts times a condition are read twice."""
  for module, tree in trees().items():
    for node in ast.walk(tree):
      if isinstance(node, ast.Assign):
        sides = (node.targets[0], node.value)
        is_packed = all(isinstance(x, ast.Tuple) for x in sides)
        assert not is_packed, f"{module}:{node.lineno}"
      if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for text, factor in (
          (node.left, node.right),
          (node.right, node.left),
        ):
          is_text = isinstance(getattr(text, "value", None), str)
          is_text |= isinstance(text, ast.JoinedStr)
          is_count = isinstance(getattr(factor, "value", None), int)
          assert is_count or not is_text, f"{module}:{node.lineno}"


# Statements that change the process, and who makes them: `main` and what it
# calls, workers of their own, and signals while a run or a study goes on.
CHANGES = re.compile(
  r"os\.environ(\[[^]]*\] =|\.(update|setdefault|pop)\()|sys\.\w+(\[.*\])? = "
  r"|resource\.setrlimit|jax\.config\.update|signal\.signal\(|os\.chdir"
  r"|\.setLevel\(|set_verbosity|\.disabled = |warnings\.filterwarnings"
)
COMMANDS = {
  *("main", "__main__", "pretrain.prepare_command", "config.flags"),
  *("runtime.errors", "runtime.cpu", "runtime.distributed", "runtime.paths"),
  *(
    "data.build",
    "data.trial",
    "train.guards",
    "study.parts",
    "synonyms.wordnet",
  ),
}


def test_only_commands_change_the_process():
  users = {module for module, x in SOURCES.items() if CHANGES.search(x)}
  assert users <= COMMANDS


# What runs code of its input, or could. The one config file that a user names
# is executed by runpy.
RUNS_CODE = {
  *("pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"),
  *("subprocess", "code", "runpy"),
}
CALLS_CODE = {
  *("eval", "exec", "compile", "__import__", "system", "popen"),
  *("read_pickle", "full_load", "unsafe_load"),
}


def test_no_code_is_read_from_files():
  """Refuses what executes its input; `SECURITY.md` promises it."""
  users = {
    (module, top)
    for module in trees()
    for top in {name.split(".")[0] for name in imports(module)} & RUNS_CODE
  }
  assert users == {
    ("config.load", "runpy"),
    ("data.trial", "subprocess"),  # itself, with limits
    ("study.parts", "subprocess"),  # truenegs_jax.main, without a shell
  }
  calls = [
    (module, node, getattr(node.func, "attr", getattr(node.func, "id", "")))
    for module, tree in trees().items()
    for node in ast.walk(tree)
    if isinstance(node, ast.Call)
  ]
  for module, node, name in calls:
    options = {x.arg: getattr(x.value, "value", None) for x in node.keywords}
    is_library = isinstance(node.func, ast.Attribute)
    is_method = is_library and name in ("eval", "compile")  # torch, re, jax
    assert is_method or name not in CALLS_CODE, module
    assert "trust_remote_code" not in options, module
    assert not options.get("allow_pickle", False), module
    if is_library and ast.unparse(node.func) == "torch.load":
      assert options.get("weights_only") is True, module
    # NLTK's packages may have pickles, which `nltk.data.load` opens. Its
    # downloader only writes files.
    if is_library and ast.unparse(node.func).startswith("nltk."):
      assert name not in ("load", "download"), module
    if name == "Downloader":
      assert module == "synonyms.wordnet"


def defined_name(node: ast.AST) -> str:
  """Returns the name that a node defines, or ""."""
  if isinstance(node, ast.FunctionDef | ast.ClassDef):
    return node.name
  if isinstance(node, ast.arg):
    return node.arg
  if isinstance(getattr(node, "ctx", None), ast.Store):
    return getattr(node, "id", getattr(node, "attr", ""))
  return ""


def test_docstrings_are_statements_and_names_specific():
  """In all files of package, configs and tests."""
  root = PACKAGE.parent.resolve()
  folders = ("truenegs_jax", "configs", "benchmarks", "tests")
  paths = {p.resolve() for name in folders for p in (root / name).rglob("*.py")}
  vague = {"of", "said", "asked", "found", "made", "whole", "here"}
  for file in paths:
    path = str(file.relative_to(root))
    for node in ast.walk(ast.parse(file.read_text())):
      if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
        line = (ast.get_docstring(node, clean=False) or "").partition("\n")[0]
        is_question = line.startswith("What") or line.endswith("?")
        assert not is_question, f"{path}: {line}"
      assert defined_name(node) not in vague, (path, node.lineno)


def parse_requirements(lines, environment):
  """Returns pairs of name and specifier of what applies in an environment."""
  parsed = map(packaging.requirements.Requirement, lines)
  return [
    (packaging.utils.canonicalize_name(x.name), x.specifier)
    for x in parsed
    if not x.marker or x.marker.evaluate(environment)
  ]


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_requirements_have_one_pin_that_they_allow(version):
  environment = {
    "python_version": version,
    "python_full_version": f"{version}.9",
    "sys_platform": "linux",
    "platform_machine": "x86_64",
  }
  lines = (ROOT / "launch" / "constraints.txt").read_text().splitlines()
  pins = parse_requirements([x for x in lines if x[0] != "#"], environment)
  assert len(dict(pins)) == len(pins)
  (setup,) = (
    node
    for node in ast.walk(ast.parse((ROOT / "setup.py").read_text()))
    if getattr(getattr(node, "func", None), "attr", "") == "setup"
  )
  keywords = {x.arg: x.value for x in setup.keywords}
  extras = ast.literal_eval(keywords["extras_require"])
  del extras["torch"]
  required = ast.literal_eval(keywords["install_requires"])
  for name, allowed in parse_requirements(
    sum(extras.values(), required), environment
  ):
    (pin,) = dict(pins)[name]
    assert pin.operator == "==" and allowed.contains(pin.version), name
  # What the GPU plugins load, which setup.py does not name.
  for cuda in "12", "13":
    for part in "plugin", "pjrt":
      assert dict(pins)[f"jax-cuda{cuda}-{part}"] == dict(pins)["jax"]
    assert {f"nvidia-cudnn-cu{cuda}", f"nvidia-nccl-cu{cuda}"} <= {*dict(pins)}
