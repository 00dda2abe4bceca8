//! The contract of `stetfs_scheme`, tested with each registered scheme, without a journal and a
//! file system above it: the first test of a new scheme, in a second.
//!
//! The volume has 256 blocks. Its log has 64, in two pieces, so that it fills all the time.
//! Transactions overwrite metadata and data, free blocks and use them again. Some blocks begin like
//! a record of JBD2. The model is the list of contents after each transaction.
#![forbid(unsafe_code)]

#[cfg(feature = "testing")]
mod examples;
mod rig;

use std::ops::Range;
use std::sync::Arc;

use stetfs_format::jbd2::{JBD2_MAGIC, JournalIncompat, JournalSuperblock};
use stetfs_format::{BlockNo, BlockSize, InodeNo, LBlock, Tid};
use stetfs_media::sim::{CrashPoint, Keep, SimOptions, Timing};
use stetfs_media::{Block, BlockDev, BlockRef, Cause, Class, Image, PmemDev, SimDev, SimPmem, Tag};
use stetfs_scheme::{
    About, Backlog, DataMode, DataPromise, Goal, Ground, Held, LogExtent, LoggedBlock, Mark,
    Opened, Origin, Ranges, Registration, SchemeError, SchemeOptions, Snapshot, Trial,
};
use stetfs_schemes::{SCHEMES, find};

use crate::rig::{
    BLOCK, BLOCKS, LOG, Rig, Rng, WORLD, World, long_transaction, transaction, transaction_of,
    volume, volume_with_log,
};

/// Returns the schemes for which a plain device or plain memory is enough.
fn schemes() -> impl Iterator<Item = &'static Registration> {
    SCHEMES.iter().filter(|scheme| !scheme.about.needs_remap)
}

/// Asserts that each block of the world is read with its content, from the scheme or from home.
fn assert_read(rig: &Rig, opened: &Opened, world: &World, what: &str) {
    let scheme = &opened.scheme;
    for (block, content) in world {
        let at = BlockNo(*block);
        match scheme.read(at).expect("a read") {
            Held::Here(found) => {
                assert!(
                    found[..] == content[..],
                    "{what}: block {block} is held, and wrong"
                );
                let sees_it = scheme.holds_any(at, 1) && scheme.holds_any(BlockNo(0), 256);
                assert!(
                    sees_it,
                    "{what}: block {block} is held, and holds_any denies it"
                );
                let mut part = [0; 50];
                let is_read = scheme
                    .cache()
                    .map(|cache| cache.read_part(at, 300, &mut part));
                if is_read.is_some_and(|read| read.expect("a read")) {
                    assert!(part[..] == content[300..350], "{what}: a part of {block}");
                }
            }
            Held::Home => assert!(
                rig.home(*block)[..] == content[..],
                "{what}: block {block} is not held, and not home"
            ),
        }
    }
    assert_filtered(opened, WORLD.start - 1..WORLD.end + 1, what);
}

/// Returns the bytes that were written to the media so far.
fn bytes_written(rig: &Rig) -> u64 {
    let nvm = rig.nvm.as_ref().map(|nvm| nvm.meter());
    let meters = [Some(rig.dev.meter()), nvm].into_iter().flatten();
    let bytes = meters.map(|meter| {
        let shown = meter.snapshot();
        let bytes = shown.iter().map(|(_, traffic)| traffic.write_bytes);
        bytes.sum::<u64>()
    });
    bytes.sum()
}

/// Asserts that the filter before long reads says of each block whether it is held.
fn assert_filtered(opened: &Opened, blocks: Range<u64>, what: &str) {
    for block in blocks.map(BlockNo) {
        let is_held = matches!(opened.scheme.read(block).expect("a read"), Held::Here(_));
        let is_said = opened.scheme.holds_any(block, 1);
        assert_eq!(is_said, is_held, "{what}: block {block}");
    }
}

