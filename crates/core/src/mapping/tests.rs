//! Both kinds of maps, on images from mke2fs: compared with a model (logical block to block),
//! judged by e2fsck and debugfs.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use stetfs_format::extent::{Extent, MAX_WRITTEN_LEN};
use stetfs_format::inode::InodeFlags;
use stetfs_format::{BlockNo, Inode as RawInode, InodeNo, LBlock};
use stetfs_media::Class;

use super::credits::{ALLOCATE_CREDITS, STEP_MAX, remove_credits};
use super::damage::Damage;
use super::*;
use crate::alloc::test_image::{KINDS, TestImage};
use crate::error::Inconsistent;

/// What debugfs calls the file that the tests map.
const FILE: InodeNo = InodeNo(12);

struct TestFile {
    image: TestImage,
    raw: RawInode,
    /// Logical block -> block and state.
    model: BTreeMap<u32, (u64, MapState)>,
    /// How many blocks are free when nothing is mapped.
    free: u64,
}

impl TestFile {
    fn new(kind: usize) -> Self {
        let mib = if kind == 0 { 200 } else { 24 };
        let image = TestImage::with(mib, KINDS[kind].1, "write /dev/null file");
        let raw = read_inode(&image);
        assert!(raw.is_regular());
        let free = image.alloc.free_blocks_in_bitmaps();
        Self {
            image,
            raw,
            model: BTreeMap::new(),
            free,
        }
    }

    fn by_extents(&self) -> bool {
        is_by_extents(&self.raw)
    }

    fn lookup(&self, lblk: u32, max: u32) -> Run {
        lookup_in(&self.image.alloc, FILE, &self.raw, LBlock(lblk), max).expect("a sound map")
    }

    /// Runs `change` in a handle and stores the inode in it.
    fn change<T>(
        &mut self,
        change: impl FnOnce(&Alloc, &Handle, &mut RawInode) -> Result<T>,
    ) -> Result<T> {
        let h = self.image.journal.start(500)?;
        let result = change(&self.image.alloc, &h, &mut self.raw);
        store_inode(&self.image, &h, &self.raw);
        result
    }

    /// Maps every hole in `[lblk, lblk + len)`.
    fn fill(&mut self, lblk: u32, len: u32, state: MapState) {
        let mut at = lblk;
        while at < lblk + len {
            let run = self.lookup(at, lblk + len - at);
            at += run.len;
            if run.state != MapState::Hole {
                continue;
            }
            let mapped = self
                .change(|alloc, h, raw| {
                    let goal = goal_in(alloc, FILE, raw, run.lblk)?;
                    let (pblk, len) =
                        alloc.allocate(h, goal, run.len, Source::Free { privileged: false })?;
                    let run = Run {
                        len,
                        pblk,
                        state,
                        ..run
                    };
                    insert_in(alloc, h, FILE, raw, run)?;
                    Ok(run)
                })
                .expect("space");
            at = mapped.lblk.0 + mapped.len;
            for n in 0..mapped.len {
                self.model
                    .insert(mapped.lblk.0 + n, (mapped.pblk.0 + u64::from(n), state));
            }
        }
    }

    fn convert(&mut self, lblk: u32, len: u32, state: MapState) {
        let unwritten = state == MapState::Unwritten;
        if unwritten && !self.by_extents() {
            return;
        }
        self.change(|alloc, h, raw| convert_in(alloc, h, FILE, raw, LBlock(lblk), len, unwritten))
            .expect("convert");
        for (_, block) in self.model.range_mut(lblk..lblk + len) {
            block.1 = state;
        }
    }

    fn remove(&mut self, from: u32, to: u32) {
        let to = if from < to { to } else { u32::MAX };
        while !self
            .change(|alloc, h, raw| remove_in(alloc, h, FILE, raw, LBlock(from), to))
            .expect("remove")
            .done
        {}
        self.model.retain(|lblk, _| *lblk < from || *lblk >= to);
    }

    /// Switches the run at the first mapped block from `lblk` on to other blocks.
    fn switch(&mut self, lblk: u32, len: u32) {
        let Some((&at, _)) = self.model.range(lblk..).next() else {
            return;
        };
        let run = self.lookup(at, len);
        let (new, got) = self
            .change(|alloc, h, raw| {
                let far = BlockNo(run.pblk.0 + 3000);
                let (new, got) =
                    alloc.allocate(h, far, run.len, Source::Free { privileged: false })?;
                let (old, n) = switch_in(alloc, h, FILE, raw, run.lblk, got, new)?;
                assert_eq!(n, got);
                assert_eq!(old, run.pblk);
                alloc.free(h, old, got, Class::Data)?;
                Ok((new, got))
            })
            .expect("switch");
        for n in 0..got {
            self.model
                .insert(at + n, (new.0 + u64::from(n), MapState::Written));
        }
    }

