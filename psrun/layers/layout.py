"""Where the rows of embedding tables lie: of one table, and of several that are stored as one stack. No TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Table:
    """An embedding table.

    Attributes:
      name: its variable is called `NAME/embeddings`, whether the table is stored alone or in a stack.
      features: whose ids are looked up in it.
      num_ids: ids are from 0 to `num_ids` - 1.
      dim: numbers a row.
      initializer: as Keras' Embedding takes it.
      spread: whether ids that are neighbours lie far from each other, as in `psrun.layers.Embedding`; else row i is of
        id i, as in Keras' Embedding.
    """

    name: str
    features: tuple[str, ...]
    num_ids: int
    dim: int
    initializer: Any = "uniform"
    spread: bool = True

    @classmethod
    def of(cls, given: Table | Mapping[str, Any]) -> Table:
        """A table, or one from its attributes by name.

        Raises:
          ValueError: an attribute is missing, or a table has no such attribute.
        """
        if isinstance(given, Table):
            return given
        known = {each.name: each.default is MISSING for each in fields(cls)}
        title = f"table {given.get('name', '?')}"
        if "optimizer" in given:
            message = f"{title} has the optimizer {given['optimizer']!r}, but a run has one optimizer for all tables"
            raise ValueError(f"{message}; remove it, or make a collection for each optimizer, with trainer=own_loop")
        if unknown := [name for name in given if name not in known]:
            raise ValueError(f"{title} has the attribute {unknown[0]!r}; a table has {', '.join(known)}")
        if missing := [name for name, required in known.items() if required and name not in given]:
            raise ValueError(f"{title} lacks {', '.join(missing)}")
        return cls(**given)


@dataclass(frozen=True)
class RowOrder:
    """The order of a table's rows: ids fill it as they would a matrix written row by row and read column by column.

    Neighbours, which are often alike in how frequent they are, come to lie far from each other, evenly over contiguous
    shards. The place of an id does not depend on the number of shards. The matrix has 2**column_bits columns.
    """

    column_bits: int
    column_rows: int

    @classmethod
    def of(cls, num_ids: int, *, spread: bool = True) -> RowOrder:
        """For `num_ids` ids; without `spread` one column, so that the row number is the id."""
        if not spread:
            return cls(0, num_ids)
        # A power of two near the square root, at most 1024: so few rows are left over that no id has.
        column_bits = min(10, (num_ids.bit_length() - 1) // 2)
        return cls(column_bits, -(-num_ids >> column_bits))

    @property
    def num_rows(self) -> int:
        """Rows of the table; a few of them may be of no id."""
        return self.column_rows << self.column_bits


@dataclass(frozen=True)
class Block:
    """Contiguous rows of one table in a shard of a stack.

    Attributes:
      first: the first row, counted within the table.
      offset: the first row, counted within the shard.
    """

    table: int
    first: int
    num_rows: int
    shard: int
    offset: int


@dataclass(frozen=True)
class StackLayout:
    """Several tables of the same width as one variable in equal shards.

    Each table is cut in blocks of equal size, the last of which may be shorter; block b of table t lies in shard
    (b + t) mod num_shards. So each table is spread over all shards, tables with few rows do not meet in the first one,
    and a table that is added moves no row of the tables before it within a shard.

    Attributes:
      table_rows: rows of each table.
      num_shards: shards of the stack.
    """

    table_rows: tuple[int, ...]
    num_shards: int = 1

    def block_rows(self, table: int) -> int:
        """Rows that a table has in each shard, those that stay unused included."""
        return -(-self.table_rows[table] // self.num_shards)

    @property
    def shard_rows(self) -> int:
        """Rows of each shard."""
        return sum(map(self.block_rows, range(len(self.table_rows))))

    @property
    def num_rows(self) -> int:
        """Rows of the stack, those that stay unused included."""
        return self.shard_rows * self.num_shards

    def offset(self, table: int) -> int:
        """Where the block of a table begins in each shard."""
        return sum(map(self.block_rows, range(table)))

    def shard(self, table: int, block: int) -> int:
        """The shard that a block of a table is in."""
        return (block + table) % self.num_shards

    def blocks(self, table: int) -> Iterator[Block]:
        """The blocks of a table that have rows, in the order of these."""
        size = self.block_rows(table)
        for number in range(self.num_shards):
            first = number * size
            length = min(size, self.table_rows[table] - first)
            if length > 0:
                yield Block(table, first, length, self.shard(table, number), self.offset(table))

    def base(self, table: int) -> int:
        """The difference between a row in the stack and the row in the first block of a table."""
        return self.shard(table, 0) * self.shard_rows + self.offset(table)

    def step(self, table: int, block: int) -> int:
        """The additional difference for rows of this block and later ones."""
        between = self.shard(table, block) - self.shard(table, block - 1)
        return between * self.shard_rows - self.block_rows(table)