#[test]
fn what_was_committed_is_read_and_gets_home() {
    for scheme in schemes() {
        let seeds = |trial| (0..4).filter_map(move |seed| Some((seed, trial, Rig::of(trial)?)));
        for (seed, trial, rig) in scheme.trials.iter().flat_map(seeds) {
            let name = trial.name;
            let mut rng = Rng(seed);
            let (mut world, mut tid, mut is_marked) = (World::new(), 0, false);
            for mount in 0..3 {
                let opened = rig.open(scheme, is_marked).expect("it opens");
                assert!(!opened.report.was_needed, "{name}: it was closed");
                is_marked = opened.terms.keeps;
                for _ in 0..30 {
                    tid += 1;
                    let what = format!("{name}, seed {seed}, mount {mount}, transaction {tid}");
                    let txn = transaction(tid, &mut world, &mut rng, opened.terms.wants);
                    opened.scheme.commit(&txn).expect("a commit");
                    assert_read(&rig, &opened, &world, &what);
                    if opened.scheme.backlog().is_due || rng.below(10) == 0 {
                        opened
                            .scheme
                            .checkpoint(Goal::Background)
                            .expect("a checkpoint");
                        assert_read(&rig, &opened, &world, &what);
                    }
                }
                opened.scheme.checkpoint(Goal::All).expect("a checkpoint");
                assert!(rig.is_home(&world), "{name}, seed {seed}: Goal::All");
                let what = format!("{name}, seed {seed}: Goal::All");
                assert_filtered(&opened, 0..BLOCKS, &what);
                let done = bytes_written(&rig);
                opened.scheme.checkpoint(Goal::All).expect("a checkpoint");
                assert_eq!(bytes_written(&rig), done, "{what}, again");
                match opened.scheme.cache() {
                    Some(cache) => assert_eq!(cache.stats().dirty, 0, "{what}"),
                    None => assert!(!opened.scheme.holds_any(BlockNo(0), 256), "{what}"),
                }
                // Checkpoints in time leave no backlog, and no commit is forced to make one.
                assert_eq!(opened.scheme.backlog(), Backlog::default(), "{what}");
                let actions = opened.scheme.actions();
                let actions: Vec<_> = actions.iter().map(|action| action.name).collect();
                if scheme.about.name == "stet" && name != "stet-jbd2" {
                    assert_eq!(actions, ["delta", "switch", "whole"], "{what}");
                }
                opened.scheme.close().expect("closing");
                assert!(rig.is_home(&world), "{name}, seed {seed}: closed");
            }
        }
    }
}

/// The same changes cost a commit and a checkpoint the same, however often they were made before. A
/// scheme that does not forget blocks that are home would do more each time. So would one whose
/// checkpoints take too little, where the log is long.
#[test]
fn what_is_done_again_costs_the_same() {
    // Rounds before the costs are compared, until earlier changes have no influence.
    const FIRST: usize = 4;
    const CAUSES: [Cause; 2] = [Cause::Log, Cause::Checkpoint];
    for scheme in schemes() {
        for (trial, rig) in scheme.trials.iter().filter_map(|t| Some((t, Rig::of(t)?))) {
            // Bytes and requests of a cause.
            let done = |cause| {
                let nvm = rig.nvm.as_ref().map(|nvm| nvm.meter());
                let meters = [Some(rig.dev.meter()), nvm].into_iter().flatten();
                meters.fold((0, 0), |(bytes, requests), meter| {
                    let traffic = meter.snapshot().by_cause(cause);
                    (bytes + traffic.write_bytes, requests + traffic.writes)
                })
            };
            let opened = rig.open(scheme, false).expect("it opens");
            let mut world = World::new();
            let rounds = (0..24).map(|round| {
                let before = CAUSES.map(done);
                for n in 1..=2 {
                    let txn = long_transaction(2 * round + n, 5, &mut world, true);
                    opened.scheme.commit(&txn).expect("a commit");
                }
                opened.scheme.checkpoint(Goal::All).expect("a checkpoint");
                let after = CAUSES.map(done);
                let cost = |i: usize| (after[i].0 - before[i].0, after[i].1 - before[i].1);
                (cost(0), cost(1))
            });
            let rounds: Vec<_> = rounds.collect();
            let ((bytes, requests), checkpoint) = rounds[FIRST];
            for ((bytes_now, requests_now), checkpoint_now) in &rounds[FIRST..] {
                // One request more or less, because the log is a ring in two pieces, and a round
                // may cross one of its ends.
                let is_same = *bytes_now == bytes
                    && requests_now.abs_diff(requests) <= 1
                    && *checkpoint_now == checkpoint;
                assert!(is_same, "{trial}: {rounds:?}");
            }
        }
    }
}

