//! Random operations: the same for the same seed, on every machine.
//!
//! Important cases are frequent: a few names, so that operations meet; small sizes and whole
//! blocks. Far offsets and long writes are rare.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::rng::Rng;
use crate::world::acl::Acl;
use crate::world::names::{LONGEST, NAMES, TARGETS, XATTRS};
use crate::world::op::{
    Durable, Op, Path, Payload, Profile, RenameHow, Reserve, SLOTS, Special, XattrHow,
};

/// Returns a stream of operations.
pub fn stream(seed: u64, count: usize, profile: Profile) -> Vec<Op> {
    let mut draw = Draw {
        rng: Rng::new(seed),
        profile,
    };
    (0..count).map(|_| draw.operation()).collect()
}

/// Returns one operation.
pub fn operation(seed: u64, profile: Profile) -> Op {
    let rng = Rng::new(seed);
    Draw { rng, profile }.operation()
}

struct Draw {
    rng: Rng,
    profile: Profile,
}

/// A kind of value, with its weight among the others of its list.
type Chance<T> = (u64, fn(&mut Draw) -> T);

impl Draw {
    fn one_of<T>(&mut self, chances: &[Chance<T>]) -> T {
        let all = chances.iter().map(|(weight, _)| weight).sum();
        let mut at = self.rng.below(all);
        for (weight, make) in chances {
            match at.checked_sub(*weight) {
                Some(rest) => at = rest,
                None => return make(self),
            }
        }
        unreachable!("{at} is below the sum of the weights")
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        *self.rng.pick(all)
    }

    fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.rng.below(range.end - range.start)
    }

    /// Returns a number below a bound that fits into a `u32`.
    fn below(&mut self, bound: u32) -> u32 {
        self.rng.below(u64::from(bound)) as u32
    }

    fn is_heads(&mut self) -> bool {
        self.rng.chance(50)
    }

    fn operation(&mut self) -> Op {
        let Profile {
            looks, remounts, ..
        } = self.profile;
        self.one_of(&[
            (16, Self::names_op),
            (16, Self::content_op),
            (6, Self::attribute_op),
            (if looks { 4 } else { 0 }, Self::look_op),
            (1, |d| {
                if d.is_heads() {
                    Op::Sync
                } else {
                    Op::FsyncDir { path: d.path() }
                }
            }),
            (u64::from(remounts), |_| Op::Remount),
        ])
    }

    fn names_op(&mut self) -> Op {
        self.one_of(&[
            (6, |d| Op::Create {
                path: d.path(),
                mode: d.mode(),
                exclusive: d.is_heads(),
            }),
            (5, |d| Op::Mkdir {
                path: d.path(),
                mode: d.mode() & 0o1777,
            }),
            (1, |d| Op::Mknod {
                path: d.path(),
                mode: d.mode(),
                special: d.special(),
            }),
            (2, |d| Op::Symlink {
                target: d.pick(&TARGETS).to_owned(),
                path: d.path(),
            }),
            (2, |d| Op::Link {
                old: d.path(),
                new: d.path(),
            }),
            (1, |d| Op::Tmpfile {
                slot: d.slot(),
                path: d.path(),
                mode: d.mode(),
            }),
            (1, |d| Op::LinkSlot {
                slot: d.slot(),
                new: d.path(),
            }),
            (3, |d| Op::Unlink { path: d.path() }),
            (2, |d| Op::Rmdir { path: d.path() }),
            (5, |d| Op::Rename {
                old: d.path(),
                new: d.path(),
                how: d.pick(&[
                    RenameHow::Plain,
                    RenameHow::Plain,
                    RenameHow::NoReplace,
                    RenameHow::Exchange,
                    RenameHow::Whiteout,
                ]),
            }),
        ])
    }

    fn content_op(&mut self) -> Op {
        self.one_of(&[
            (5, |d| Op::Open {
                slot: d.slot(),
                path: d.path(),
                truncate: d.is_heads(),
            }),
            (1, |d| Op::Close { slot: d.slot() }),
            (8, |d| Op::Write {
                slot: d.slot(),
                offset: d.offset(),
                payload: d.payload(d.profile.write_max),
                durable: d.durable(),
            }),
            (3, |d| Op::Append {
                slot: d.slot(),
                payload: d.payload(d.profile.write_max),
            }),
            (2, |d| Op::Truncate {
                path: d.path(),
                size: d.offset(),
            }),
            (2, |d| Op::Ftruncate {
                slot: d.slot(),
                size: d.offset(),
            }),
            (4, |d| Op::Fallocate {
                slot: d.slot(),
                how: d.pick(&[
                    Reserve::Plain,
                    Reserve::KeepSize,
                    Reserve::Punch,
                    Reserve::Punch,
                    Reserve::Zero,
                    Reserve::ZeroKeepSize,
                ]),
                offset: d.near_offset(),
                len: d.within(0..200_000),
            }),
            (1, |d| Op::Fsync { slot: d.slot() }),
        ])
    }

    fn attribute_op(&mut self) -> Op {
        self.one_of(&[
            (4, |d| Op::SetXattr {
                path: d.path(),
                name: d.attribute(),
                value: d.payload(d.profile.xattr_max),
                how: d.pick(&[
                    XattrHow::Any,
                    XattrHow::Any,
                    XattrHow::Create,
                    XattrHow::Replace,
                ]),
            }),
            (1, |d| Op::RemoveXattr {
                path: d.path(),
                name: d.attribute(),
            }),
            (2, |d| Op::SetAcl {
                path: d.path(),
                default: d.is_heads(),
                acl: d.rng.chance(80).then(|| d.acl()),
            }),
            (2, |d| Op::Chmod {
                path: d.path(),
                mode: d.mode(),
            }),
            (1, |d| Op::Chown {
                path: d.path(),
                uid: d.id().or(Some(7)),
                gid: d.id(),
            }),
            (1, |d| Op::Utimes {
                path: d.path(),
                atime: d.time(),
                mtime: d.time(),
            }),
        ])
    }

    fn look_op(&mut self) -> Op {
        self.one_of(&[
            (3, |d| Op::Read {
                slot: d.slot(),
                offset: d.offset(),
                len: d.below(100_000),
            }),
            (2, |d| Op::Stat { path: d.path() }),
            (1, |d| Op::Readlink { path: d.path() }),
            (1, |d| Op::Readdir { path: d.path() }),
            (1, |d| Op::GetXattr {
                path: d.path(),
                name: d.attribute(),
            }),
            (1, |d| Op::ListXattr { path: d.path() }),
        ])
    }

    fn name(&mut self) -> &'static str {
        self.one_of(&[
            (20, |d| d.pick(&NAMES[..4])),
            (3, |d| d.pick(&NAMES)),
            (1, |_| LONGEST),
        ])
    }

    fn path(&mut self) -> Path {
        self.one_of(&[
            (5, |d| d.name().to_owned()),
            (5, |d| format!("{}/{}", d.name(), d.name())),
            (3, |d| {
                let depth = d.within(1..4);
                let names: Vec<_> = (0..depth).map(|_| d.name()).collect();
                names.join("/")
            }),
            // One byte longer than the longest name.
            (1, |d| format!("{}/{LONGEST}n", d.name())),
        ])
    }

    fn slot(&mut self) -> u8 {
        self.rng.below(u64::from(SLOTS)) as u8
    }

    fn payload(&mut self, most: u32) -> Payload {
        let len = match self.below(10) {
            0..3 => self.below(200),
            3..6 => 1000 + self.below(8000),
            6..8 => self.below(most.max(1)),
            _ => self.pick(&[1024, 4096, 8192]),
        };
        Payload {
            seed: self.below(1000) as u16,
            len: len.min(most),
        }
    }

    fn offset(&mut self) -> u64 {
        let far = u64::from(self.profile.huge_files);
        self.one_of(&[
            (12, Self::near_offset),
            (far, |d| d.within((1 << 32) - 5000..(1 << 32) + 9000)),
            (far, |d| d.within(5_000_000_000..6_000_000_000)),
        ])
    }

    fn near_offset(&mut self) -> u64 {
        self.one_of(&[
            (4, |d| d.within(0..20_000)),
            (3, |d| d.within(0..300_000)),
            (3, |d| d.within(0..40) * 4096),
            (1, |d| d.within(0..40) * 1024),
            (1, |d| d.within(0..20_000_000)),
        ])
    }

    fn mode(&mut self) -> u16 {
        self.one_of(&[
            (4, |d| d.pick(&[0o644, 0o755, 0o600, 0o777])),
            (1, |d| d.below(0o10000) as u16),
        ])
    }

    /// Draws a device that no machine has, in both of ext4's encodings, because somebody may open
    /// what a test has made.
    fn special(&mut self) -> Special {
        self.pick(&[
            Special::Fifo,
            Special::Socket,
            Special::Char(240, 200),
            Special::Char(4000, 1_000_000),
            Special::Block(240, 201),
            Special::Block(4001, 300),
        ])
    }

    fn durable(&mut self) -> Durable {
        self.one_of(&[
            (12, |_| Durable::No),
            (1, |_| Durable::Data),
            (1, |_| Durable::All),
        ])
    }

    fn attribute(&mut self) -> String {
        self.pick(&XATTRS).to_owned()
    }

    fn id(&mut self) -> Option<u32> {
        self.is_heads().then(|| self.below(3000))
    }

    fn permissions(&mut self) -> u8 {
        self.rng.below(8) as u8
    }

    /// Returns ids in ascending order, each once.
    fn named(&mut self, bound: u64) -> Vec<(u32, u8)> {
        let count = self.rng.below(bound);
        let named: BTreeMap<_, _> = (0..count)
            .map(|_| (1000 + self.below(4), self.permissions()))
            .collect();
        named.into_iter().collect()
    }

    fn acl(&mut self) -> Acl {
        let (users, groups) = (self.named(3), self.named(2));
        let mask = self.is_heads().then(|| self.permissions());
        let needs_one = !users.is_empty() || !groups.is_empty();
        Acl {
            owner: self.permissions(),
            users,
            group: self.permissions(),
            groups,
            mask: mask.or(needs_one.then_some(7)),
            other: self.permissions(),
        }
    }

    fn time(&mut self) -> (i64, u32) {
        if !self.profile.wide_times {
            return (self.rng.below(2_000_000_000) as i64, 0);
        }
        let seconds = self.one_of(&[
            (1, |_| 0),
            (1, |d| d.rng.below(4_000_000_000) as i64 - 2_000_000_000),
            (1, |d| d.within(2_147_483_648..15_000_000_000) as i64),
        ]);
        (seconds, self.below(1_000_000_000))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The name of a variant, which is the first word of the value's debug text.
    fn verb(op: &Op) -> String {
        let shown = format!("{op:?}");
        let end = shown.find([' ', '(']).unwrap_or(shown.len());
        shown[..end].to_owned()
    }

    #[test]
    fn every_kind_is_drawn_and_what_a_profile_leaves_out_is_not() {
        let all = stream(1, 20_000, Profile::default());
        assert_eq!(all, stream(1, 20_000, Profile::default()));
        assert_ne!(all, stream(2, 20_000, Profile::default()));
        let verbs: BTreeSet<_> = all.iter().map(verb).collect();
        assert_eq!(verbs.len(), 33, "{verbs:?}");
        let plain = Profile {
            xattr_max: 10,
            huge_files: false,
            wide_times: false,
            remounts: false,
            looks: false,
            write_max: 100,
        };
        for op in stream(1, 20_000, plain) {
            let fits = match &op {
                Op::Write {
                    offset, payload, ..
                } => *offset < 20_000_000 && payload.len <= 100,
                Op::SetXattr { value, .. } => value.len <= 10,
                Op::Utimes { atime, .. } => (0..2_000_000_000).contains(&atime.0),
                op => !matches!(op, Op::Remount | Op::Read { .. } | Op::Stat { .. }),
            };
            assert!(fits, "{op:?}");
        }
    }

    /// If a list loses its last entries, the others stay as likely as before.
    #[test]
    fn weights_are_shares() {
        let mut draw = Draw {
            rng: Rng::new(1),
            profile: Profile::default(),
        };
        let mut counts = [0u32; 3];
        for _ in 0..10_000 {
            let drawn: usize = draw.one_of(&[(1, |_| 0), (3, |_| 1), (0, |_| 2)]);
            counts[drawn] += 1;
        }
        assert!(
            (2300..2700).contains(&counts[0]) && counts[2] == 0,
            "{counts:?}"
        );
    }
}
