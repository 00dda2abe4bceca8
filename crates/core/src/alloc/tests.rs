//! The allocator on images from mke2fs, judged by e2fsck and by a model of what is in use.

use std::collections::BTreeMap;

use proptest::prelude::*;
use stetfs_format::group::GroupFlags;
use stetfs_format::{BlockNo, GroupNo, InodeNo};
use stetfs_media::{BlockDev, Cause, Class, Tag};

use super::damage::Damage;
use super::test_image::{KINDS, TestImage};
use super::{Alloc, Retries, Source};
use crate::error::{Error, Inconsistent};
use crate::types::Caller;

const FREE: Source = Source::Free { privileged: false };
const ROOT: InodeNo = InodeNo(2);

fn damage(e: Error) -> Damage {
    match e {
        Error::Inconsistent(i) => match *i {
            Inconsistent::Alloc(d) => d,
            other => panic!("{other}"),
        },
        other => panic!("{other}"),
    }
}

/// Blocks in use, as runs: start -> length.
#[derive(Default)]
struct InUse(BTreeMap<u64, u32>);

impl InUse {
    fn add(&mut self, start: BlockNo, len: u32) {
        let before = self.0.range(..start.0 + u64::from(len)).next_back();
        if let Some((s, l)) = before {
            assert!(s + u64::from(*l) <= start.0, "{start} given out twice");
        }
        self.0.insert(start.0, len);
    }

    fn take_nth(&mut self, n: usize) -> Option<(BlockNo, u32)> {
        let key = *self.0.keys().nth(n % self.0.len().max(1))?;
        Some((BlockNo(key), self.0.remove(&key).expect("its key")))
    }
}

#[derive(Debug, Clone)]
enum Op {
    Allocate { goal: u64, want: u32 },
    Free { nth: usize },
    FreePart { nth: usize, cut: u32 },
    Commit,
    Inode { dir: bool, parent: usize },
    FreeInode { nth: usize },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (any::<u64>(), prop_oneof![Just(1), 1u32..40, 500u32..5000])
            .prop_map(|(goal, want)| Op::Allocate { goal, want }),
        3 => any::<usize>().prop_map(|nth| Op::Free { nth }),
        2 => (any::<usize>(), any::<u32>()).prop_map(|(nth, cut)| Op::FreePart { nth, cut }),
        1 => Just(Op::Commit),
        4 => (any::<bool>(), any::<usize>()).prop_map(|(dir, parent)| Op::Inode { dir, parent }),
        2 => any::<usize>().prop_map(|nth| Op::FreeInode { nth }),
    ]
}