/// The longest transactions, with the blocks that placing data may add, fit one after the other.
#[test]
fn as_much_as_is_promised_fits_each_time() {
    const BEHIND_THE_LOG: u64 = 150;
    for scheme in schemes() {
        for rig in Rig::each(scheme.about) {
            let name = scheme.about.name;
            let opened = rig.open(scheme, false).expect("it opens");
            let most = 3 * u64::from(opened.terms.max_transaction);
            let mut world = World::new();
            for (tid, less) in (1..).zip([0, 0, 5, 0, 1, 0]) {
                let blocks = most.min(BEHIND_THE_LOG) - less;
                let txn = long_transaction(tid, blocks, &mut world, opened.terms.wants.base);
                let committed = opened.scheme.commit(&txn);
                committed.unwrap_or_else(|error| panic!("{name}, {blocks} blocks: {error}"));
                assert_read(&rig, &opened, &world, name);
            }
            opened.scheme.close().expect("closing");
            assert!(rig.is_home(&world), "{name}");
        }
    }
}

/// A log that is too short is refused. In every other one the promised transaction fits.
#[test]
fn a_log_of_any_size_works_or_is_refused() {
    for scheme in schemes() {
        let (mut refused, mut name) = (0, scheme.about.name.to_owned());
        for len in 0..LOG[1].len {
            let mut rig = Rig::new(scheme.about);
            rig.log = vec![LogExtent { len, ..LOG[1] }];
            let Ok(opened) = rig.open(scheme, false) else {
                refused += 1;
                continue;
            };
            name = format!("{} with a log of {len} blocks", scheme.about.name);
            let most = u64::from(opened.terms.max_transaction).clamp(1, 100);
            let mut world = World::new();
            for tid in 1..=3 {
                let txn = long_transaction(tid, most, &mut world, opened.terms.wants.base);
                let committed = opened.scheme.commit(&txn);
                committed.unwrap_or_else(|error| panic!("{name}, {most} blocks: {error}"));
                assert_read(&rig, &opened, &world, &name);
            }
            opened.scheme.close().expect("closing");
            assert!(rig.is_home(&world), "{name}");
        }
        let uses_it = scheme.about.atomic && !scheme.about.nvm.is_needed();
        assert!(refused > 0 || !uses_it, "{name}: no log is too short");
        // The superblock's block, the header's, and a ring of sixteen blocks.
        if ["stet", "shortcut"].contains(&scheme.about.name) {
            assert_eq!(refused, 18, "{name}");
        }
    }
}

/// A JBD2 log may be shorter than its inode. It leaves the blocks behind its end alone.
#[test]
fn a_log_that_ends_before_its_blocks_keeps_to_its_end() {
    let scheme = find("jbd2").expect("a scheme");
    let blocks = LOG.map(|extent| extent.len);
    for left_over in [1, 7, blocks[1], blocks[1] + 3] {
        let mut image = volume_with_log(blocks.iter().sum::<u32>() - left_over);
        let all = LOG
            .iter()
            .flat_map(|e| e.start.0..e.start.0 + u64::from(e.len));
        let behind: Vec<u64> = all.rev().take(left_over as usize).collect();
        for block in &behind {
            image.write(block * BLOCK as u64, &[0xa5; BLOCK]);
        }
        let rig = Rig::on(Arc::new(SimDev::new(image)));
        let (mut world, mut rng) = (World::new(), Rng(left_over.into()));
        for tid in 1..=90 {
            let opened = rig.open(scheme, false).expect("it opens");
            for n in 0..3 {
                let wants = opened.terms.wants;
                let txn = transaction(3 * tid + n, &mut world, &mut rng, wants);
                opened.scheme.commit(&txn).expect("a commit");
            }
            assert_read(&rig, &opened, &world, "a short log");
            drop(opened);
        }
        let opened = rig.open(scheme, false).expect("it opens");
        assert_read(&rig, &opened, &world, "a short log");
        opened.scheme.close().expect("closing");
        for block in behind {
            assert!(rig.home(block) == [0xa5; BLOCK], "{left_over}: {block}");
        }
    }
}

