//! Sequences of actions, enumerated or sampled.

use std::collections::BTreeSet;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::vocabulary::{
    BESIDE, ENDS, MEETINGS, NAMED, PARTINGS, PASSINGS, Persist, STAGED, TOGETHER, VOCABULARY, ops,
    standard_setup,
};
use crate::turns::Order;
use crate::workload::Workload;
use stetfs_testkit::rng::Rng;
use stetfs_testkit::world::World;
use stetfs_testkit::world::model::{Model, Rules};
use stetfs_testkit::world::op::Op;

/// Which sequences of two or three actions are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// One in this many sequences of two actions that are not both in the core. 0: none.
    pub pairs: u64,
    /// The number of sequences of three actions.
    pub triples: usize,
    /// The seed of the sample.
    pub seed: u64,
}

/// Sequences, and how many were left out.
#[derive(Debug, Default)]
pub struct Sequences {
    /// The sequences to be run.
    pub workloads: Vec<Workload>,
    /// Sequences that are impossible: an operation fails in the model.
    pub impossible: u64,
    /// Sequences that were not sampled.
    pub left_out: u64,
}

impl Sequences {
    /// Returns the same sequences with empty caches and a clock that stands.
    pub fn cold(self) -> Self {
        Self {
            workloads: self.workloads.into_iter().map(Workload::cold).collect(),
            ..self
        }
    }
}

/// An action with what follows it: the choices of each step.
struct Step {
    ops: Vec<Op>,
    core: bool,
}

fn steps() -> Vec<Step> {
    let all = VOCABULARY.iter().flat_map(|action| {
        Persist::ALL.iter().filter_map(|persist| {
            Some(Step {
                ops: action.ops(*persist)?,
                core: action.core,
            })
        })
    });
    all.collect()
}

/// Sequences of `length` actions (1, 2 or 3) on a volume with these rules. The sequences of one are
/// complete; those of two are complete for the core; the others are sampled.
///
/// Panics for another length.
pub fn sequences(length: usize, rules: Rules, sample: Sample) -> Sequences {
    let mut maker = Maker::new(rules);
    let mut rng = Rng::new(sample.seed);
    match length {
        1 => (0..maker.steps.len()).for_each(|i| maker.take(&[i])),
        2 => maker.pairs(sample.pairs, &mut rng),
        3 => maker.triples(sample.triples, &mut rng),
        _ => panic!("sequences of {length} operations"),
    }
    maker.made
}

/// All sequences of two actions of which one is in a group, or both are, on a volume with these
/// rules. The other one is of the core and comes before the group, in it, or behind it.
///
/// Of groups of writes, which not all files can have, each in all its ends, and the other action
/// also with an fsync of its object behind it. Of those with names each alone in all its ends; with
/// another action before it and a commit, beside it and a commit or an abort, behind it and a lazy
/// commit; two of them in one commit.
fn grouped(rules: Rules) -> Sequences {
    let mut maker = Maker::new(rules);
    maker.grouped_writes();
    maker.grouped_names();
    maker.made
}

/// Two groups that are open beside each other, on a volume with these rules: each way to meet, or
/// to pass, with each way to part; and once the second begins beside the first, but stages only
/// behind its commit.
fn met(rules: Rules) -> Sequences {
    const KIND: &str = "two-groups";
    let mut maker = Maker::new(rules);
    for (first, second) in MEETINGS.iter().chain(&PASSINGS) {
        let both = format!("group-begin; {first}; group-switch; group-begin; {second}");
        for parting in PARTINGS {
            maker.add(KIND, ops(&format!("{both}; {parting}")));
        }
        let begun = format!("group-begin; {first}; group-switch; group-begin; group-switch");
        let behind = format!("{begun}; group-commit; group-switch; {second}; group-commit");
        maker.add(KIND, ops(&behind));
    }
    maker.made
}

/// Returns all sequences with groups: those with one, and those with two.
pub fn with_groups(rules: Rules) -> [Sequences; 2] {
    [grouped(rules), met(rules)]
}

/// The core with each of these behind its actions, and what is no action.
fn beside(persists: &[Persist]) -> Vec<Vec<Op>> {
    let core = VOCABULARY.iter().filter(|action| action.is_beside_groups());
    let actions = core.flat_map(|action| persists.iter().filter_map(|p| action.ops(*p)));
    actions.chain(BESIDE.map(ops)).collect()
}