fn run_ops(kind: usize, ops: &[Op]) {
    let mut image = TestImage::new(if kind == 0 { 300 } else { 40 }, KINDS[kind].1);
    let before = (
        image.alloc.free_blocks_in_bitmaps(),
        image.alloc.free_inodes(),
    );
    let mut blocks = InUse::default();
    let mut inodes: Vec<(InodeNo, bool)> = Vec::new();
    for (n, op) in ops.iter().enumerate() {
        if n == ops.len() / 2 {
            image = image.reopen();
        }
        let alloc = &image.alloc;
        let h = image.journal.start(100).expect("a handle");
        match *op {
            Op::Allocate { goal, want } => {
                let goal = BlockNo(goal % alloc.geo().blocks_count);
                match alloc.allocate(&h, goal, want, FREE) {
                    Ok((start, got)) => {
                        assert!((1..=want).contains(&got));
                        blocks.add(start, got);
                    }
                    Err(Error::NoSpace) => {}
                    Err(e) => panic!("{e}"),
                }
            }
            Op::Free { nth } => {
                if let Some((start, len)) = blocks.take_nth(nth) {
                    alloc.free(&h, start, len, Class::Data).expect("free");
                }
            }
            Op::FreePart { nth, cut } => {
                if let Some((start, len)) = blocks.take_nth(nth) {
                    let cut = cut % len;
                    if cut > 0 {
                        blocks.add(start, cut);
                    }
                    alloc
                        .free(&h, start.plus(cut.into()), len - cut, Class::Directory)
                        .expect("free");
                }
            }
            Op::Commit => {
                drop(h);
                image.journal.commit_running().expect("commit");
            }
            Op::Inode { dir, parent } => {
                let parent = inodes
                    .get(parent % (inodes.len() + 1))
                    .map_or(ROOT, |i| i.0);
                let ino = alloc.alloc_inode(&h, parent, dir, false).expect("an inode");
                assert!(
                    !inodes.iter().any(|i| i.0 == ino),
                    "inode {ino} given out twice"
                );
                assert!(alloc.is_inode_used(ino).expect("the bitmap"));
                inodes.push((ino, dir));
            }
            Op::FreeInode { nth } if !inodes.is_empty() => {
                let (ino, dir) = inodes.swap_remove(nth % inodes.len());
                alloc.free_inode(&h, ino, dir).expect("free an inode");
            }
            Op::FreeInode { .. } => {}
        }
    }
    let used: u64 = blocks.0.values().map(|l| u64::from(*l)).sum();
    assert_eq!(image.alloc.free_blocks_in_bitmaps(), before.0 - used);
    let h = image.journal.start(500).expect("a handle");
    while let Some((start, len)) = blocks.take_nth(0) {
        image.alloc.free(&h, start, len, Class::Data).expect("free");
    }
    for (ino, dir) in inodes {
        image.alloc.free_inode(&h, ino, dir).expect("free an inode");
    }
    drop(h);
    assert_eq!(
        (
            image.alloc.free_blocks_in_bitmaps(),
            image.alloc.free_inodes()
        ),
        before
    );
    image.e2fsck();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn random_operations(kind in 0..KINDS.len(), ops in prop::collection::vec(op(), 1..120)) {
        run_ops(kind, &ops);
    }
}

#[test]
fn a_file_that_grows_stays_in_one_piece() {
    let image = TestImage::new(64, KINDS[0].1);
    let h = image.journal.start(100).expect("a handle");
    let goal = image.alloc.goal_of_inode(InodeNo(12), true);
    let (start, got) = image.alloc.allocate(&h, goal, 100, FREE).expect("space");
    assert_eq!(got, 100);
    for n in 1..20 {
        let end = start.plus(100 * n);
        assert_eq!(
            image.alloc.allocate(&h, end, 100, FREE).expect("space"),
            (end, 100)
        );
    }
}

#[test]
fn two_files_that_grow_in_turns_get_long_pieces() {
    let image = TestImage::new(200, KINDS[0].1);
    let goal = image.alloc.goal_of_inode(InodeNo(12), true);
    let mut ends = [goal; 2];
    let mut pieces = [0; 2];
    image
        .alloc
        .reserve(2000, false, Retries::SOME)
        .expect("space");
    for n in 0..2000 {
        let h = image.journal.start(10).expect("a handle");
        let (start, _) = image
            .alloc
            .allocate(&h, ends[n % 2], 1, Source::Reserved)
            .expect("space");
        pieces[n % 2] += u32::from(start != ends[n % 2]);
        ends[n % 2] = start.plus(1);
    }
    assert!(pieces[0] + pieces[1] < 140, "{pieces:?}");
}

#[test]
fn what_a_transaction_freed_is_not_reused_before_it_is_durable() {
    let image = TestImage::new(40, KINDS[1].1);
    let alloc = &image.alloc;
    let mut all = Vec::new();
    let h = image.journal.start(1000).expect("a handle");
    loop {
        match alloc.allocate(&h, BlockNo(0), 4096, Source::Pool) {
            Ok(run) => all.push(run),
            Err(Error::NoSpace) => break,
            Err(e) => panic!("{e}"),
        }
    }
    let total: u32 = all.iter().map(|r| r.1).sum();
    let freed = all[0];
    alloc.free(&h, freed.0, freed.1, Class::Data).expect("free");
    assert!(matches!(
        alloc.allocate(&h, freed.0, 1, Source::Pool),
        Err(Error::NoSpace)
    ));
    assert!(!alloc.space.reserve(1, true));
    drop(h);
    let mut retries = Retries::SOME;
    assert!(alloc.retry_after_commit(&mut retries).expect("commit"));
    let h = image.journal.start(10).expect("a handle");
    let again = alloc
        .allocate(&h, freed.0, freed.1, Source::Pool)
        .expect("free now");
    assert_eq!(again, freed);
    assert!(u64::from(total) > alloc.geo().blocks_count / 2);
}