/// Opening a volume read-only does not write it: neither a fresh one, nor one that was closed, nor
/// one that was not, which may be refused.
#[test]
fn what_is_opened_to_be_read_is_not_written() {
    for scheme in schemes() {
        for (trial, mut rig) in scheme.trials.iter().filter_map(|t| Some((t, Rig::of(t)?))) {
            let mut is_marked = false;
            for what in ["never used", "closed", "not closed"] {
                let before = bytes_written(&rig);
                rig.writable = false;
                drop(rig.open(scheme, is_marked));
                assert_eq!(bytes_written(&rig), before, "{trial}, {what}");
                rig.writable = true;
                let opened = rig.open(scheme, is_marked).expect("it opens");
                let txn = long_transaction(1, 5, &mut World::new(), false);
                opened.scheme.commit(&txn).expect("a commit");
                is_marked = opened.terms.mark == Mark::PrivateLog;
                if what == "never used" {
                    is_marked = opened.terms.keeps;
                    opened.scheme.close().expect("closing");
                }
            }
        }
    }
}

#[test]
fn what_it_does_not_have_is_refused() {
    use DataMode::{Journal, Ordered, Writeback};
    for scheme in schemes() {
        let (rig, about) = (Rig::new(scheme.about), scheme.about);
        let missing = [Journal, Ordered, Writeback].map(Some);
        let missing = missing
            .into_iter()
            .filter(|m| !about.modes.contains(&m.expect("a mode")));
        let modes = missing.map(|data| (data, Vec::new()));
        let unknown = (None, vec![("nonsense".to_owned(), "on".to_owned())]);
        for (data, extra) in modes.chain([unknown]) {
            let what = format!("{}: {data:?} {extra:?}", about.name);
            let error = rig.open_with(scheme, false, SchemeOptions { data, extra });
            let error = error.map(drop).expect_err(&what);
            assert!(
                matches!(error, SchemeError::Option { .. }),
                "{what}: {error}"
            );
        }
    }
}

/// A volume with a compressor of an older version is refused with the compressor's name.
#[test]
fn a_compressor_that_is_not_here_is_named() {
    let dj = find("dj").expect("a scheme");
    let ask = |value: &str| {
        let extra = vec![("compress".to_owned(), value.to_owned())];
        let options = SchemeOptions { data: None, extra };
        Rig::new(dj.about).open_with(dj, false, options).map(drop)
    };
    assert!(ask("lzo").is_ok() && ask("ranges").is_ok());
    for (value, why) in [
        ("zstd", "stetfs lab dj-fig4"),
        ("best", "compress=best: lzo|ranges"),
    ] {
        let error = ask(value).expect_err(value).to_string();
        assert!(error.contains(value) && error.contains(why), "{error}");
    }
}

