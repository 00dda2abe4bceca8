//! The simulated persistent memory against an independent model.
//!
//! The model knows nothing of waiting lines. It keeps the script, and for each word of each store
//! it asks: was the word flushed afterwards, and was there a fence after that? If so, the word is
//! there; if not, the test decides.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::dev::BlockDev;
use crate::error::{MediaError, Op};
use crate::image::Image;
use crate::pmem::contract::Pmem;
use crate::tag::{Cause, Class, Tag};

const SIZE: u64 = 8192;
/// The bytes that scripts use: two lines on either side of the border between two pages.
const WINDOW: std::ops::Range<u64> = 4096 - 128..4096 + 128;
const TAG: Tag = Tag::new(Class::Journal, Cause::Log);

#[derive(Clone, Debug)]
enum Access {
    Store { at: u64, data: Vec<u8> },
    StoreWord { at: u64, value: u64 },
    StoreNt { at: u64, data: Vec<u8> },
    Flush { at: u64, len: u64 },
    Fence,
}

/// Draws accesses within the first `size` bytes of the window.
fn access(size: u64) -> impl Strategy<Value = Access> {
    let bytes = |max| prop::collection::vec(any::<u8>(), 0..=max);
    let fit = move |at: u64, len: u64| WINDOW.start + at.min(size - len);
    prop_oneof![
        4 => (0..size, bytes(20)).prop_map(move |(at, data)| {
            Access::Store { at: fit(at, data.len() as u64), data }
        }),
        1 => (0..size / 8, any::<u64>()).prop_map(|(word, value)| {
            Access::StoreWord { at: WINDOW.start + word * 8, value }
        }),
        2 => (0..size / 8, prop::collection::vec(any::<[u8; 8]>(), 0..=3)).prop_map(
            move |(word, words)| Access::StoreNt {
                at: fit(word * 8, words.len() as u64 * 8),
                data: words.concat(),
            }
        ),
        3 => (0..size, 0..size)
            .prop_map(move |(at, len)| Access::Flush {
                at: WINDOW.start + at,
                len: len.min(size - at),
            }),
        2 => Just(Access::Fence),
    ]
}

fn carry_out(pmem: &SimPmem, access: &Access) -> Result<(), MediaError> {
    match access {
        Access::Store { at, data } => pmem.store(*at, data, TAG),
        Access::StoreWord { at, value } => pmem.store_u64(*at, *value, TAG),
        Access::StoreNt { at, data } => pmem.store_nt(*at, data, TAG),
        Access::Flush { at, len } => pmem.flush(*at, *len, TAG),
        Access::Fence => pmem.fence(Cause::Log),
    }
}

/// Returns the bytes that an access stores, and where.
fn stored(access: &Access) -> Option<(u64, Vec<u8>)> {
    match access {
        Access::Store { at, data } | Access::StoreNt { at, data } => Some((*at, data.clone())),
        Access::StoreWord { at, value } => Some((*at, value.to_le_bytes().to_vec())),
        Access::Flush { .. } | Access::Fence => None,
    }
}

/// Whether a word of the store at `position` is durable once the first `done` accesses were carried
/// out.
fn is_durable(script: &[Access], done: usize, position: usize, word: u64) -> bool {
    let line = word * 8 / 64 * 64..word * 8 / 64 * 64 + 64;
    let mut is_on_its_way = matches!(script[position], Access::StoreNt { .. });
    for access in &script[(position + 1).min(done)..done] {
        match access {
            Access::Flush { at, len } => {
                is_on_its_way |= *len > 0 && *at < line.end && line.start < at + len;
            }
            Access::Fence if is_on_its_way => return true,
            _ => {}
        }
    }
    false
}

/// Lists every stored word with the position of its store, and whether it is certain, for a power
/// cut after `done` accesses.
fn words_of_stores(script: &[Access], done: usize) -> Vec<(usize, u64, bool)> {
    let mut all = Vec::new();
    for (position, access) in script.iter().enumerate().take(done + 1) {
        let Some((at, data)) = stored(access) else {
            continue;
        };
        let words: BTreeSet<u64> = (at..at + data.len() as u64).map(|byte| byte / 8).collect();
        for word in words {
            all.push((position, word, is_durable(script, done, position, word)));
        }
    }
    all
}