#[test]
fn reserving_commits_for_space_before_it_says_no() {
    let image = TestImage::new(40, KINDS[1].1);
    let alloc = &image.alloc;
    let (_, available) = alloc.free_blocks();
    let h = image.journal.start(1000).expect("a handle");
    let mut held = Vec::new();
    let mut left = available as u32;
    while left > 0 {
        let run = alloc
            .allocate(&h, BlockNo(0), left, FREE)
            .expect("available");
        left -= run.1;
        held.push(run);
    }
    drop(h);
    assert!(matches!(
        alloc.reserve(1, false, Retries::SOME),
        Err(Error::NoSpace)
    ));
    assert!(matches!(
        image
            .journal
            .start(1)
            .map(|h| alloc.allocate(&h, BlockNo(0), 1, FREE)),
        Ok(Err(Error::NoSpace))
    ));
    let h = image.journal.start(1000).expect("a handle");
    for (start, len) in held {
        alloc.free(&h, start, len, Class::Data).expect("free");
    }
    drop(h);
    alloc
        .reserve(available / 5, false, Retries::SOME)
        .expect("after a commit");
    alloc.release(available / 5);
}

#[test]
fn damage_is_named() {
    let image = TestImage::new(40, KINDS[1].1);
    let alloc = &image.alloc;
    let h = image.journal.start(100).expect("a handle");
    let (start, _) = alloc.allocate(&h, BlockNo(5000), 10, FREE).expect("space");
    alloc.free(&h, start.plus(3), 1, Class::Data).expect("free");
    let twice = damage(alloc.free(&h, start, 10, Class::Data).unwrap_err());
    assert!(
        matches!(twice, Damage::FreeTwice { block, .. } if block == start.plus(3)),
        "{twice}"
    );
    let table = alloc.inode_table(GroupNo(0));
    let system = damage(alloc.free(&h, table, 1, Class::Data).unwrap_err());
    assert_eq!(
        system,
        Damage::FreeSystem {
            start: table,
            count: 1
        }
    );
    let end = BlockNo(alloc.geo().blocks_count - 1);
    let outside = damage(alloc.free(&h, end, 2, Class::Data).unwrap_err());
    assert_eq!(
        outside,
        Damage::FreeOutside {
            start: end,
            count: 2
        }
    );
    let inode = damage(alloc.free_inode(&h, InodeNo(500), false).unwrap_err());
    assert_eq!(inode, Damage::InodeFreeTwice(InodeNo(500)));
    assert!(alloc.check_mappable(ROOT, start, 10).is_ok());
    assert!(alloc.check_mappable(ROOT, table, 1).is_err());
}

