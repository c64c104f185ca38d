"""Trains psrun's model `dlrm` on in PyTorch, and writes the values back for `psrun checkpoint import`.

    psrun checkpoint export runs/RUN --to exported
    python dlrm_in_pytorch.py exported examples.npz EPOCHS STEPS BATCH_SIZE
    psrun checkpoint import exported --to runs/BACK

`examples.npz` has the features by name, in the order of the data, and `label`; `numbers` is the matrix that the network
gets. Batch n has the examples from n times BATCH_SIZE on: this is the order in which the data source of the run must
read them, too. STEPS is the number of steps of an epoch of the run.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from read_tables import read

# -- optimizers: each changes rows of a table, or a dense weight, and its slots, by a gradient that is summed by row


def adagrad(values, slots, gradient, constants, step):
    accumulator = slots["accumulator"]
    accumulator += gradient**2
    values -= constants["learning_rate"] * gradient / torch.sqrt(accumulator + constants["epsilon"])


def adagrad_of_torch(values, slots, gradient, constants, step):
    # To compare: torch.optim.Adagrad adds the epsilon to the root, not within it.
    accumulator = slots["accumulator"]
    accumulator += gradient**2
    values -= constants["learning_rate"] * gradient / (torch.sqrt(accumulator) + constants["epsilon"])


def rowwise_adagrad(values, slots, gradient, constants, step):
    accumulator = slots["accumulator"]
    if accumulator.shape == values.shape:  # of a dense weight
        adagrad(values, slots, gradient, constants, step)
        return
    accumulator += (gradient**2).mean(1)
    values -= constants["learning_rate"] * gradient / torch.sqrt(accumulator[:, None] + constants["epsilon"])


def lazy_adam(values, slots, gradient, constants, step):
    # As torch.optim.SparseAdam; torch.optim.Adam adds the epsilon after the correction of v. `step` counts all steps.
    beta_1, beta_2 = torch.tensor(constants["beta_1"]), torch.tensor(constants["beta_2"])
    m, v = slots["m"], slots["v"]
    m += (1 - beta_1) * (gradient - m)
    v += (1 - beta_2) * (gradient**2 - v)
    correction = torch.sqrt(1 - beta_2**step) / (1 - beta_1**step)
    values -= constants["learning_rate"] * correction * m / (torch.sqrt(v) + constants["epsilon"])


def sgd(values, slots, gradient, constants, step):
    values -= constants["learning_rate"] * gradient


OF_TABLES = {"SparseAdagrad": adagrad, "RowwiseAdagrad": rowwise_adagrad, "LazyAdam": lazy_adam, "SparseSGD": sgd}
# Each step uses all of a dense weight: there, lazy Adam is Adam.
OF_DENSE = {**OF_TABLES, "Adagrad": adagrad, "Adam": lazy_adam}


class Optimizer:
    """What `updates` do by a description of an optimizer."""

    def __init__(self, description, updates):
        if description["formula"] is None or description["class"] not in updates:
            raise SystemExit(f"this example does not have the formula of {description['class']}")
        if isinstance(description["constants"]["learning_rate"], dict):
            raise SystemExit("this example has no schedules of learning rates")
        if any(description["constants"].get(name) for name in ("clipnorm", "clipvalue", "global_clipnorm")):
            raise SystemExit("this example does not clip gradients")
        self.constants, self.apply = description["constants"], updates[description["class"]]

    def update(self, values, slots, gradient, step):
        self.apply(values, slots, gradient, self.constants, step)


# -- the model


def ids_of(folder, rule, words):
    """The ids of the values of a feature, one in each example. Id 0 is for values outside of the vocabulary."""
    if "hash" in rule:
        raise SystemExit(f"this example has no hash function {rule['hash']}; give the features a vocabulary, or ids")
    if "vocabulary" not in rule:
        return torch.tensor(words.ravel())
    lines = (folder / rule["vocabulary"]).read_text(encoding="utf-8").splitlines()
    ids = {json.loads(line): number for number, line in enumerate(lines, 1)}
    texts = [word.decode() if isinstance(word, bytes) else word for word in words.ravel().tolist()]
    return torch.tensor([ids.get(text, 0) for text in texts])


def check(folder, about, examples):
    """Ends the program if the features are not those of the run, or the network would get other numbers."""
    names = {name for table in about["tables"].values() for name in table["features"]} | {"numbers", "label"}
    if names != examples.keys():
        raise SystemExit(f"the examples have {', '.join(sorted(examples))}; they must have {', '.join(sorted(names))}")
    data = json.loads((folder / "run" / "run.json").read_text(encoding="utf-8")).get("data", {})
    if scales := data.get("scales"):
        raise SystemExit(f"psrun has standardized {', '.join(scales)} (scales in run/run.json); this example does not")


def logits_of(numbers, rows, weights):
    """(batch,), from numbers (batch, n), the rows of each feature (batch, dim) and the dense weights by name."""
    count = len(rows) + 1
    first, second = torch.tril_indices(count, count, -1)
    values = numbers
    for name in [each for each in weights if each.startswith("dense") and each.endswith("/kernel")]:
        if len(weights[name]) == rows[0].shape[1] + len(first):  # the first layer over the interaction
            vectors = torch.stack([values, *rows], 1)
            products = vectors @ vectors.transpose(1, 2)
            values = torch.cat([values, products[:, first, second]], 1)
        values = torch.relu(values @ weights[name] + weights[name.replace("kernel", "bias")])
    return (values @ weights["prediction/kernel"] + weights["prediction/bias"])[:, 0]


class Training:
    """A training that goes on where the export was made. Its tensors share the memory of the files of the export."""

    def __init__(self, folder, examples, of_tables=OF_TABLES, of_dense=OF_DENSE):
        self.folder = Path(folder)
        self.about, tables, others = read(folder, "r+")
        check(self.folder, self.about, examples)
        self.optimizer = Optimizer(self.about["optimizer"], of_dense)
        self.table_optimizer = Optimizer(self.about["table_optimizer"] or self.about["optimizer"], of_tables)
        self.iteration = others.pop("iteration")
        self.tables = {}
        for name, table in tables.items():
            self.tables[name] = {key: torch.from_numpy(each) for key, each in table.items()}
        others = {name: torch.from_numpy(each) for name, each in others.items()}
        self.weights = {name: others[name] for name in others if name.startswith(("dense", "prediction"))}
        self.slots = {}  # of the weights: the slot `m` of `dense/kernel` is `m/dense/kernel`
        for name in self.weights:
            end = f"/{name}"
            self.slots[name] = {each.removesuffix(end): others[each] for each in others if each.endswith(end)}
        self.ids = {}  # by feature in the order of the data: the name of its table, and the id in each example
        for feature, words in examples.items():
            for name, table in self.about["tables"].items():
                if feature in table["features"]:
                    self.ids[feature] = name, ids_of(self.folder, table["features"][feature], words)
        self.numbers, self.label = torch.tensor(examples["numbers"]), torch.tensor(examples["label"][:, 0])

    def step(self, batch):
        """Trains on the examples with these numbers, and returns their loss."""
        weights = {name: each.clone().requires_grad_() for name, each in self.weights.items()}
        used = []
        rows = []
        for name, ids in self.ids.values():
            distinct, places = torch.unique(ids[batch], return_inverse=True)
            used.append((self.tables[name], distinct, self.tables[name]["rows"][distinct].requires_grad_()))
            rows.append(used[-1][2][places])
        logits = logits_of(self.numbers[batch], rows, weights)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, self.label[batch])
        loss.backward()
        self.iteration += 1
        step = int(self.iteration)
        with torch.no_grad():
            for table, distinct, leaf in used:
                part = {key: each[distinct] for key, each in table.items()}
                self.table_optimizer.update(part["rows"], part, leaf.grad, step)
                for key, each in part.items():
                    table[key][distinct] = each
            for name, each in weights.items():
                self.optimizer.update(self.weights[name], self.slots[name], each.grad, step)
        return loss.item()

    def epochs(self, epochs, steps, batch_size):
        """Trains, and returns the mean loss of each epoch."""
        position = self.about["position"]
        losses = []
        for _ in range(epochs):
            total = 0.0
            for _ in range(steps):
                first = position["batch"] * batch_size
                total += self.step(torch.arange(first, first + batch_size) % len(self.label))
                position["batch"] += 1
            losses.append(total / steps)
        position["epochs"] += epochs
        position["scheduled"] += epochs * steps
        self.about["step"] = int(self.iteration)
        (self.folder / "psrun-checkpoint.json").write_text(json.dumps(self.about, indent=1) + "\n", encoding="utf-8")
        return losses


if __name__ == "__main__":
    if len(sys.argv) != 6:
        raise SystemExit(__doc__)
    with np.load(sys.argv[2]) as archive:
        examples = dict(archive)
    for number, loss in enumerate(Training(sys.argv[1], examples).epochs(*map(int, sys.argv[3:6])), 1):
        print(f"epoch {number}: loss {loss:.6f}")
