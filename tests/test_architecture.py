"""The house's own rules: which way dependencies point, what importing may do, and what a module may hold.

A rule is a function from a module's source to complaints. Each is tried on every module of both packages, and
on a planted violation, so that a rule that has gone blind fails here.
"""

import ast
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("trainer", "otel_training")
MAX_LINES = 400

# Where code of others may raise anything and training must go on. Everything else names what it catches.
BLANKET_EXCEPTS = {
    "otel_training.guard",  # the one guard of the bridge
    "trainer.compile",  # torch.compile falls back to the eager model
    "trainer.diloco.store",  # a store that is away costs an upload, not the run
    "trainer.isolation",  # hooks of the log, and values that payloads bring along
}

TRAINER_NAMES = {
    "Trainer", "Callback", "MetricLogger", "TrainingHook", "CallbackList", "on_event", "memory_usage_bytes",
    "WandbHook", "TensorboardHook", "load_config", "build_logger", "build_runtime", "train_from_config",
}  # fmt: skip
OTEL_TRAINING_NAMES_NOW = {
    "OTelHook",
    "Telemetry",
    "start",
    "DeviceStatsMonitor",
    "MisconfigurationException",
}
OTEL_TRAINING_NAMES_LATER = {"instrument"}

# A subclass needs its base class at import, and that brings torch along: who imports one of these wants both.
OF_A_FRAMEWORK = {"otel_training.integrations.lightning", "otel_training.integrations.transformers"}


@dataclass(frozen=True)
class Module:
    """A module as source, never imported here."""

    name: str
    source: str

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source)


def all_modules() -> list[Module]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return [Module(module_name(path), path.read_text(encoding="utf-8")) for path in paths]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported_names(node: ast.AST, module: Module) -> list[str]:
    """The absolute dotted names that a statement or call imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            base = ".".join(part for part in (*module.name.split(".")[: -node.level], base) if part)
        return [f"{base}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = ast.unparse(node.func).rpartition(".")[2]
        if called in ("import_module", "__import__", "find_spec") and isinstance(node.args[0].value, str):
            return [node.args[0].value]
    return []


def runs_at_import(tree: ast.Module) -> Iterator[ast.AST]:
    """Every node that runs when the module is imported: no function bodies, nothing for type checkers."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += [*node.decorator_list, *node.args.defaults]
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            waiting += node.orelse
        elif not isinstance(node, ast.Lambda):
            waiting += ast.iter_child_nodes(node)


def imports_from(nodes: Iterator[ast.AST], module: Module, *banned: str) -> list[str]:
    names = [name for node in nodes for name in imported_names(node, module)]
    return [
        f"imports {name}" for name in names if any(f"{name}.".startswith(f"{package}.") for package in banned)
    ]


def in_catalog(module: Module) -> bool:
    return f"{module.name}.".startswith("otel_training.catalog.")


# ------------------------------------------------------------------------------------------------ the rules


def data_flows_one_way(module: Module) -> list[str]:
    banned = {"trainer": ("opentelemetry", "otel_training"), "otel_training": ("trainer",)}[module.package]
    return imports_from(ast.walk(module.tree), module, *banned)


def torch_is_imported_late(module: Module) -> list[str]:
    if module.package != "otel_training":
        return []
    return imports_from(runs_at_import(module.tree), module, "torch", "torch_xla")


def catalog_and_state_are_plain(module: Module) -> list[str]:
    if not (in_catalog(module) or module.name == "otel_training.state"):
        return []
    return imports_from(ast.walk(module.tree), module, "opentelemetry", "prometheus_client", "torch")


def modules_are_short(module: Module) -> list[str]:
    lines = module.source.count("\n")
    return [f"has {lines} lines, more than {MAX_LINES}"] if lines > MAX_LINES else []


def public_names_have_docstrings(module: Module) -> list[str]:
    def undocumented(body: list[ast.stmt], prefix: str) -> Iterator[str]:
        for node in body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if node.name.startswith("_"):
                continue
            # Overloads and setters are documented where the thing itself is.
            decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
            if not ast.get_docstring(node) and not decorators & {"overload", "setter"}:
                yield f"{prefix}{node.name} has no docstring"
            if isinstance(node, ast.ClassDef):
                yield from undocumented(node.body, f"{prefix}{node.name}.")

    complaints = list(undocumented(module.tree.body, ""))
    if not ast.get_docstring(module.tree):
        complaints.append("the module has no docstring")
    return complaints