/// Changes a bit that no checksum covers (ext3) behind the file system's back.
#[test]
fn a_bitmap_that_disagrees_with_its_descriptor_is_found() {
    for (bit, value) in [(6000, true), (0, false)] {
        let image = TestImage::new(40, KINDS[4].1);
        let block = image.alloc.groups[0].state.lock().desc.block_bitmap;
        let size = image.alloc.geo().block_size();
        let tag = Tag::new(Class::BlockBitmap, Cause::Control);
        let mut bytes = vec![0; size];
        image
            .dev()
            .read_at(block.0 * size as u64, &mut bytes, tag)
            .expect("read");
        super::bits::fill(&mut bytes, 0, bit..bit + 1, value);
        image
            .dev()
            .write_at(block.0 * size as u64, &bytes, tag)
            .expect("write");
        let h = image.journal.start(10).expect("a handle");
        match damage(image.alloc.allocate(&h, BlockNo(100), 1, FREE).unwrap_err()) {
            Damage::FreeBlocks {
                group: GroupNo(0),
                bitmap,
                descriptor,
            } => {
                assert_eq!(bitmap + 1, descriptor);
                assert!(value);
            }
            Damage::SystemBlockFree {
                block: BlockNo(1), ..
            } => assert!(!value),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn every_inode_can_be_taken_once() {
    for kind in [1, 3, 4] {
        let image = TestImage::new(40, KINDS[kind].1);
        let count = image.alloc.free_inodes();
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..count {
            let h = image.journal.start(10).expect("a handle");
            assert!(
                seen.insert(
                    image
                        .alloc
                        .alloc_inode(&h, ROOT, false, false)
                        .expect("one more")
                        .0
                )
            );
        }
        let h = image.journal.start(10).expect("a handle");
        assert!(matches!(
            image.alloc.alloc_inode(&h, ROOT, false, false),
            Err(Error::NoSpace)
        ));
        assert_eq!(image.alloc.free_inodes(), 0);
    }
}

#[test]
fn top_level_directories_are_spread_and_others_stay_near() {
    let image = TestImage::new(200, &["-t", "ext4", "-b", "1024", "-G", "4"]);
    let geo = *image.alloc.geo();
    let flex = |ino: InodeNo| geo.group_of_inode(ino).0.0 / geo.groups_per_flex;
    let h = image.journal.start(1000).expect("a handle");
    let top: Vec<_> = (0..6)
        .map(|_| image.alloc.alloc_inode(&h, ROOT, true, false).expect("one"))
        .collect();
    let flexes: std::collections::BTreeSet<_> = top.iter().map(|i| flex(*i)).collect();
    assert!(flexes.len() >= 5, "{flexes:?}");
    for dir in top {
        let child = image.alloc.alloc_inode(&h, dir, true, false).expect("one");
        let file = image.alloc.alloc_inode(&h, dir, false, false).expect("one");
        assert_eq!((flex(child), flex(file)), (flex(dir), flex(dir)));
    }
}

#[test]
fn trim_discards_what_is_free_and_nothing_else() {
    let image = TestImage::new(40, KINDS[1].1);
    let alloc = &image.alloc;
    let blocks = alloc.geo().blocks_count;
    let h = image.journal.start(100).expect("a handle");
    let (kept, len) = alloc
        .allocate(&h, BlockNo(20_000), 50, FREE)
        .expect("space");
    let (pinned, pinned_len) = alloc
        .allocate(&h, BlockNo(21_000), 50, FREE)
        .expect("space");
    let tag = Tag::new(Class::Data, Cause::Home);
    let size = alloc.geo().block_size() as u64;
    image
        .dev()
        .write_at(kept.0 * size, &vec![7; len as usize * size as usize], tag)
        .expect("write");
    drop(h);
    image.journal.commit_running().expect("commit");
    let h = image.journal.start(100).expect("a handle");
    alloc
        .free(&h, pinned, pinned_len, Class::Data)
        .expect("free");
    drop(h);
    let before = alloc.free_blocks();
    let trimmed = alloc.trim(0..blocks, 1).expect("trim");
    assert_eq!(alloc.free_blocks(), before);
    // Root's blocks and the pool may be left out, nothing else.
    assert!(
        trimmed <= before.0 && trimmed + 50 >= before.1,
        "{trimmed} of {before:?}"
    );
    let mut content = vec![0; len as usize * size as usize];
    image
        .dev()
        .read_at(kept.0 * size, &mut content, tag)
        .expect("read");
    assert!(content.iter().all(|b| *b == 7));
    assert_eq!(alloc.trim(20_000..20_050, 1).expect("trim"), 0);
    assert_eq!(alloc.trim(0..blocks, u64::MAX).expect("trim"), 0);
}

#[test]
fn threads_never_get_the_same_block() {
    let image = TestImage::new(100, KINDS[0].1);
    let (alloc, journal) = (&image.alloc, &image.journal);
    let runs = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4u64)
            .map(|w| {
                scope.spawn(move || {
                    let mut held = Vec::new();
                    for n in 0..300u64 {
                        let h = journal.start(20).expect("a handle");
                        held.push(
                            alloc
                                .allocate(&h, BlockNo(w * 100), (n % 9 + 1) as u32, FREE)
                                .expect("space"),
                        );
                        if n % 3 == 0 {
                            let (start, len) = held.swap_remove(n as usize % held.len());
                            alloc.free(&h, start, len, Class::Data).expect("free");
                        }
                        drop(h);
                        if n % 50 == 0 {
                            journal.commit_running().expect("commit");
                        }
                    }
                    held
                })
            })
            .collect();
        workers
            .into_iter()
            .flat_map(|w| w.join().expect("no panic"))
            .collect::<Vec<_>>()
    });
    let mut in_use = InUse::default();
    for (start, len) in &runs {
        in_use.add(*start, *len);
    }
    let h = journal.start(2000).expect("a handle");
    for (start, len) in runs {
        alloc.free(&h, start, len, Class::Data).expect("free");
    }
    drop(h);
    image.e2fsck();
}

