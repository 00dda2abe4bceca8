//! A workload: a setup, which is synced and not cut, and operations in which the power is cut.
//!
//! As text, a workload has one operation a line, or several separated by `;` (the verbs of
//! [`text`](stetfs_testkit::world::text)); comments begin with `#`. Lines before `begin` are the
//! setup. `setup standard` is that of the enumerated sequences. `setup cold` is the same with empty
//! caches and a clock that stands. Without a setup, the power is cut from the mount on. `order
//! each-handle` and `order overlap7` choose the [`Order`].

use std::fmt;

use anyhow::{Context, Result, bail, ensure};

use super::turns::Order;
use super::workloads::vocabulary::{cold_setup, standard_setup};
use stetfs_testkit::world::op::Op;
use stetfs_testkit::world::text::read_line;
use stetfs_testkit::world::tree::hash;

/// A workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Its name in reports. A workload of [`Script`](super::workloads::script::Script) is found by
    /// its name.
    pub name: String,
    /// The operations of the setup, which are synced; no power cut falls there.
    pub setup: Vec<Op>,
    /// The operations in which the power is cut.
    pub ops: Vec<Op>,
    /// The order in which `ops` are carried out.
    pub order: Order,
}

const BEGIN: &str = "begin";
const ORDER: &str = "order ";
const STANDARD: &str = "setup standard";
const COLD: &str = "setup cold";

/// From this many operations on a workload is long, and only a part of it is looked at.
const LONG: usize = 24;

impl Workload {
    /// True if it has so many operations that looking at everything would take too long.
    pub fn is_long(&self) -> bool {
        self.ops.len() >= LONG
    }

    /// Returns the same workload in this order.
    pub fn in_order(self, order: Order) -> Self {
        Self { order, ..self }
    }

    /// Returns the same workload with empty caches and a clock that stands. It must be a sequence,
    /// which has the standard setup.
    pub fn cold(self) -> Self {
        let name = self.name.replacen(':', "-cold:", 1);
        let setup = cold_setup();
        Self {
            name,
            setup,
            ..self
        }
    }

    /// Returns the operations that follow a cut that left the state after `state` operations: some
    /// of the remaining ones. They may fail now, because nothing is open.
    pub fn continued(&self, state: usize) -> Self {
        /// At most this many operations.
        const MOST: usize = 16;
        let is_done = |op: &&Op| !matches!(op, Op::Remount | Op::Crash);
        let rest = self.ops.iter().skip(state).filter(is_done);
        Self {
            name: format!("{} after a power cut", self.name),
            setup: Vec::new(),
            ops: rest.take(MOST).cloned().collect(),
            order: Order::InOrder,
        }
    }

    /// Returns the same workload in each of these orders. A workload that names its own order has
    /// only that one.
    pub fn in_each(self, orders: &[Order]) -> Vec<Self> {
        if self.order == Order::default() {
            orders.iter().map(|o| self.clone().in_order(*o)).collect()
        } else {
            vec![self]
        }
    }

    /// True if it equals `other`, except perhaps for the order.
    pub fn is_in_some_order(&self, other: &Self) -> bool {
        (&self.setup, &self.ops) == (&other.setup, &other.ops)
    }

    /// Returns its name, and its order if that is unusual.
    pub fn title(&self) -> String {
        match self.order {
            Order::InOrder => self.name.clone(),
            order => format!("{} {order}", self.name),
        }
    }

    /// Returns a hash of its name, text and order, which identifies it.
    pub fn key(&self) -> u64 {
        hash(format!("{}: {self}", self.title()).as_bytes())
    }

    /// Returns the number of its operations that do something to the volume.
    pub fn operations(&self) -> usize {
        let does_nothing = |op: &&Op| {
            matches!(
                op,
                Op::Open { .. }
                    | Op::Close { .. }
                    | Op::Fsync { .. }
                    | Op::Fdatasync { .. }
                    | Op::FsyncDir { .. }
                    | Op::Sync
                    | Op::Commit
                    | Op::Expire
                    | Op::Checkpoint
                    | Op::Clock(_)
                    | Op::GroupBegin
                    | Op::GroupSwitch
                    | Op::GroupDo(_)
                    | Op::GroupWrite { .. }
                    | Op::GroupRead { .. }
                    | Op::GroupAbort
            )
        };
        self.ops.len() - self.ops.iter().filter(does_nothing).count()
    }