    /// Every lookup agrees with the model, for every range.
    fn check(&self) {
        let end = self.model.last_key_value().map_or(0, |(lblk, _)| lblk + 1) + 20;
        let mut at = 0;
        while at < end {
            let run = self.lookup(at, end - at);
            assert!(run.lblk.0 == at && run.len >= 1 && run.len <= end - at);
            for n in 0..run.len {
                let found = match run.state {
                    MapState::Hole => None,
                    state => Some((run.pblk.0 + u64::from(n), state)),
                };
                assert_eq!(
                    found,
                    self.model.get(&(at + n)).copied(),
                    "logical block {}",
                    at + n
                );
            }
            at += run.len;
        }
        for (lblk, (pblk, state)) in self.model.iter().step_by(37) {
            let expected = Run {
                lblk: LBlock(*lblk),
                len: 1,
                pblk: BlockNo(*pblk),
                state: *state,
            };
            assert_eq!(self.lookup(*lblk, 1), expected);
        }
        check_in(&self.image.alloc, FILE, &self.raw).expect("a sound root");
    }

    /// e2fsck finds nothing, and debugfs sees the same blocks, as many as `i_blocks` counts.
    fn judge(&mut self) {
        let geo = *self.image.alloc.geo();
        self.raw.size = self
            .model
            .last_key_value()
            .map_or(0, |(lblk, _)| u64::from(*lblk) + 1)
            << geo.block.bits();
        self.change(|_, _, _| Ok(())).expect("store");
        let saved = self.image.save();
        saved.e2fsck();
        let blocks = saved.debugfs("blocks /file");
        let blocks: BTreeSet<u64> = blocks
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        assert!(self.model.values().all(|(pblk, _)| blocks.contains(pblk)));
        assert_eq!(
            self.raw.blocks_512(&geo) >> (geo.block.bits() - 9),
            blocks.len() as u64
        );
        assert_eq!(
            self.image.alloc.free_blocks_in_bitmaps(),
            self.free - blocks.len() as u64
        );
        if self.by_extents() {
            self.compare_extents(&saved.debugfs("dump_extents -l /file"));
        }
    }

    /// The leaves as debugfs prints them: level, entries, logical, physical, length, flags.
    fn compare_extents(&self, text: &str) {
        let mut seen = BTreeMap::new();
        for line in text
            .lines()
            .filter(|line| line.contains('/') && line.contains(" - "))
        {
            let numbers: Vec<u64> = line
                .split(|c: char| !c.is_ascii_digit())
                .filter_map(|word| word.parse().ok())
                .collect();
            let [.., logical, last, physical, _, length] = numbers[..] else {
                panic!("{line}")
            };
            assert_eq!(last - logical + 1, length);
            let state = if line.contains("Uninit") {
                MapState::Unwritten
            } else {
                MapState::Written
            };
            for n in 0..length {
                seen.insert((logical + n) as u32, (physical + n, state));
            }
        }
        assert_eq!(seen, self.model, "{text}");
    }

    fn reopen(self) -> Self {
        let image = self.image.reopen();
        let raw = read_inode(&image);
        assert_eq!(raw, self.raw);
        Self { image, raw, ..self }
    }

    /// Nothing is left when everything was removed.
    fn empty(&mut self) {
        self.remove(0, 0);
        assert_eq!(self.raw.blocks, 0);
        assert_eq!(self.image.alloc.free_blocks_in_bitmaps(), self.free);
        if self.by_extents() {
            assert_eq!(node::depth_of(&self.raw.block), 0);
        } else {
            assert_eq!(self.raw.block, [0; 60]);
        }
        self.judge();
    }
}

fn slot(image: &TestImage) -> (BlockNo, usize) {
    let geo = image.alloc.geo();
    let (group, index) = geo.group_of_inode(FILE);
    let (block, offset) = geo.inode_position(index);
    (image.alloc.inode_table(group).plus(block.into()), offset)
}

fn read_inode(image: &TestImage) -> RawInode {
    let (block, offset) = slot(image);
    let geo = image.alloc.geo();
    let bytes = image.journal.read(block, Class::InodeTable).expect("read");
    RawInode::decode(&bytes[offset..offset + geo.inode_size()], FILE, geo).expect("an inode")
}