/// mke2fs leaves bitmaps and inode tables of unused groups unwritten: their content must not
/// matter.
#[test]
fn what_was_never_written_is_never_read() {
    for kind in [1, 3] {
        let image = TestImage::new(60, KINDS[kind].1);
        let geo = *image.alloc.geo();
        let (free, inodes) = (
            image.alloc.free_blocks_in_bitmaps(),
            image.alloc.free_inodes(),
        );
        let size = geo.block_size();
        let garbage = vec![0xA5; size];
        let mut spoilt = 0;
        let tag = Tag::new(Class::Data, Cause::Control);
        let mut spoil = |block: BlockNo| {
            image
                .dev()
                .write_at(block.0 * size as u64, &garbage, tag)
                .expect("write");
            spoilt += 1;
        };
        for group in &image.alloc.groups {
            let state = group.state.lock();
            let flags = state.desc.flags(&geo);
            if flags.contains(GroupFlags::BLOCK_UNINIT) {
                spoil(state.desc.block_bitmap);
            }
            if flags.contains(GroupFlags::INODE_UNINIT) {
                spoil(state.desc.inode_bitmap);
            }
            let used = geo.inodes_per_group() - state.desc.itable_unused;
            for block in used.div_ceil(geo.inodes_per_block())..geo.inode_table_blocks() {
                assert!(!flags.contains(GroupFlags::INODE_ZEROED));
                spoil(state.desc.inode_table.plus(block.into()));
            }
        }
        assert!(spoilt > 1000);
        let mut taken = Vec::new();
        for g in (0..geo.groups_count()).map(GroupNo) {
            let h = image.journal.start(500).expect("a handle");
            for _ in 0..20 {
                let parent = geo.inode_at(g, 0);
                let ino = image
                    .alloc
                    .alloc_inode(&h, parent, false, false)
                    .expect("an inode");
                let (group, index) = geo.group_of_inode(ino);
                let (block, offset) = geo.inode_position(index);
                let block = image.alloc.inode_table(group).plus(block.into());
                let content = image.journal.read(block, Class::InodeTable).expect("read");
                assert_ne!(content[offset], 0xA5, "inode {ino}");
                taken.push(ino);
            }
            let (start, len) = image
                .alloc
                .allocate(&h, geo.group_first_block(g), 3, FREE)
                .expect("space");
            image.alloc.free(&h, start, len, Class::Data).expect("free");
        }
        let h = image.journal.start(500).expect("a handle");
        for ino in taken {
            image.alloc.free_inode(&h, ino, false).expect("free");
        }
        drop(h);
        assert_eq!(
            (
                image.alloc.free_blocks_in_bitmaps(),
                image.alloc.free_inodes()
            ),
            (free, inodes)
        );
        image.e2fsck();
    }
}