/// In a closed log JBD2 finds neither a start nor anything that it could take for a record.
#[test]
fn a_closed_log_means_nothing_to_jbd2() {
    let has_own =
        |about: &About| about.needs_journal_area && !about.is_jbd2(&SchemeOptions::default());
    let own = schemes().filter(|scheme| has_own(scheme.about));
    for (scheme, rig) in own.flat_map(|scheme| {
        Rig::each(scheme.about)
            .into_iter()
            .map(move |rig| (scheme, rig))
    }) {
        let mut rng = Rng(1);
        let (mut world, name) = (World::new(), scheme.about.name);
        let opened = rig.open(scheme, false).expect("it opens");
        for tid in 1..40 {
            let txn = transaction(tid, &mut world, &mut rng, opened.terms.wants);
            opened.scheme.commit(&txn).expect("a commit");
        }
        // These blocks are nothing but magic numbers, so that blocks of the log begin with one.
        for tid in 40..44 {
            let base = opened.terms.wants.base;
            let magic = |_| JBD2_MAGIC.to_be_bytes();
            let txn = transaction_of(tid, 9, &mut world, base, magic);
            opened.scheme.commit(&txn).expect("a commit");
        }
        opened.scheme.close().expect("closing");
        let head = JournalSuperblock::decode(&rig.home(LOG[0].start.0), BlockSize::of(BLOCK));
        assert_eq!(head.expect("JBD2's superblock").start, 0, "{name}");
        let blocks = LOG
            .iter()
            .flat_map(|e| e.start.0..e.start.0 + u64::from(e.len));
        for block in blocks.skip(1) {
            let is_record = rig.home(block).starts_with(&JBD2_MAGIC.to_be_bytes());
            assert!(
                !is_record,
                "{name}: block {block} looks like a record of JBD2"
            );
        }
    }
}

/// A log that names blocks beyond the volume's end belongs to another volume, or is damaged.
/// Recovery says so, and leaves the volume as it is.
#[test]
fn a_log_that_names_what_is_not_there_is_refused() {
    for scheme in schemes().filter(|s| s.about.atomic) {
        for rig in Rig::each(scheme.about) {
            let opened = rig.open(scheme, false).expect("it opens");
            let is_private = opened.terms.mark == Mark::PrivateLog;
            let (mut world, mut rng) = (World::new(), Rng(5));
            for tid in 1..=4 {
                let txn = transaction(tid, &mut world, &mut rng, opened.terms.wants);
                opened.scheme.commit(&txn).expect("a commit");
            }
            drop(opened);
            let volume = || (0..BLOCKS).map(|block| rig.home(block)).collect::<Vec<_>>();
            let before = volume();
            let shorter = Rig {
                dev: rig.dev.clone(),
                nvm: rig.nvm.clone(),
                options: rig.options.clone(),
                log: rig.log.clone(),
                blocks: WORLD.start,
                ..rig
            };
            let name = scheme.about.name;
            assert!(
                shorter.open(scheme, is_private).is_err(),
                "{name}: it opened"
            );
            assert!(volume() == before, "{name}: it wrote");
            let opened = rig.open(scheme, is_private).expect("its own volume");
            assert_read(&rig, &opened, &world, name);
        }
    }
}

/// With asynchronous commits a record may be durable before its body. If the newest transaction has
/// a wrong body, it was in flight and does not count; if others follow it, it was damaged.
#[test]
fn a_damaged_body_counts_by_what_follows_it() {
    const COMMITS: u32 = 5;
    const BODY: u64 = 3;
    let scheme = find("jbd2").expect("a scheme");
    // With a checksum for each transaction, and with one for each block, which the kernel has too.
    for name in ["jbd2-async", "jbd2-journal"] {
        let trial = scheme.trials.iter().find(|trial| trial.name == name);
        let trial = trial.expect("a trial");
        let rig = Rig::of(trial).expect("a device is enough");
        let put = |block: u64, content: &[u8]| {
            let tag = Tag::new(Class::Journal, Cause::Control);
            let written = rig.dev.write_at(block * BLOCK as u64, content, tag);
            written.expect("a write");
        };
        let opened = rig.open(scheme, false).expect("it opens");
        let mut worlds = vec![World::new()];
        for tid in 1..=COMMITS {
            let mut world = worlds[worlds.len() - 1].clone();
            let txn = long_transaction(tid, BODY, &mut world, false);
            opened.scheme.commit(&txn).expect("a commit");
            worlds.push(world);
        }
        drop(opened);
        let mut raw = rig.home(LOG[0].start.0);
        let mut superblock =
            JournalSuperblock::decode(&raw, BlockSize::of(BLOCK)).expect("a superblock");
        let is_async = JournalIncompat::ASYNC_COMMIT;
        superblock.feature_incompat.insert(is_async);
        superblock.encode_into(&mut raw);
        put(LOG[0].start.0, &raw);
        for damaged in 1..=COMMITS {
            // The block before the commit block: a transaction is a descriptor, its blocks, and the
            // commit block.
            let at = LOG[0].start.0 + u64::from(damaged) * (1 + BODY + 1) - 1;
            let before = rig.home(at);
            put(at, &[0x5a; BLOCK]);
            let recovered = rig.open(scheme, true);
            let is_newest = damaged == COMMITS;
            let what = format!("{name}, transaction {damaged}");
            assert_eq!(recovered.is_ok(), is_newest, "{what}");
            if let Ok(opened) = recovered {
                assert_read(&rig, &opened, &worlds[damaged as usize - 1], &what);
            }
            put(at, &before);
        }
    }
}