fn store_inode(image: &TestImage, h: &Handle, raw: &RawInode) {
    let (block, offset) = slot(image);
    let geo = image.alloc.geo();
    let bytes = image.journal.read(block, Class::InodeTable).expect("read");
    let mut new = bytes[offset..offset + geo.inode_size()].to_vec();
    raw.encode_into(&mut new, FILE, geo);
    h.write(block, Class::InodeTable, offset, &new)
        .expect("write");
}

#[derive(Debug, Clone)]
enum Op {
    Fill {
        lblk: u32,
        len: u32,
        unwritten: bool,
    },
    /// Single blocks with holes between them: many extents.
    Comb {
        lblk: u32,
        count: u32,
        step: u32,
    },
    Convert {
        lblk: u32,
        len: u32,
        unwritten: bool,
    },
    Remove {
        from: u32,
        len: u32,
    },
    Truncate {
        from: u32,
    },
    Switch {
        lblk: u32,
        len: u32,
    },
    Commit,
}

/// Mostly near the start, sometimes where pointers need two and three levels.
fn lblk() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 0u32..1500, 2 => 60_000u32..70_000, 1 => 16_000_000u32..16_001_000]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => (lblk(), 1u32..400, any::<bool>())
            .prop_map(|(lblk, len, unwritten)| Op::Fill { lblk, len, unwritten }),
        3 => (lblk(), 1u32..300, 1u32..4)
            .prop_map(|(lblk, count, step)| Op::Comb { lblk, count, step }),
        2 => (lblk(), 1u32..300, any::<bool>())
            .prop_map(|(lblk, len, unwritten)| Op::Convert { lblk, len, unwritten }),
        2 => (lblk(), 1u32..600).prop_map(|(from, len)| Op::Remove { from, len }),
        1 => lblk().prop_map(|from| Op::Truncate { from }),
        2 => (lblk(), 1u32..100).prop_map(|(lblk, len)| Op::Switch { lblk, len }),
        1 => Just(Op::Commit),
    ]
}

fn run_ops(kind: usize, ops: &[Op]) {
    let mut file = TestFile::new(kind);
    for (n, op) in ops.iter().enumerate() {
        let state = |unwritten| {
            if unwritten && file.by_extents() {
                MapState::Unwritten
            } else {
                MapState::Written
            }
        };
        match *op {
            Op::Fill {
                lblk,
                len,
                unwritten,
            } => file.fill(lblk, len, state(unwritten)),
            Op::Comb { lblk, count, step } => {
                (0..count).for_each(|n| file.fill(lblk + n * step, 1, MapState::Written))
            }
            Op::Convert {
                lblk,
                len,
                unwritten,
            } => file.convert(lblk, len, state(unwritten)),
            Op::Remove { from, len } => file.remove(from, from + len),
            Op::Truncate { from } => file.remove(from, 0),
            Op::Switch { lblk, len } => file.switch(lblk, len),
            Op::Commit => file.image.journal.commit_running().expect("commit"),
        }
        file.check();
        if n == ops.len() / 2 {
            file.judge();
            file = file.reopen();
            file.check();
        }
    }
    file.judge();
    file.empty();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn random_operations(kind in 0..KINDS.len(), ops in prop::collection::vec(op(), 1..16)) {
        run_ops(kind, &ops);
    }
}

#[test]
fn a_deep_tree_grows_and_shrinks() {
    // 84 entries a block of 1 KiB: 8,000 extents need a root and two levels.
    let mut file = TestFile::new(1);
    for n in 0..8000 {
        file.fill(n * 2, 1, MapState::Written);
    }
    assert_eq!(node::depth_of(&file.raw.block), 2);
    // In order, leaves are left full: 8,000 / 84 leaves, and two nodes above.
    assert!(file.raw.blocks_512(file.image.alloc.geo()) / 2 <= 8000 + 96 + 3);
    file.check();
    file.judge();
    // Fill the gaps backwards with unwritten blocks, which do not merge; then convert them.
    for n in (0..8000).rev() {
        file.fill(n * 2 + 1, 1, MapState::Unwritten);
    }
    file.check();
    file.judge();
    file.convert(0, 16_000, MapState::Written);
    file.check();
    file.judge();
    file.remove(100, 15_000);
    file.judge();
    file.empty();
}

