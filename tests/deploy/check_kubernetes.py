"""Every kustomization of deploy/kubernetes: renders, fits the strict schemas, and keeps the rules that only a server knows.

Last line: "N passed, N failed, N skipped". Run by run.sh, which makes the venv.
"""
import ast
import copy
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import kubernetes_validate
import yaml
from kubeflow_trainer_api import models

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERSIONS = ("1.31.0", "1.33.0", "1.35.0", "1.37.0")
PYDANTIC = {"JobSet": "JobsetV1alpha2JobSet", "TrainJob": "TrainerV1alpha1TrainJob",
            "ClusterTrainingRuntime": "TrainerV1alpha1ClusterTrainingRuntime"}
KNOWN_CODES = {int(code) for code in re.findall(r"inline constexpr int k\w+ = (\d+);",
                                                (ROOT / "common/exit_code.h").read_text())}


def render(folder):
    with tempfile.TemporaryDirectory() as copy_of:
        tree = pathlib.Path(copy_of) / "kubernetes"
        shutil.copytree(ROOT / "deploy/kubernetes", tree)
        (tree / "rendezvous/token").write_text("a secret of this test\n")  # the user makes his own
        done = subprocess.run(["kubectl", "kustomize", tree / folder], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError("kubectl kustomize: " + done.stderr.strip())
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def lost(given, kept, path=""):
    """What a model dropped: pydantic keeps silent about keys that it does not know."""
    if isinstance(given, dict):
        for key, value in given.items():
            if not isinstance(kept, dict) or key not in kept:
                yield f"{path}.{key}: not in the schema"
            else:
                yield from lost(value, kept[key], f"{path}.{key}")
    elif isinstance(given, list):
        for i, value in enumerate(given):
            if not isinstance(kept, list) or i >= len(kept):
                yield f"{path}[{i}]: not in the schema"
            else:
                yield from lost(value, kept[i], f"{path}[{i}]")


def core(document):
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{version}: {'.'.join(map(str, error.path))}: {error.message}"


class OpenapiModels:
    """Kubeflow's models of version 1: tables of attributes in Python sources, which are read and not run."""

    def __init__(self):
        # Not found by importlib: the package's own dependencies are not installed.
        found = [pathlib.Path(p) / "kubeflow/training/models" for p in sys.path]
        self.folder = next(p for p in found if p.is_dir())
        self.tables = {}
        for path in self.folder.glob("*.py"):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    self.tables[node.name] = {t.id: ast.literal_eval(a.value) for a in node.body if isinstance(a, ast.Assign)
                                              for t in a.targets if isinstance(t, ast.Name)
                                              and t.id in ("openapi_types", "attribute_map")}

    def check(self, value, kind, path):
        if (inner := re.fullmatch(r"dict\(str, (.*)\)", kind)) and isinstance(value, dict):
            for key, item in value.items():
                yield from self.check(item, inner[1], f"{path}.{key}")
        elif kind in self.tables:
            table = self.tables[kind]
            types = {json: table["openapi_types"][name] for name, json in table["attribute_map"].items()}
            for key, item in value.items():
                if key not in types:
                    yield f"{path}.{key}: not in the schema"
                else:
                    yield from self.check(item, types[key], f"{path}.{key}")
        elif kind in ("str", "int", "bool") and not isinstance(value, {"str": str, "int": int, "bool": bool}[kind]):
            yield f"{path}: {value!r} is no {kind}"


def templates(document):
    """(where, pod template, is it a part of a job) of everything that makes pods."""
    kind, spec = document["kind"], document.get("spec", {})
    if kind in ("Job", "Deployment"):
        yield kind, spec["template"], kind == "Job"
    elif kind in ("JobSet", "ClusterTrainingRuntime"):
        for job in (spec if kind == "JobSet" else spec["template"]["spec"])["replicatedJobs"]:
            yield job["name"], job["template"]["spec"]["template"], True
    elif kind == "PyTorchJob":
        for name, replica in spec["pytorchReplicaSpecs"].items():
            yield name, replica["template"], True


def jobs(document):
    if document["kind"] == "Job":
        yield document["metadata"]["name"], document["spec"]
    elif document["kind"] in ("JobSet", "ClusterTrainingRuntime"):
        spec = document["spec"] if document["kind"] == "JobSet" else document["spec"]["template"]["spec"]
        for job in spec["replicatedJobs"]:
            yield f"{document['metadata']['name']}-{job['name']}-0", job["template"]["spec"]


def job_rules(name, spec):
    pod = spec["template"]["spec"]
    containers = {c["name"] for c in pod["containers"]}
    policy = spec.get("podFailurePolicy")
    if policy and pod.get("restartPolicy") != "Never":
        yield "podFailurePolicy needs restartPolicy: Never"
    if policy and spec.get("podReplacementPolicy", "Failed") != "Failed":
        yield "podFailurePolicy needs podReplacementPolicy: Failed"
    seen = set()
    for rule in policy["rules"] if policy else ():
        if ("onExitCodes" in rule) == ("onPodConditions" in rule):
            yield "a rule has either exit codes or conditions"
        codes = rule.get("onExitCodes")
        if rule["action"] == "FailIndex" and "backoffLimitPerIndex" not in spec:
            yield "FailIndex needs backoffLimitPerIndex"
        if not codes:
            continue
        if codes["containerName"] not in containers:
            yield f"no container {codes['containerName']}"
        for code in codes["values"]:
            if code == 0 or (code not in KNOWN_CODES and code <= 128):
                yield f"{code} is no exit code of ddprun"
            if code in seen:
                yield f"{code} stands in two rules: only the first counts"
            seen.add(code)
    if spec.get("completionMode") == "Indexed":
        if len(f"{name}-{spec['completions'] - 1}") > 63:
            yield "the pods' host names are too long"
    elif "backoffLimitPerIndex" in spec or "maxFailedIndexes" in spec:
        yield "limits per index need completionMode: Indexed"


def pod_rules(template, trains):
    pod = template["spec"]
    volumes = {v["name"]: v for v in pod.get("volumes", ())}
    security = pod.get("securityContext", {})
    if not security.get("runAsNonRoot") or not security.get("runAsUser"):
        yield "runs as root"
    if security.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "no seccomp profile"
    if pod.get("enableServiceLinks") is not False or pod.get("automountServiceAccountToken") is not False:
        yield "service links or a service account's token"
    if trains and pod["terminationGracePeriodSeconds"] <= 30:
        yield "less time to end than --shutdown-timeout gives the workers"
    for container in pod["containers"]:
        own = container.get("securityContext", {})
        if own.get("allowPrivilegeEscalation") is not False or not own.get("readOnlyRootFilesystem"):
            yield "may gain privileges, or writes its root"
        if own.get("capabilities") != {"drop": ["ALL"]}:
            yield "keeps capabilities"
        ports = {p["name"] for p in container.get("ports", ())}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            port = container.get(probe, {}).get("httpGet", {}).get("port")
            if port is not None and port not in ports:
                yield f"{probe}: no port {port}"
            if not trains and port is None:
                yield f"no {probe}"
        mounts = {m["mountPath"]: m["name"] for m in container.get("volumeMounts", ())}
        for name in mounts.values():
            if name not in volumes:
                yield f"no volume {name}"
        if trains and volumes.get(mounts.get("/dev/shm"), {}).get("emptyDir", {}).get("medium") != "Memory":
            yield "/dev/shm is the runtime's, of 64 MiB"
        if trains and "/tmp" not in mounts:
            yield "no /tmp"
        gpus = container.get("resources", {}).get("limits", {}).get("nvidia.com/gpu")
        if gpus is not None and not isinstance(gpus, str):
            yield "the number of GPUs must be a text"


def references(documents):
    """Names that only meet in the whole: volumes' sources, services, labels of selectors."""
    have = {(d["kind"], d["metadata"]["name"]) for d in documents}
    labels = [t.get("metadata", {}).get("labels", {}) for d in documents for _, t, _ in templates(d)]
    for document in documents:
        for _, template, _ in templates(document):
            for volume in template["spec"].get("volumes", ()):
                for key, kind, name in (("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName"),
                                        ("persistentVolumeClaim", "PersistentVolumeClaim", "claimName")):
                    if key in volume and (kind, volume[key][name]) not in have:
                        yield f"no {kind} {volume[key][name]}"
            subdomain = template["spec"].get("subdomain")
            if subdomain and ("Service", subdomain) not in have:
                yield f"no Service {subdomain}"
        selector = document["spec"].get("selector" if document["kind"] == "Service" else "podSelector") \
            if document["kind"] in ("Service", "NetworkPolicy") else None
        if selector is not None and labels:
            wanted = selector.get("matchLabels", selector)
            if not any(wanted.items() <= own.items() for own in labels):
                yield f"{document['kind']}: no pod has {wanted}"


def is_for_gpus(documents):
    text = yaml.safe_dump_all(documents)
    return "nvidia.com/gpu" in text and re.search(r"(value|nprocPerNode): gpu\b|numProcPerNode: 8", text)


def check(folder, openapi):
    documents = render(folder)
    for document in documents:
        what = f"{document['kind']}/{document['metadata']['name']}"
        if document["kind"] in PYDANTIC:
            model = getattr(models, PYDANTIC[document["kind"]]).from_dict(copy.deepcopy(document))
            problems = list(lost(document, model.to_dict()))
        elif document["kind"] == "PyTorchJob":
            problems = list(openapi.check(document["spec"], "KubeflowOrgV1PyTorchJobSpec", "spec"))
        else:
            problems = list(core(document))
        for where, template, trains in templates(document):
            problems += [f"{where}: {p}" for p in pod_rules(template, trains)]
            whole = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "t"}, "template": template}
            problems += [f"{where}: {p}" for p in core(whole)]
        for name, spec in jobs(document):
            problems += job_rules(name, spec)
            if document["kind"] != "ClusterTrainingRuntime":  # the controller fills that one in
                problems += core({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": spec})
        yield from (f"{what}: {p}" for p in problems)
    yield from references(documents)
    if folder.name.endswith("-gpu") != bool(is_for_gpus(documents)):
        yield "GPUs by name, but not in the manifest, or the other way round"


def main():
    openapi = OpenapiModels()
    base = ROOT / "deploy/kubernetes"
    folders = sorted(p.parent.relative_to(base) for p in base.rglob("kustomization.yaml")
                     if "kind: Component" not in p.read_text())
    failed = 0
    for folder in folders:
        try:
            problems = list(check(folder, openapi))
        except Exception as error:  # pydantic's own, kustomize's words
            problems = [str(error)]
        failed += bool(problems)
        print(f"deploy/kubernetes/{folder}: " + ("ok" if not problems else "FAILED"))
        for problem in problems:
            print("  " + problem)
    # The checks can fail: a manifest with a mistake of each kind is found out.
    job = next(d for d in render(pathlib.Path("job")) if d["kind"] == "Job")
    for name, spoil in (("unknown key", lambda s: s.update(paralelism=1)),
                        ("exit code", lambda s: s["podFailurePolicy"]["rules"][1]["onExitCodes"].update(values=[74])),
                        ("root", lambda s: s["template"]["spec"].pop("securityContext")),
                        ("shm", lambda s: s["template"]["spec"]["volumes"][2].update(emptyDir={}))):
        bad = copy.deepcopy(job)
        spoil(bad["spec"])
        found = list(core(bad)) + list(job_rules("train", bad["spec"])) + list(pod_rules(bad["spec"]["template"], True))
        failed += not found
        print(f"self-test, {name}: " + ("found" if found else "NOT FOUND"))
    print(f"{len(folders) + 4 - failed} passed, {failed} failed, 0 skipped")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