/// The power goes off at every change of the device, and again during the recovery. Every confirmed
/// transaction survives, and the one in flight survives entirely or not at all.
#[test]
fn a_cut_leaves_whole_transactions() {
    for scheme in schemes().filter(|s| s.about.atomic) {
        let on_a_device = |trial: &&Trial| trial.ground == Ground::Block;
        for trial in scheme.trials.iter().filter(on_a_device) {
            for seed in 0..4 {
                cut(scheme, trial, seed);
            }
        }
    }
}

fn cut(scheme: &'static Registration, trial: &Trial, seed: u64) {
    let (dev, mut rng) = (Arc::new(SimDev::new(volume())), Rng(seed));
    let rig = Rig::on(dev.clone()).with(trial);
    let opened = rig.open(scheme, false).expect("it opens");
    if opened.terms.promise != DataPromise::Atomic || opened.terms.relocates.is_any() {
        // This test's model lacks states that such a scheme may leave, or its transactions are not
        // those of a journal that relocates.
        return;
    }
    let is_private = opened.terms.mark == Mark::PrivateLog;
    // Before this the volume has no mark.
    let marked_at = dev.changes();
    let (mut worlds, mut confirmed_at) = (vec![World::new()], vec![0]);
    for tid in 1..=24 {
        let mut world = worlds[worlds.len() - 1].clone();
        let txn = transaction(tid, &mut world, &mut rng, opened.terms.wants);
        worlds.push(world);
        opened.scheme.commit(&txn).expect("a commit");
        confirmed_at.push(dev.changes());
        if rng.below(6) == 0 {
            opened
                .scheme
                .checkpoint(Goal::Background)
                .expect("a checkpoint");
        }
    }
    opened.scheme.close().expect("closing");
    for point in dev.tape().crash_points() {
        let at = point.position() as u64;
        if at < marked_at {
            continue;
        }
        let confirmed = confirmed_at.iter().rposition(|&c| c <= at).unwrap_or(0);
        let allowed = &worlds[confirmed..worlds.len().min(confirmed + 2)];
        let keeps = [Keep::None, Keep::All, Keep::Random(at), Keep::Random(!at)];
        for keep in keeps.into_iter().chain(without_one_block(&point, &mut rng)) {
            let left = point.crash(&keep).image();
            let what = format!("{trial}, seed {seed}, cut at {at} keeping {keep}");
            let first = Arc::new(SimDev::new(left.clone()));
            judge(scheme, trial, first.clone(), is_private, allowed, &what);
            for second in (0..first.changes()).step_by(5) {
                let again = Arc::new(SimDev::new(left.clone()));
                again.cut_at(second);
                let dev = again.clone() as Arc<dyn BlockDev>;
                // The recovery may or may not notice that the power is off.
                drop(Rig::on(dev).with(trial).open(scheme, is_private));
                let left = again
                    .crash_point()
                    .crash(&Keep::Random(at ^ second))
                    .image();
                let what = format!("{what}, then at {second}");
                judge(
                    scheme,
                    trial,
                    Arc::new(SimDev::new(left)),
                    is_private,
                    allowed,
                    &what,
                );
            }
        }
    }
}