    /// Parses the text form.
    ///
    /// # Errors
    /// The first wrong line, by its number.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let mut workload = Self {
            name: name.to_owned(),
            setup: Vec::new(),
            ops: Vec::new(),
            order: Order::default(),
        };
        let mut begun = false;
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("");
            for part in line.split(';').map(str::trim).filter(|p| !p.is_empty()) {
                let words: Vec<_> = part.split_whitespace().collect();
                workload
                    .take(&words.join(" "), &mut begun)
                    .with_context(|| format!("line {}, \"{part}\"", number + 1))?;
            }
        }
        ensure!(!workload.ops.is_empty(), "there is no operation");
        Ok(workload)
    }

    fn take(&mut self, part: &str, begun: &mut bool) -> Result<()> {
        let is_begin = part == BEGIN || part.starts_with("setup");
        if is_begin && *begun {
            bail!("it has begun already");
        }
        match part {
            BEGIN => {
                *begun = true;
                self.setup = std::mem::take(&mut self.ops);
            }
            STANDARD | COLD => {
                ensure!(self.ops.is_empty(), "it must come first");
                *begun = true;
                self.setup = if part == COLD {
                    cold_setup()
                } else {
                    standard_setup()
                };
            }
            _ if part.starts_with(ORDER) => self.order = part[ORDER.len()..].trim().parse()?,
            _ if is_begin => bail!("the setups with a name are \"standard\" and \"cold\""),
            _ => self.ops.extend(read_line(part)?),
        }
        Ok(())
    }

    /// Returns the text form, one operation a line.
    pub fn text(&self) -> String {
        self.lines().join("\n") + "\n"
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.order != Order::default() {
            lines.push(format!("{ORDER}{}", self.order));
        }
        if self.setup == standard_setup() {
            lines.push(STANDARD.to_owned());
        } else if self.setup == cold_setup() {
            lines.push(COLD.to_owned());
        } else if !self.setup.is_empty() {
            lines.extend(self.setup.iter().map(ToString::to_string));
            lines.push(BEGIN.to_owned());
        }
        lines.extend(self.ops.iter().map(ToString::to_string));
        lines
    }
}

/// Writes the text form in one line.
impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lines().join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_read_back() {
        let text = "setup standard # as always\nwrite A/x 0 10; fsync A/x\n\nsync\n";
        let workload = Workload::parse("w", text).expect("a workload");
        assert_eq!(workload.ops.len(), 7);
        let overlapping = Workload {
            order: Order::Overlap(7),
            ..workload.clone()
        };
        let cold = workload.clone().cold();
        for workload in [workload, overlapping, cold] {
            for text in [workload.text(), workload.to_string()] {
                assert_eq!(Workload::parse("w", &text).expect("its own text"), workload);
            }
        }
        let group = "group-begin; group-do mkdir d; group-write g 0 9; group-commit; unlink f";
        let group = Workload::parse("w", group).expect("a workload");
        assert_eq!(group.operations(), 2);
        let own = Workload::parse("w", "create f\nbegin\nunlink f").expect("a workload");
        assert_eq!((own.setup.len(), own.ops.len()), (1, 1));
        assert_eq!(own.to_string(), "create f 644; begin; unlink f");
    }

    #[test]
    fn wrong_lines_are_named_by_their_number() {
        for (text, why) in [
            ("sync\nbogus", "line 2, \"bogus\""),
            ("begin; begin; sync", "begun already"),
            ("sync; setup standard", "must come first"),
            ("setup mine", "the setups with a name"),
            ("# nothing", "no operation"),
        ] {
            let error = format!("{:#}", Workload::parse("w", text).expect_err(text));
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