/// A group with something of others in it.
fn group(staged: &str, within: &[Op], end: &str) -> Vec<Op> {
    let end = match end {
        "" => Vec::new(),
        end => ops(end),
    };
    [&ops(&format!("group-begin; {staged}")), within, &end].concat()
}

struct Maker {
    steps: Vec<Step>,
    start: Model,
    /// Sequences that were taken, by their text: some steps have the same operations.
    seen: BTreeSet<String>,
    made: Sequences,
}

impl Maker {
    fn new(rules: Rules) -> Self {
        let mut start = Model::new(rules);
        for op in standard_setup() {
            start
                .apply(&op)
                .unwrap_or_else(|error| panic!("the setup's {op}: {error}"));
        }
        Self {
            steps: steps(),
            start,
            seen: BTreeSet::new(),
            made: Sequences::default(),
        }
    }

    fn grouped_writes(&mut self) {
        let others = beside(&[Persist::Nothing, Persist::Fsync]);
        for (staged, end) in STAGED.iter().flat_map(|s| ENDS.map(|end| (s, end))) {
            let group = |within: &[Op]| group(staged, within, end);
            self.add("group", group(&[]));
            STAGED
                .iter()
                .for_each(|too| self.add("group", group(&ops(too))));
            for other in &others {
                self.add("group", [other.clone(), group(&[])].concat());
                self.add("group", group(other));
                self.add("group", [group(&[]), other.clone()].concat());
            }
        }
    }

    fn grouped_names(&mut self) {
        const KIND: &str = "group-names";
        let others = beside(&[Persist::Nothing]);
        // Two files, or several names, and something else are more than a short log takes.
        let writes = || STAGED.iter().filter(|write| !write.contains(';'));
        for staged in NAMED {
            for too in NAMED {
                self.add(KIND, group(staged, &ops(too), "group-commit"));
            }
            for write in writes() {
                self.add(KIND, group(staged, &ops(write), "group-commit"));
                self.add(KIND, group(write, &ops(staged), "group-commit"));
            }
        }
        for staged in NAMED.iter().chain(&TOGETHER) {
            let group = |within: &[Op], end| group(staged, within, end);
            ENDS.iter().for_each(|end| self.add(KIND, group(&[], end)));
            for other in &others {
                self.add(KIND, [other, &*group(&[], "group-commit")].concat());
                self.add(KIND, group(other, "group-commit"));
                self.add(KIND, group(other, "group-abort"));
                self.add(KIND, [&*group(&[], "group-commit lazy"), other].concat());
            }
        }
    }

    fn pairs(&mut self, one_in: u64, rng: &mut Rng) {
        for i in 0..self.steps.len() {
            for j in 0..self.steps.len() {
                let core = self.steps[i].core && self.steps[j].core;
                // Sampled in any case, so that the choice does not depend on what is core.
                let sampled = rng.below(one_in.max(1)) == 0 && one_in > 0;
                if core || sampled {
                    self.take(&[i, j]);
                } else {
                    self.made.left_out += 1;
                }
            }
        }
    }

    fn triples(&mut self, count: usize, rng: &mut Rng) {
        let n = self.steps.len() as u64;
        while self.made.workloads.len() < count {
            let three: Vec<_> = (0..3).map(|_| rng.below(n) as usize).collect();
            self.take(&three);
        }
        let looked_at = self.made.workloads.len() as u64 + self.made.impossible;
        self.made.left_out = n.pow(3).saturating_sub(looked_at);
    }

    /// The sequence of these steps.
    fn take(&mut self, steps: &[usize]) {
        let ops: Vec<Op> = steps
            .iter()
            .flat_map(|i| self.steps[*i].ops.iter().cloned())
            .collect();
        self.add(&format!("{}-op", steps.len()), ops);
    }