/// Returns three states that lack one block of the changes in flight, which a checksum over all of
/// them must notice.
fn without_one_block(point: &CrashPoint, rng: &mut Rng) -> Vec<Keep> {
    const SECTORS: usize = BLOCK / 512;
    let blocks = point.pieces().len() / SECTORS;
    let draw = |_| {
        let first = rng.below(blocks as u64) as usize * SECTORS;
        Keep::Without((first..first + SECTORS).collect())
    };
    (0..blocks.min(3)).map(draw).collect()
}

fn judge(
    scheme: &'static Registration,
    trial: &Trial,
    dev: Arc<SimDev>,
    is_private: bool,
    allowed: &[World],
    what: &str,
) {
    let rig = Rig::on(dev).with(trial);
    let opened = rig.open(scheme, is_private);
    let opened = opened.unwrap_or_else(|error| panic!("{what}: recovery: {error}"));
    opened.scheme.close().expect("closing");
    let is_allowed = allowed.iter().any(|world| rig.is_home(world));
    assert!(
        is_allowed,
        "{what}: neither of the allowed transactions is there"
    );
}

/// A transaction may lack nothing but a block that is written where it stays. Recovery drops it. If
/// a later write gives that block the same content, the transaction must not count after all,
/// because the volume has been seen without it.
#[test]
fn a_transaction_that_was_dropped_does_not_come_back() {
    let stet = find("stet").expect("a scheme");
    let rig = Rig::new(stet.about);
    let block = |home: u64, class: Class, origin: Origin, byte: u8| {
        let mut content = Block::zeroed(BLOCK);
        content.bytes_mut().fill(byte);
        LoggedBlock {
            home: BlockNo(home),
            class,
            content: content.into(),
            base: None,
            ranges: Ranges::whole(BLOCK),
            origin,
            whole: false,
            owner: (class == Class::Data).then_some((InodeNo(12), LBlock(0))),
            spot: None,
        }
    };
    let transaction = |tid: u32, meta: LoggedBlock, data: Vec<LoggedBlock>| Snapshot {
        tid: Tid(tid),
        meta: vec![meta],
        data,
        revoked: Vec::new(),
        time: (u64::from(tid), 0),
    };
    let opened = rig.open(stet, false).expect("it opens");
    let first = transaction(
        1,
        block(200, Class::Directory, Origin::Fresh, 1),
        Vec::new(),
    );
    let in_place = block(203, Class::Data, Origin::Fresh, 9);
    let second = transaction(
        2,
        block(200, Class::Directory, Origin::Old, 2),
        vec![in_place.clone()],
    );
    for txn in [&first, &second] {
        opened.scheme.commit(txn).expect("a commit");
    }
    let put = |content: &[u8]| {
        let tag = Tag::new(Class::Data, Cause::Control);
        let at = in_place.home.0 * BLOCK as u64;
        rig.dev.write_at(at, content, tag).expect("a write");
    };
    for (content, what) in [
        (&[0; BLOCK][..], "without its block"),
        (&in_place.content[..], "with its block there at last"),
    ] {
        put(content);
        let recovered = rig.open(stet, true).expect("it opens");
        let Held::Here(found) = recovered.scheme.read(BlockNo(200)).expect("a read") else {
            panic!("{what}: the first transaction is lost");
        };
        assert!(found[..] == first.meta[0].content[..], "{what}: it counts");
    }
}

