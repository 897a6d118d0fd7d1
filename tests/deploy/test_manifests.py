"""The files of `deploy`: valid for Docker Compose and Kubernetes, and their hardwon commands start here, too."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from hardwon.apps.cli.app import app
from hardwon.trainers.config.loading import load

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose.yaml"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
POD_KINDS = {"Deployment", "StatefulSet"}
QUANTITY = re.compile(r"\d+(\.\d+)?(m|Ki|Mi|Gi|Ti)?")
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*)|:\?[^}]*)?\}")


def read_compose() -> dict[str, Any]:
    text = VARIABLE.sub(lambda found: found[2] or "given", COMPOSE.read_text(encoding="utf-8"))
    compose: dict[str, Any] = yaml.safe_load(text)
    return compose


def read_objects() -> list[dict[str, Any]]:
    return [one for file in MANIFESTS for one in yaml.safe_load_all(file.read_text(encoding="utf-8"))]


def list_pods() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Each pod template with the name of its object and the object itself."""
    found = []
    for one in read_objects():
        name = one["metadata"]["name"]
        if one["kind"] in POD_KINDS:
            found.append((name, one["spec"]["template"], one))
        if one["kind"] == "RayJob":
            cluster = one["spec"]["rayClusterSpec"]
            groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
            found += [(name, group["template"], one) for group in groups]
    return found


def list_commands() -> list[list[str]]:
    """The arguments of every `hardwon` in the files."""
    compose = read_compose()["services"]
    commands = [service["command"] for service in compose.values() if service["image"] == "hardwon"]
    for _, pod, _ in list_pods():
        commands += [
            each["args"] for each in pod["spec"]["containers"] if each["image"] == "hardwon" and "args" in each
        ]
    jobs = [one["spec"]["entrypoint"] for one in read_objects() if one["kind"] == "RayJob"]
    return commands + [shlex.split(job)[1:] for job in jobs]


# -- Docker Compose -----------------------------------------------------------------------------------


def test_compose_names_only_what_it_defines():
    compose = read_compose()
    services, volumes = compose["services"], compose["volumes"]
    assert {"postgres", "vllm", "serve", "trainer"} == {*services}
    for name, service in services.items():
        assert {*service} <= {
            *("image", "build", "command", "environment", "depends_on", "volumes", "ports", "healthcheck", "restart"),
            *("profiles", "ipc", "deploy", "shm_size"),
        }, name
        assert {volume.partition(":")[0] for volume in service.get("volumes", ())} <= {*volumes}
        for other, condition in service.get("depends_on", {}).items():
            assert condition == {"condition": "service_healthy"}
            assert "healthcheck" in services[other]
        assert all(isinstance(word, str) for word in service.get("command", ()))
        assert all(isinstance(value, str) for value in service.get("environment", {}).values())
    assert not re.search(r"PASSWORD: (?!\$\{)", COMPOSE.read_text(encoding="utf-8"))


def test_the_image_has_the_extras_of_the_commands():
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    extras = re.search(r"\.\[([\w,]+)\]", text)
    assert extras is not None
    assert {"agent", "postgres", "train", "ray", "games"} <= {*extras[1].split(",")}
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(re.search(rf"(?m)^{extra} = \[", pyproject) for extra in extras[1].split(","))


# -- Kubernetes ---------------------------------------------------------------------------------------


def test_the_image_has_no_library_environment_or_history_of_a_checkout():
    """It copies the folder, in which people work."""
    left_out = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {".git", ".venv*", ".env*", "models", "runs", "**/*.db", "**/node_modules"} <= set(left_out)
    user = re.search(r"^USER (.*)$", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), re.M)
    assert user
    assert user[1].isdigit(), "runAsNonRoot cannot check a name"


def test_objects_have_names_versions_and_kinds():
    versions = {
        "Service": "v1",
        "Deployment": "apps/v1",
        "StatefulSet": "apps/v1",
        "RayJob": "ray.io/v1",
    }
    objects = read_objects()
    assert {one["kind"] for one in objects} == {*versions}
    for one in objects:
        assert one["apiVersion"] == versions[one["kind"]]
        assert NAME.fullmatch(one["metadata"]["name"])
        assert {*one} == {"apiVersion", "kind", "metadata", "spec"}
    assert len({(one["kind"], one["metadata"]["name"]) for one in objects}) == len(objects)


@pytest.mark.parametrize(("name", "pod", "owner"), list_pods())
def test_containers_are_complete(name, pod, owner):
    for container in pod["spec"]["containers"]:
        assert NAME.fullmatch(container["name"])
        assert container["image"]
        assert {"cpu", "memory"} <= {*container["resources"]["requests"]}
        assert "memory" in container["resources"]["limits"]
        for amount in (*container["resources"]["requests"].values(), *container["resources"]["limits"].values()):
            assert QUANTITY.fullmatch(amount)
        for variable in container.get("env", ()):
            assert isinstance(variable.get("value", ""), str)
            assert "PASSWORD" not in variable["name"] or "secretKeyRef" in variable["valueFrom"]
        claims = [claim["metadata"]["name"] for claim in owner["spec"].get("volumeClaimTemplates", ())]
        mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
        assert mounted <= {volume["name"] for volume in pod["spec"].get("volumes", ())} | {*claims}


def test_services_find_their_pods_and_ports():
    objects = read_objects()
    ports = {}
    for one in objects:
        if one["kind"] in POD_KINDS:
            labels = one["spec"]["template"]["metadata"]["labels"]
            assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()
            containers = one["spec"]["template"]["spec"]["containers"]
            ports[labels["app"]] = {port["containerPort"] for each in containers for port in each["ports"]}
    for one in objects:
        if one["kind"] == "Service":
            assert {port["port"] for port in one["spec"]["ports"]} <= ports[one["spec"]["selector"]["app"]]


def test_the_ray_cluster_has_a_cpu_for_every_worker():
    (job,) = (one for one in read_objects() if one["kind"] == "RayJob")
    groups = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    cpus = sum(
        group["replicas"] * int(group["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"])
        for group in groups
    )
    (workers,) = re.findall(r"rollouts\.workers=(\d+)", job["spec"]["entrypoint"])
    assert cpus >= int(workers)


# -- the commands -------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", list_commands(), ids=lambda command: " ".join(command[:2]))
def test_commands_are_understood(command):
    """The settings of a training run are read as it reads them; any other command is parsed up to its help."""
    if command[0] != "train":
        result = CliRunner().invoke(app, [*command, "--help"])
        assert result.exit_code == 0, result.output
        options = {word for word in command if word.startswith("--")}
        assert options <= {*re.findall(r"--[\w-]+", result.output)}
        return
    file = ROOT / command[1].removeprefix("/opt/hardwon/")
    config = load(file, [word for word in command[2:] if not word.startswith("--")])
    assert config.rollouts.workers > 0
    assert config.engine.url is not None
    assert config.library.path is not None
    assert config.library.path.startswith("postgresql://")