    /// Takes a sequence, if it can be done and was not taken yet. That somebody else was faster
    /// than a group is an answer too.
    fn add(&mut self, kind: &str, ops: Vec<Op>) {
        let mut model = self.start.clone();
        let mut is_done = |op: &Op| match model.apply(op) {
            Ok(_) => true,
            Err(error) => error == Errno::BUSY && matches!(op, Op::GroupCommit { .. }),
        };
        if !ops.iter().all(&mut is_done) {
            self.made.impossible += 1;
            return;
        }
        let mut workload = Workload {
            name: String::new(),
            setup: standard_setup(),
            ops,
            order: Order::default(),
        };
        let text = workload.to_string();
        if self.seen.insert(text) {
            workload.name = format!("{kind}:{}", self.made.workloads.len());
            self.made.workloads.push(workload);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use stetfs_testkit::image::{EXT3_1K, EXT4_1K};

    const SAMPLE: Sample = Sample {
        pairs: 100,
        triples: 50,
        seed: 1,
    };

    #[test]
    fn sequences_are_many_and_the_same_each_time() {
        let of = |length| sequences(length, EXT4_1K.rules(), SAMPLE).workloads;
        let (one, two, three) = (of(1), of(2), of(3));
        assert!(
            one.len() > 150 && two.len() > 3000 && three.len() == 50,
            "{} {} {}",
            one.len(),
            two.len(),
            three.len()
        );
        assert_eq!(three, of(3));
        // Without extents fewer things can be done.
        assert!(sequences(1, EXT3_1K.rules(), SAMPLE).workloads.len() < one.len());
    }

    #[test]
    fn groups_are_in_all_places() {
        let alone = "setup standard; group-begin; open @2 A/x; group-write @2 0 5000 41; close @2";
        let of = |groups| {
            let rules = Rules {
                groups,
                ..EXT4_1K.rules()
            };
            grouped(rules).workloads
        };
        let (grouped, named) = (of(true), of(false));
        println!(
            "{} sequences with groups, {} of names alone",
            grouped.len(),
            named.len()
        );
        let has = |text: String| grouped.iter().any(|w| w.to_string() == text);
        assert!(grouped.len() > 4000 && named.len() > 1500 && named.len() < 3000);
        assert!(
            named
                .iter()
                .all(|workload| grouped.iter().any(|w| w.ops == workload.ops))
        );
        for end in ["", "; group-commit", "; group-commit lazy", "; group-abort"] {
            assert!(has(format!("{alone}{end}")), "{end}");
            assert!(has(format!("{alone}; truncate A/x 0{end}")), "{end}");
            assert!(has(format!("{alone}{end}; unlink A/x")), "{end}");
            let fresh = alone.replace("setup standard", "setup standard; symlink x A/n");
            assert!(has(format!("{fresh}{end}")), "{end}");
        }
        let begun = "setup standard; group-begin; group-do";
        for text in [
            "create A/n 644 excl",
            "create A/n 644 excl; create A/n 644 excl; group-commit",
            "unlink A/x; unlink A/x; group-commit",
            "unlink A/x; unlink A/x; group-abort",
            "rename A/x B/y; group-commit lazy; sync",
            "link A/x B/n; group-do rename A/x B/y; group-commit",
        ] {
            assert!(has(format!("{begun} {text}")), "{text}");
        }
    }

    /// Of two groups that meet the second to be committed gets a conflict, whichever that is, and
    /// nobody does else: not those that pass, nor a second one that stages behind the commit.
    #[test]
    fn two_groups_meet_or_pass() {
        let rules = Rules {
            groups: true,
            ..EXT4_1K.rules()
        };
        let answers = |text: &str| -> Vec<_> {
            let mut model = Maker::new(rules).start;
            let done = ops(text).into_iter().map(|op| (model.apply(&op), op));
            let commits = done.filter(|(_, op)| matches!(op, Op::GroupCommit { .. }));
            commits.map(|(answer, _)| answer.map(drop)).collect()
        };
        let meet = MEETINGS.iter().map(|pair| (pair, Err(Errno::BUSY)));
        for ((first, second), answer) in meet.chain(PASSINGS.iter().map(|pair| (pair, Ok(())))) {
            let both = format!("group-begin; {first}; group-switch; group-begin; {second}");
            for parting in &PARTINGS[..4] {
                let given = answers(&format!("{both}; {parting}"));
                assert_eq!(given, [Ok(()), answer], "{both}; {parting}");
            }
            let aborted = answers(&format!("{both}; {}", PARTINGS[4]));
            assert_eq!(aborted, [Ok(())], "{both}");
        }
        let of = |groups| met(Rules { groups, ..rules }).workloads;
        let (all, named) = (of(true), of(false));
        println!(
            "{} sequences with two groups, {} of names alone",
            all.len(),
            named.len()
        );
        let pairs = MEETINGS.len() + PASSINGS.len();
        assert!(all.len() > pairs * PARTINGS.len() && named.len() > 80);
        let behind = "setup standard; group-begin; group-do chmod A/x 600; group-switch; \
            group-begin; group-switch; group-commit; group-switch; group-do chown A/x 7 8; \
            group-commit";
        assert!(all.iter().any(|workload| workload.to_string() == behind));
    }
}