#[test]
fn long_extents_are_cut_at_the_longest_length() {
    let mut file = TestFile::new(0);
    file.fill(10, 40_000, MapState::Unwritten);
    file.judge();
    file.convert(0, 50_000, MapState::Written);
    file.judge();
    file.convert(0, 50_000, MapState::Unwritten);
    file.judge();
    file.switch(20_000, 500);
    file.judge();
    file.empty();
}

#[test]
fn writing_unwritten_blocks_in_order_needs_no_more_extents() {
    let mut file = TestFile::new(0);
    file.fill(0, 1000, MapState::Unwritten);
    for n in 0..999 {
        file.convert(n, 1, MapState::Written);
        assert_eq!(
            stetfs_format::bytes::read_u16le(&file.raw.block, 2),
            2,
            "one written, one unwritten extent"
        );
    }
    file.convert(999, 1, MapState::Written);
    assert_eq!(stetfs_format::bytes::read_u16le(&file.raw.block, 2), 1);
    file.judge();
}

#[test]
fn mapping_twice_is_refused() {
    for kind in [1, 4] {
        let mut file = TestFile::new(kind);
        file.fill(5, 10, MapState::Written);
        for lblk in [0, 5, 14] {
            let run = Run {
                lblk: LBlock(lblk),
                len: 6,
                pblk: BlockNo(5000),
                state: MapState::Written,
            };
            let before = file.raw.clone();
            let error = file
                .change(|alloc, h, raw| insert_in(alloc, h, FILE, raw, run))
                .unwrap_err();
            let Error::Inconsistent(what) = error else {
                panic!("{error}")
            };
            assert!(
                matches!(*what, Inconsistent::Map(Damage::Overlap { .. })),
                "{what}"
            );
            assert_eq!(file.raw, before);
        }
        let error = file
            .change(|alloc, h, raw| switch_in(alloc, h, FILE, raw, LBlock(3), 1, BlockNo(5000)))
            .unwrap_err();
        let Error::Inconsistent(what) = error else {
            panic!("{error}")
        };
        assert!(
            matches!(*what, Inconsistent::Map(Damage::NotMapped { .. })),
            "{what}"
        );
    }
}

#[test]
fn a_map_of_the_volumes_own_structures_is_refused() {
    for kind in [1, 4] {
        let mut file = TestFile::new(kind);
        let table = file.image.alloc.inode_table(stetfs_format::GroupNo(0));
        for (pblk, len) in [(table, 1), (BlockNo(1), 1), (BlockNo(table.0 - 5), 10)] {
            let run = Run {
                lblk: LBlock(0),
                len,
                pblk,
                state: MapState::Written,
            };
            let good = file.raw.clone();
            let h = file.image.journal.start(200).expect("a handle");
            insert_in(&file.image.alloc, &h, FILE, &mut file.raw, run)
                .expect("nobody looks when mapping");
            assert!(
                check_in(&file.image.alloc, FILE, &file.raw).is_err(),
                "{pblk}"
            );
            file.raw = good;
        }
    }
}

/// A node that was checked in its place is refused at another depth elsewhere, so no tree leads in
/// circles.
#[test]
fn a_node_that_leads_to_itself_is_found() {
    let mut file = TestFile::new(1);
    for n in 0..400 {
        file.fill(n * 2, 1, MapState::Written);
    }
    assert_eq!(node::depth_of(&file.raw.block), 2);
    let top = ExtentNodeMut::edit(&mut file.raw.block).entries();
    assert_eq!(top, 1);
    let root =
        stetfs_format::extent::ExtentNode::root(&file.raw.block, file.image.alloc.geo()).unwrap();
    let index = root.index(0).unwrap();
    let h = file.image.journal.start(10).expect("a handle");
    let mut bytes = file
        .image
        .journal
        .read(index.pblk, Class::Mapping)
        .expect("read")
        .to_vec();
    ExtentNodeMut::edit(&mut bytes).set_index(0, index);
    h.write(index.pblk, Class::Mapping, 0, &bytes)
        .expect("write");
    drop(h);
    let (alloc, raw) = (&file.image.alloc, &file.raw);
    assert!(alloc.verified().is_noted(index.pblk));
    assert!(lookup_in(alloc, FILE, raw, LBlock(0), 1).is_err());
    assert!(goal_in(alloc, FILE, raw, LBlock(0)).is_err());
    let error = file.change(|alloc, h, raw| remove_in(alloc, h, FILE, raw, LBlock(0), 5));
    assert!(error.is_err());
}