/// Returns the content that is left if those uncertain words are kept for which `keep` returns
/// true.
fn left(script: &[Access], done: usize, mut keep: impl FnMut(usize, u64) -> bool) -> Vec<u8> {
    let mut bytes = vec![0; (WINDOW.end - WINDOW.start) as usize];
    for (position, word, is_certain) in words_of_stores(script, done) {
        if is_certain || keep(position, word) {
            let (at, data) = stored(&script[position]).expect("it stores");
            for (i, byte) in data.iter().enumerate() {
                let to = at + i as u64;
                if to / 8 == word {
                    bytes[(to - WINDOW.start) as usize] = *byte;
                }
            }
        }
    }
    bytes
}

fn decide(seed: u64, position: usize, word: u64) -> bool {
    scramble(seed ^ scramble(position as u64) ^ scramble(word << 32)) >> 63 == 1
}

/// Returns the window of a content; checks that all other bytes are unchanged.
fn window(image: &Image) -> Vec<u8> {
    let bytes = image.to_bytes();
    let (before, after) = (
        &bytes[..WINDOW.start as usize],
        &bytes[WINDOW.end as usize..],
    );
    assert!(before.iter().chain(after).all(|byte| *byte == 0));
    bytes[WINDOW.start as usize..WINDOW.end as usize].to_vec()
}

