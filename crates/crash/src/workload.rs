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
    /// What it is called in reports; a workload of [`Script`](super::workloads::script::Script) is
    /// found by it again.
    pub name: String,
    /// Done first and synced; no power cut falls there.
    pub setup: Vec<Op>,
    /// What the power is cut in.
    pub ops: Vec<Op>,
    /// In which order that is carried out.
    pub order: Order,
}

const BEGIN: &str = "begin";
const ORDER: &str = "order ";
const STANDARD: &str = "setup standard";
const COLD: &str = "setup cold";

/// Operations from which on a workload is long: not everything is looked at.
const LONG: usize = 24;

impl Workload {
    /// Whether it has so many operations that looking at everything would take too long.
    pub fn is_long(&self) -> bool {
        self.ops.len() >= LONG
    }

    /// The same, carried out in this order.
    pub fn in_order(self, order: Order) -> Self {
        Self { order, ..self }
    }

    /// The same on a volume of which nothing is in memory, while the clock stands; of a sequence,
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

    /// What is done when the power was cut in it and the volume holds the state after `state`
    /// operations: some of those that were to come, which may fail now, because nothing is open.
    pub fn continued(&self, state: usize) -> Self {
        /// Operations.
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

    /// The same in each of these orders; one that says in which it is carried out in that alone.
    pub fn in_each(self, orders: &[Order]) -> Vec<Self> {
        if self.order == Order::default() {
            orders.iter().map(|o| self.clone().in_order(*o)).collect()
        } else {
            vec![self]
        }
    }

    /// Whether it is `other`, but perhaps for the order.
    pub fn is_in_some_order(&self, other: &Self) -> bool {
        (&self.setup, &self.ops) == (&other.setup, &other.ops)
    }

    /// Its name, and its order if it is another than the usual.
    pub fn title(&self) -> String {
        match self.order {
            Order::InOrder => self.name.clone(),
            order => format!("{} {order}", self.name),
        }
    }

    /// Tells it from others: by its name, its text and its order.
    pub fn key(&self) -> u64 {
        hash(format!("{}: {self}", self.title()).as_bytes())
    }

    /// How many of its operations do something to the volume.
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

    /// Reads the text form.
    ///
    /// # Errors
    /// The first line that is wrong, by its number.
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

    /// The text form, one operation a line.
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

/// The text form in one line.
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