/// Recovery reads log and homes in order and in large pieces. Otherwise a disk would turn once for
/// each record or block.
#[test]
fn a_disk_recovers_in_a_few_turns() {
    const CHANGES: u32 = 30;
    const TURNS: u64 = 16;
    let turn_ns = 60_000_000_000 / 7200;
    let on_disk = |scheme: &'static Registration| {
        let trials = scheme.trials.iter();
        trials.filter_map(move |trial| (trial.ground == Ground::Block).then_some((scheme, trial)))
    };
    for (scheme, trial) in schemes().flat_map(on_disk) {
        let options = SimOptions {
            timing: Timing::Hdd,
            ..SimOptions::default()
        };
        let dev = Arc::new(options.build(volume()));
        let rig = Rig::on(dev.clone()).with(trial);
        let opened = rig.open(scheme, false).expect("it opens");
        let old = BlockRef::from(Block::zeroed(BLOCK));
        for tid in 1..=CHANGES {
            let mut content = old.clone();
            content.make_mut()[100..108].fill(1);
            let mut ranges = Ranges::new();
            ranges.add(100, 8);
            // Far from the home before.
            let home = BlockNo(WORLD.start - 80 + u64::from(tid) * 37 % 80);
            let logged = LoggedBlock {
                home,
                class: Class::Directory,
                content,
                ranges,
                origin: Origin::Old,
                base: opened.terms.wants.base.then(|| old.clone()),
                whole: false,
                owner: None,
                spot: None,
            };
            let txn = Snapshot {
                tid: Tid(tid),
                meta: vec![logged],
                data: Vec::new(),
                revoked: Vec::new(),
                time: (u64::from(tid), 0),
            };
            opened.scheme.commit(&txn).expect("a commit");
        }
        let is_marked = opened.terms.mark == Mark::PrivateLog;
        drop(opened);
        let busy_ns = || dev.meter().snapshot().total_busy_ns();
        let before = busy_ns();
        rig.open(scheme, is_marked).expect("it opens");
        let turns = (busy_ns() - before) / turn_ns;
        assert!(turns <= TURNS, "{}: {turns} turns", trial.name);
    }
}

/// A volume may be opened on a medium with other sectors after a crash. Recovery finds the log's
/// content there too, or refuses the medium.
#[test]
fn a_log_goes_on_in_the_unit_that_it_was_made_in() {
    let stet = find("stet").expect("a scheme");
    let on_sectors = |sector: u32, image: Image| {
        let options = SimOptions {
            sector,
            atomic_unit: sector,
            ..SimOptions::default()
        };
        let dev = Arc::new(options.build(image));
        (Rig::on(dev.clone()), dev)
    };
    let (mut rng, mut world, mut tid) = (Rng(3), World::new(), 0);
    let mut commit = |opened: &Opened, world: &mut World, n: u32| {
        for _ in 0..n {
            tid += 1;
            let txn = transaction(tid, world, &mut rng, opened.terms.wants);
            opened.scheme.commit(&txn).expect("a commit");
        }
    };

    let (rig, dev) = on_sectors(1024, volume());
    let opened = rig.open(stet, false).expect("it opens");
    commit(&opened, &mut world, 3);
    // Shorter sectors, back and forth: the log goes on in its own unit.
    let mut image = dev.newest();
    for sector in [512, 1024, 512] {
        let (rig, dev) = on_sectors(sector, image);
        let opened = rig.open(stet, true).expect("it opens");
        assert_read(&rig, &opened, &world, &format!("sectors of {sector}"));
        commit(&opened, &mut world, 2);
        image = dev.newest();
    }

    // Sectors longer than the log's unit.
    let (rig, dev) = on_sectors(512, volume());
    let opened = rig.open(stet, false).expect("it opens");
    commit(&opened, &mut World::new(), 3);
    let pmem = Arc::new(SimPmem::new(volume()));
    let in_memory = Rig::on(Arc::new(PmemDev::new(pmem.clone())));
    let opened = in_memory.open(stet, false).expect("it opens");
    commit(&opened, &mut World::new(), 3);
    for (unit, sector, image) in [(512, 1024, dev.newest()), (64, 512, pmem.newest())] {
        let (rig, dev) = on_sectors(sector, image.clone());
        let opened = rig.open(stet, true).map(drop);
        let error = opened.expect_err("another unit").to_string();
        assert!(
            error.contains(&format!("units of {unit} bytes")),
            "{unit} on {sector}: {error}"
        );
        assert_eq!(dev.changes(), 0, "{unit} on {sector}");
    }
}