def swallowed_exceptions(module: Module) -> list[str]:
    blanket = re.compile(r"\b(BaseException|Exception)\b")
    complaints = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ExceptHandler) and (
            node.type is None or blanket.search(ast.unparse(node.type))
        ):
            goes_up = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            complaints += [] if goes_up else [f"line {node.lineno} swallows every exception"]
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "suppress":
            caught = ", ".join(ast.unparse(argument) for argument in node.args)
            complaints += [f"line {node.lineno} suppresses every exception"] if blanket.search(caught) else []
    return complaints


def blanket_excepts_are_where_they_belong(module: Module) -> list[str]:
    return [] if module.name in BLANKET_EXCEPTS else swallowed_exceptions(module)


def metric_names_stand_in_the_catalog(module: Module) -> list[str]:
    if in_catalog(module):
        return []
    texts = [
        node
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    metric = re.compile(r"training[._][a-z0-9_.]*")
    return [f"line {text.lineno} spells {text.value!r}" for text in texts if metric.fullmatch(text.value)]


VIOLATIONS: list[tuple[Callable[[Module], list[str]], str, str]] = [
    (data_flows_one_way, "trainer.metrics", "def f():\n    import opentelemetry.metrics"),
    (data_flows_one_way, "trainer.metrics", "from otel_training import start"),
    (
        data_flows_one_way,
        "trainer.runtime",
        "import importlib\nimportlib.import_module('otel_training.hook')",
    ),
    (data_flows_one_way, "otel_training.hook", "from trainer.events import EVENTS"),
    (torch_is_imported_late, "otel_training.devices.cuda", "import torch"),
    (
        torch_is_imported_late,
        "otel_training.devices.cuda",
        "try:\n    from torch import cuda\nexcept ImportError: pass",
    ),
    (torch_is_imported_late, "otel_training.devices.xla", "class Reader:\n    import torch_xla.core"),
    (catalog_and_state_are_plain, "otel_training.state", "def f():\n    from opentelemetry import metrics"),
    (catalog_and_state_are_plain, "otel_training.catalog.metrics", "import prometheus_client.core"),
    (modules_are_short, "trainer.cli", "x = 1\n" * (MAX_LINES + 1)),
    (public_names_have_docstrings, "trainer.cli", '"""A module."""\ndef main(): pass'),
    (
        public_names_have_docstrings,
        "trainer.cli",
        '"""A module."""\nclass A:\n    """A."""\n    def run(self): pass',
    ),
    (public_names_have_docstrings, "trainer.cli", "x = 1"),
    (
        blanket_excepts_are_where_they_belong,
        "trainer.cli",
        "try: pass\nexcept Exception as error: print(error)",
    ),
    (
        blanket_excepts_are_where_they_belong,
        "trainer.cli",
        "try: pass\nexcept (OSError, BaseException): pass",
    ),
    (blanket_excepts_are_where_they_belong, "trainer.cli", "try: pass\nexcept: pass"),
    (
        blanket_excepts_are_where_they_belong,
        "trainer.cli",
        "import contextlib\ncontextlib.suppress(Exception)",
    ),
    (metric_names_stand_in_the_catalog, "otel_training.recorder", "LOSS = 'training.loss'"),
    (metric_names_stand_in_the_catalog, "otel_training.recorder", "name = f'training.{field}'"),
    (metric_names_stand_in_the_catalog, "trainer.cli", "page = {'training_steps_total': 1}"),
]
RULES = list(dict.fromkeys(rule for rule, _, _ in VIOLATIONS))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_holds_in_every_module(rule):
    complaints = [f"{module.name}: {complaint}" for module in all_modules() for complaint in rule(module)]
    assert complaints == []


@pytest.mark.parametrize(("rule", "name", "source"), VIOLATIONS)
def test_rule_sees_a_violation(rule, name, source):
    assert rule(Module(name, source))


@pytest.mark.parametrize(
    ("rule", "name", "source"),
    [
        (torch_is_imported_late, "otel_training.values", "def f():\n    import torch"),
        (
            torch_is_imported_late,
            "otel_training.values",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch",
        ),
        (data_flows_one_way, "otel_training.hook", "import trainer_of_somebody_else"),
        (
            blanket_excepts_are_where_they_belong,
            "trainer.checkpoint",
            "try: pass\nexcept BaseException:\n    raise",
        ),
    ],
)
def test_rule_lets_the_allowed_pass(rule, name, source):
    assert rule(Module(name, source)) == []


def test_no_place_for_a_blanket_except_is_listed_in_vain():
    listed = [module for module in all_modules() if module.name in BLANKET_EXCEPTS]
    assert [module.name for module in listed if not swallowed_exceptions(module)] == []


# ---------------------------------------------------------------------------------------------- importing

# Runs in a fresh interpreter and notes what importing starts, though it may be over by then.
PROBE = """
import importlib, json, sys, threading
started = []
WATCHED = {"socket.__new__", "socket.bind", "socket.connect", "subprocess.Popen", "os.fork"}
sys.addaudithook(lambda event, args: started.append(event) if event in WATCHED else None)
start = threading.Thread.start
threading.Thread.start = lambda thread: (started.append("thread"), start(thread))
for name in sys.argv[1:]:
    importlib.import_module(name)
json.dump({"started": started, "modules": sorted(sys.modules)}, sys.stdout)
"""


def import_fresh(*names: str, folder: Path = ROOT) -> tuple[list[str], set[str]]:
    """Import modules in a new process, ``folder`` first on its path; return what it started and loaded."""
    code = f"import sys; sys.path[:0] = [{str(folder)!r}, {str(ROOT)!r}]\n{PROBE}"
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    return seen["started"], set(seen["modules"])


def importable(package: str) -> list[str]:
    """The modules of a package, but for those that are programs or import the framework that they extend."""
    names = [module.name for module in all_modules() if module.package == package]
    return [name for name in names if not name.endswith("__main__") and name not in OF_A_FRAMEWORK]


def loaded(modules: set[str], *names: str) -> list[str]:
    return sorted(module for module in modules if any(f"{module}.".startswith(f"{name}.") for name in names))


def test_importing_otel_training_starts_nothing_and_loads_nothing_heavy():
    started, modules = import_fresh("otel_training")
    assert started == []
    assert "otel_training" in modules
    heavy = (
        "torch",
        "opentelemetry.sdk",
        "opentelemetry.exporter",
        "grpc",
        "prometheus_client",
        "http.server",
        "psutil",
    )
    assert loaded(modules, *heavy, "trainer") == []


def test_no_module_of_otel_training_starts_anything_or_loads_torch_when_imported():
    started, modules = import_fresh(*importable("otel_training"))
    assert started == []
    assert loaded(modules, "torch", "trainer") == []


def test_importing_trainer_starts_nothing_and_loads_no_torch():
    started, modules = import_fresh("trainer")
    assert started == []
    assert loaded(modules, "torch", "opentelemetry", "otel_training") == []


def test_no_module_of_trainer_starts_anything_or_loads_telemetry_when_imported():
    started, modules = import_fresh(*importable("trainer"))
    assert started == []
    assert (
        loaded(modules, "opentelemetry", "otel_training", "prometheus_client", "wandb", "tensorboard") == []
    )


@pytest.mark.parametrize(
    ("source", "event"),
    [
        ("import socket; socket.socket().close()", "socket.__new__"),
        ("import threading; threading.Thread(target=print).start()", "thread"),
    ],
)
def test_the_probe_sees_what_a_module_starts(tmp_path, source, event):
    (tmp_path / "busy.py").write_text(source)
    started, _ = import_fresh("busy", folder=tmp_path)
    assert event in started


def test_a_users_own_trainer_module_does_not_break_otel_training(tmp_path):
    (tmp_path / "trainer.py").write_text("raise RuntimeError('imported by accident')")
    _, modules = import_fresh(*importable("otel_training"), folder=tmp_path)
    assert "otel_training.testing" in modules
    assert "trainer" not in modules


# ------------------------------------------------------------------------------------------- public names


def test_trainer_exports_the_names_of_the_design():
    package = importlib.import_module("trainer")
    assert set(package.__all__) == TRAINER_NAMES
    assert [name for name in package.__all__ if not hasattr(package, name)] == []


def test_otel_training_exports_the_names_of_the_design():
    package = importlib.import_module("otel_training")
    assert set(package.__all__) == OTEL_TRAINING_NAMES_NOW
    assert [name for name in package.__all__ if not hasattr(package, name)] == []
    # A name that has arrived belongs into the set above and into __all__.
    assert [name for name in OTEL_TRAINING_NAMES_LATER if hasattr(package, name)] == []


@pytest.mark.parametrize("name", sorted(OF_A_FRAMEWORK))
def test_a_module_of_a_framework_has_the_callback_of_the_design_and_needs_no_trainer(name):
    code = f"import sys; from {name} import OTelCallback; assert 'trainer' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_typed(package):
    assert (ROOT / package / "py.typed").is_file()