/// A random change of any byte of a tree block or the root is answered with an error or a sound
/// run, never a panic or a hang.
#[test]
fn damaged_maps_are_answered_with_errors() {
    for kind in [1, 4] {
        let mut file = TestFile::new(kind);
        for n in 0..600 {
            file.fill(n * 3, 1, MapState::Written);
        }
        file.image.journal.commit_running().expect("commit");
        let blocks = file.image.save().debugfs("blocks /file");
        let data: BTreeSet<u64> = file.model.values().map(|b| b.0).collect();
        let nodes: Vec<u64> = blocks
            .split_whitespace()
            .filter_map(|w| w.parse().ok())
            .filter(|b| !data.contains(b))
            .collect();
        assert!(!nodes.is_empty());
        let mut random = 0x1234_5678_u32;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 17;
            random ^= random << 5;
            random
        };
        for round in 0..400 {
            let block = BlockNo(nodes[next() as usize % nodes.len()]);
            let good = file
                .image
                .journal
                .read(block, Class::Mapping)
                .expect("read")
                .to_vec();
            let good_raw = file.raw.clone();
            let h = file.image.journal.start(200).expect("a handle");
            let near_start = if round % 2 == 0 {
                40
            } else {
                good.len() as u32
            };
            let (at, byte) = ((next() % near_start) as usize, [next() as u8]);
            h.write(block, Class::Mapping, at, &byte).expect("write");
            if round % 5 == 0 {
                file.raw.block[next() as usize % 60] = next() as u8;
            }
            for b in &nodes {
                file.image.alloc.verified().forget(BlockNo(*b));
            }
            let alloc = &file.image.alloc;
            let mut steps = 0;
            let mut lblk = 0;
            while let Ok(run) = lookup_in(alloc, FILE, &file.raw, LBlock(lblk), u32::MAX) {
                lblk = lblk.saturating_add(run.len);
                steps += 1;
                assert!(steps < 5000);
                if lblk == u32::MAX || lblk > 3000 {
                    break;
                }
            }
            let _ = goal_in(alloc, FILE, &file.raw, LBlock(next() % 2000));
            let _ = check_in(alloc, FILE, &file.raw);
            h.write(block, Class::Mapping, 0, &good).expect("write");
            file.raw = good_raw;
        }
        let flags = file.raw.flags.contains(InodeFlags::EXTENTS);
        assert_eq!(flags, kind == 1);
        for b in &nodes {
            file.image.alloc.verified().forget(BlockNo(*b));
        }
        file.check();
        file.judge();
    }
}

/// Block pointers cannot say that a block was never written.
#[test]
fn block_pointers_have_no_unwritten_blocks() {
    let mut file = TestFile::new(4);
    let run = Run {
        lblk: LBlock(0),
        len: 3,
        pblk: BlockNo(5000),
        state: MapState::Unwritten,
    };
    let inserted = file.change(|alloc, h, raw| insert_in(alloc, h, FILE, raw, run));
    assert!(matches!(inserted, Err(Error::NotSupported)));
    assert_eq!(file.lookup(0, 3).state, MapState::Hole);
}

/// One step of a removal changes at most all nodes on the way, each split into one allocated in
/// another group, a new root's, the bitmaps of the freed blocks, and eight blocks for the end of
/// the removal.
#[test]
fn a_step_of_a_removal_has_credits_for_the_worst() {
    let file = TestFile::new(1);
    let alloc = &file.image.alloc;
    for (depth, len) in (0..=5).flat_map(|depth| [1, 100, STEP_MAX].map(|len| (depth, len))) {
        let nodes = depth + (depth + 1) * (1 + ALLOCATE_CREDITS);
        let groups = len.div_ceil(alloc.geo().blocks_per_group()) + 1;
        let needed = nodes + groups * ALLOCATE_CREDITS + len / 100 + 8;
        let granted = remove_credits(alloc, len, depth as u16);
        assert!(
            granted >= needed,
            "{len} blocks at depth {depth}: {granted} of {needed}"
        );
        // Handles have at most a few hundred credits.
        assert!(
            granted <= 2 * needed + 32,
            "{len} blocks at depth {depth}: {granted}"
        );
    }
}

#[test]
fn the_longest_extents_are_not_joined() {
    let longest = |lblk: u32| Extent {
        lblk: LBlock(lblk),
        len: MAX_WRITTEN_LEN,
        pblk: BlockNo(100_000 + u64::from(lblk)),
        unwritten: false,
    };
    assert_eq!(node::joined(&longest(0), &longest(32_768)), None);
}