#[test]
fn roots_blocks_are_for_root_and_for_whom_the_superblock_names() {
    let named = ["-t", "ext4", "-b", "1024", "-E", "nodiscard"];
    let image = TestImage::new(40, &named);
    let may = |alloc: &Alloc, uid, gid| alloc.may_use_root_blocks(&Caller::user(uid, gid));
    let alloc = image.allocator(|sb| (sb.def_resuid, sb.def_resgid) = (0, 0));
    assert!(may(&alloc, 0, 0) && !may(&alloc, 1000, 0));
    let alloc = image.allocator(|sb| (sb.def_resuid, sb.def_resgid) = (77, 88));
    assert!(may(&alloc, 77, 5) && may(&alloc, 1000, 88) && !may(&alloc, 1000, 5));
}

/// Two descriptors can share a bitmap and both agree with it when it is first read. The damage
/// shows as soon as they no longer do.
#[test]
fn two_groups_with_one_bitmap_are_found() {
    let image = TestImage::new(40, KINDS[4].1);
    let alloc = &image.alloc;
    let shared = alloc.groups[1].state.lock().desc;
    let free = shared.free_blocks_count;
    {
        let mut state = alloc.groups[2].state.lock();
        state.desc.block_bitmap = shared.block_bitmap;
        state.desc.free_blocks_count = free;
    }
    let first = |g| alloc.geo().group_first_block(GroupNo(g));
    let h = image.journal.start(1000).expect("a handle");
    alloc.groups[1].state.lock().blocks_checked = true;
    let mut taken = Vec::new();
    while taken.iter().map(|run: &(BlockNo, u32)| run.1).sum::<u32>() < free / 2 {
        taken.push(alloc.allocate(&h, first(2), 100, FREE).expect("space"));
    }
    // The bits mean blocks of group 1 too, which was never told.
    let freed = taken.iter().find_map(|(start, len)| {
        let same_bits = first(1).plus(start.0 - first(2).0);
        alloc.free(&h, same_bits, *len, Class::Data).err()
    });
    let damage_of_free = damage(freed.expect("more free blocks than the group has"));
    assert!(
        matches!(
            damage_of_free,
            Damage::FreeBlocks {
                group: GroupNo(1),
                ..
            }
        ),
        "{damage_of_free}"
    );
    drop(h);
    image.journal.commit_running().expect("commit");
    alloc.release_pins();
    alloc.free_blocks[2].store(free, std::sync::atomic::Ordering::Relaxed);
    alloc.groups[2].state.lock().longest = u32::MAX;
    let h = image.journal.start(1000).expect("a handle");
    let refused = (0..200).find_map(|_| alloc.allocate(&h, first(2), 100, FREE).err());
    let damage_of_take = damage(refused.expect("more blocks than the descriptor counts"));
    assert!(
        matches!(
            damage_of_take,
            Damage::FreeBlocks {
                group: GroupNo(2),
                ..
            }
        ),
        "{damage_of_take}"
    );
}

/// Placing data at commit continues in another group; the next writer hears of the damage.
#[test]
fn a_damaged_group_is_set_aside() {
    let image = TestImage::new(40, KINDS[1].1);
    let alloc = &image.alloc;
    let goal = alloc.geo().group_first_block(GroupNo(2));
    alloc.groups[2].state.lock().desc.block_bitmap_csum ^= 1;
    alloc.groups[2]
        .state
        .lock()
        .desc
        .flags
        .remove(GroupFlags::BLOCK_UNINIT);
    let free = alloc.free_blocks_in_bitmaps();
    alloc.reserve(50, false, Retries::SOME).expect("space");
    let h = image.journal.start(100).expect("a handle");
    let (start, got) = alloc
        .allocate(&h, goal, 50, Source::Reserved)
        .expect("space elsewhere");
    assert_ne!(alloc.geo().group_of_block(start).0, GroupNo(2));
    assert_eq!(got, 50);
    drop(h);
    assert_eq!(alloc.free_blocks_in_bitmaps(), free - 50);
    let told = alloc.reserve(1, false, Retries::SOME).unwrap_err();
    assert!(matches!(told, Error::Corrupt(_)), "{told}");
    alloc.reserve(1, false, Retries::SOME).expect("it was told");
    let h = image.journal.start(100).expect("a handle");
    assert!(
        alloc.allocate(&h, goal, 10, FREE).is_ok(),
        "the group is passed over"
    );
}