fn state(point: &CrashPoint, seed: u64) -> Vec<u8> {
    let pieces = point.pieces();
    window(&point.image(|i| decide(seed, pieces[i].entry, pieces[i].offset / 8)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Compares every moment of a tape, with some states of each; also the same moment when it is
    /// reached by cutting the power, and when the running memory is asked for it.
    #[test]
    fn crash_states_are_those_of_the_model(
        script in prop::collection::vec(access(256), 1..30),
        seed in any::<u64>(),
    ) {
        let pmem = SimPmem::new(Image::new(SIZE));
        for (n, access) in script.iter().enumerate() {
            prop_assert_eq!(
                state(&pmem.crash_point(), seed),
                left(&script[..n], n, |p, w| decide(seed, p, w))
            );
            carry_out(&pmem, access).expect("the power is on");
            let newest = left(&script[..=n], n + 1, |_, _| true);
            prop_assert_eq!(window(&pmem.newest()), newest.clone());
            let mut loaded = vec![0; newest.len()];
            pmem.load(WINDOW.start, &mut loaded, TAG).expect("the power is on");
            prop_assert_eq!(loaded, newest);
        }
        let tape = pmem.tape();
        prop_assert_eq!(tape.len(), script.len());
        for (n, point) in tape.crash_points().enumerate() {
            for seed in seed..seed.saturating_add(4) {
                let expected = left(&script, n, |p, w| decide(seed, p, w));
                prop_assert_eq!(state(&point, seed), expected, "moment {}", n);
            }
            let certain = left(&script, n, |_, _| false);
            prop_assert_eq!(window(point.stable()), certain);
        }
        let n = seed as usize % (script.len() + 1);
        let cut = SimPmem::new(Image::new(SIZE));
        cut.rig().power.cut_at(n as u64);
        for (i, access) in script.iter().enumerate() {
            prop_assert_eq!(carry_out(&cut, access).is_ok(), i < n);
        }
        let (cut, taped) = (cut.crash_point(), tape.crash_point(n));
        prop_assert_eq!(cut.pieces(), taped.pieces());
        prop_assert_eq!(state(&cut, seed), state(&taped, seed));
    }

    /// Compares, for small scripts in two lines, exactly all states of the model: every subset of
    /// the uncertain words.
    #[test]
    fn no_state_is_left_out_and_none_invented(script in prop::collection::vec(access(128), 1..9)) {
        let pmem = SimPmem::new(Image::new(SIZE));
        for access in &script {
            carry_out(&pmem, access).expect("the power is on");
        }
        for (n, point) in pmem.tape().crash_points().enumerate() {
            let uncertain: Vec<(usize, u64)> = words_of_stores(&script, n)
                .into_iter()
                .filter(|(_, _, is_certain)| !is_certain)
                .map(|(position, word, _)| (position, word))
                .collect();
            if uncertain.len() > 10 {
                continue;
            }
            let theirs: BTreeSet<Vec<u8>> = (0..1u32 << uncertain.len())
                .map(|subset| {
                    left(&script, n, |position, word| {
                        let i = uncertain.iter().position(|it| *it == (position, word));
                        subset >> i.expect("it is uncertain") & 1 == 1
                    })
                })
                .collect();
            let all: Vec<usize> = (0..point.pieces().len()).collect();
            prop_assert_eq!(&all_states(&point, &all, window), &theirs);
            prop_assert_eq!(&all_states(&point, &point.relevant_pieces(), window), &theirs);
        }
    }
}

/// Returns every state in which some of these pieces are there and the others are not, as all or
/// some of its bytes.
fn all_states(
    point: &CrashPoint,
    pieces: &[usize],
    bytes: fn(&Image) -> Vec<u8>,
) -> BTreeSet<Vec<u8>> {
    (0..1u32 << pieces.len())
        .map(|subset| {
            let kept = |i| pieces.binary_search(&i).is_ok_and(|n| subset >> n & 1 == 1);
            bytes(&point.image(kept))
        })
        .collect()
}

/// Which step a script leaves out. The script stores a body of three words and the word that
/// vouches for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forgotten {
    Nothing,
    Flush,
    Fence,
    /// The fence, after a body that went past the cache.
    FenceAfterNt,
}

fn commit(pmem: &SimPmem, forgotten: Forgotten) {
    let body = [7; 24];
    if forgotten == Forgotten::FenceAfterNt {
        pmem.store_nt(56, &body, TAG).expect("a store");
    } else {
        pmem.store(56, &body, TAG).expect("a store");
        if forgotten != Forgotten::Flush {
            pmem.flush(56, 24, TAG).expect("a flush");
        }
    }
    if !matches!(forgotten, Forgotten::Fence | Forgotten::FenceAfterNt) {
        pmem.fence(Cause::Log).expect("a fence");
    }
    pmem.store_u64(192, 1, TAG).expect("a store");
    pmem.flush(192, 8, TAG).expect("a flush");
    pmem.fence(Cause::CommitRecord).expect("a fence");
}

#[test]
fn a_forgotten_flush_or_fence_is_seen() {
    for forgotten in [
        Forgotten::Nothing,
        Forgotten::Flush,
        Forgotten::Fence,
        Forgotten::FenceAfterNt,
    ] {
        let pmem = SimPmem::new(Image::new(SIZE));
        commit(&pmem, forgotten);
        let (mut committed, mut broken) = (0, 0);
        for point in pmem.tape().crash_points() {
            for bytes in all_states(&point, &point.relevant_pieces(), Image::to_bytes) {
                if bytes[192] == 1 {
                    committed += 1;
                    broken += usize::from(bytes[56..80] != [7; 24]);
                }
            }
        }
        assert!(committed > 0);
        assert_eq!(
            broken == 0,
            forgotten == Forgotten::Nothing,
            "{forgotten:?}"
        );
        let last = pmem.crash_point();
        let is_certain = forgotten != Forgotten::Flush;
        assert_eq!(last.pieces().is_empty(), is_certain, "{forgotten:?}");
    }
}

/// The commit word is in persistent memory and its body on a block device; one cut hits both.
#[test]
fn two_media_keep_one_order() {
    for forget_flush in [false, true] {
        let rig = Rig::default();
        let dev = SimOptions::default().build_on(&rig, Image::new(4096));
        let pmem = SimPmemOptions::default().build_on(&rig, Image::new(SIZE));
        dev.write_at(512, &[7; 1024], TAG).expect("a write");
        if !forget_flush {
            dev.flush(Cause::Log).expect("a flush");
        }
        pmem.store_u64(0, 1, TAG).expect("a store");
        pmem.flush(0, 8, TAG).expect("a flush");
        pmem.fence(Cause::CommitRecord).expect("a fence");
        dev.write_at(512, &[8; 512], TAG).expect("a write");
        assert_eq!(
            pmem.tape().numbers().first(),
            Some(&(2 - u64::from(forget_flush)))
        );

        let (mut committed, mut broken) = (0, 0);
        let tapes = [dev.tape(), pmem.tape()];
        for (n, points) in joint_crash_points(&tapes).enumerate() {
            assert!(points.iter().all(|point| point.moment() == n as u64));
            let [on_dev, in_pmem] = [&points[0], &points[1]]
                .map(|point| all_states(point, &point.relevant_pieces(), Image::to_bytes));
            for words in in_pmem.iter().filter(|bytes| bytes[0] == 1) {
                for bytes in &on_dev {
                    committed += 1;
                    let body = (bytes[512], bytes[1024]);
                    broken += usize::from(body != (7, 7) && body != (8, 7));
                    assert_eq!(words[1..8], [0; 7]);
                }
            }
        }
        assert!(committed > 0);
        assert_eq!(broken > 0, forget_flush);
    }
}

#[test]
fn time_and_counts_are_those_of_the_lines() {
    let rig = Rig::default();
    let options = SimPmemOptions {
        record: false,
        timing: PmemTiming::Nvm,
    };
    let pmem = options.build_on(&rig, Image::new(SIZE));
    pmem.store(60, &[1; 8], TAG).expect("a store");
    assert_eq!(rig.clock.now_ns(), 0);
    pmem.flush(60, 8, TAG).expect("a flush");
    assert_eq!(rig.clock.now_ns(), 2 * 180);
    pmem.flush(0, 0, TAG).expect("no line");
    pmem.flush(128, 1, TAG).expect("a clean line");
    pmem.fence(Cause::Log).expect("a fence");
    pmem.fence(Cause::Log).expect("for nothing");
    pmem.store_nt(64, &[1; 72], TAG).expect("a store");
    pmem.load(0, &mut [0; 65], TAG).expect("a load");
    assert_eq!(pmem.load_u64(64, TAG), Ok(0x0101_0101_0101_0101));
    let account = pmem.meter().snapshot();
    let traffic = account.of(TAG);
    assert_eq!((traffic.writes, traffic.write_bytes), (2, 80));
    assert_eq!((traffic.reads, traffic.read_bytes), (2, 73));
    assert_eq!((traffic.lines, account.fences(Cause::Log)), (5, 2));
    assert_eq!(account.total_busy_ns(), 5 * 180 + 3 * 50);
    assert_eq!(rig.clock.now_ns(), account.total_busy_ns());
}

#[test]
fn traces_are_lines() {
    let pmem = SimPmem::new(Image::new(SIZE));
    commit(&pmem, Forgotten::Nothing);
    pmem.store_nt(64, &[1; 16], TAG).expect("a store");
    let lines: Vec<String> = pmem.tape().entries().iter().map(Entry::to_string).collect();
    let expected = [
        "store 56+24 journal/log",
        "flush 56+24 journal/log",
        "fence log",
        "store 192+8 journal/log",
        "flush 192+8 journal/log",
        "fence commit_record",
        "store_nt 64+16 journal/log",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn without_power_nothing_works() {
    let pmem = SimPmem::new(Image::new(SIZE));
    pmem.rig().power.cut();
    let lost = |result: Result<(), MediaError>, op| {
        assert!(matches!(result, Err(MediaError::PowerLost { op: it, .. }) if it == op));
    };
    lost(pmem.load(0, &mut [0], TAG), Op::Read);
    lost(pmem.load_u64(0, TAG).map(drop), Op::Read);
    lost(pmem.store(0, &[0], TAG), Op::Write);
    lost(pmem.store_u64(0, 1, TAG), Op::Write);
    lost(pmem.store_nt(0, &[0; 8], TAG), Op::Write);
    lost(pmem.flush(0, 8, TAG), Op::Flush);
    lost(pmem.fence(Cause::Log), Op::Flush);
}

#[test]
#[should_panic(expected = "beyond the end")]
fn beyond_the_end_is_our_mistake() {
    let _ = SimPmem::new(Image::new(SIZE)).store(SIZE - 1, &[0; 2], TAG);
}

#[test]
#[should_panic(expected = "misuse of the simulated memory")]
fn half_a_word_is_our_mistake() {
    let _ = SimPmem::new(Image::new(SIZE)).store_u64(4, 1, TAG);
}

#[test]
#[should_panic(expected = "misuse of the simulated memory")]
fn half_a_word_past_the_cache_is_our_mistake() {
    let _ = SimPmem::new(Image::new(SIZE)).store_nt(8, &[1; 12], TAG);
}

#[test]
#[should_panic(expected = "no block device")]
fn its_states_are_no_block_devices() {
    let _ = SimPmem::new(Image::new(SIZE))
        .crash_point()
        .crash(&Keep::All);
}
