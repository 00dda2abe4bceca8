//! Parts without a layer, or with a foreign or damaged one, give an error that names the cause,
//! never a panic.

use super::*;
use stetfs_format::ftl::{FtlAnchor, FtlCorrupt, FtlSpare, PageKind, SpareCodec};
use stetfs_ftl::{FtlError, Inspection};
use stetfs_media::nand::{BlockAddr, Nand, NandOptions, PageNo};

const PART: NandPart = small(64, 8);

fn refusal(nand: Arc<NandSim>) -> FtlError {
    let inspected = Inspection::new(nand.clone()).err().expect("it is refused");
    let mounted = Ftl::mount(nand, MountOptions::default()).err();
    assert_eq!(mounted, Some(inspected.clone()));
    inspected
}

fn untaped(part: NandPart) -> NandSim {
    let options = NandOptions {
        record: false,
        ..NandOptions::new(part)
    };
    options.build()
}

/// Returns an anchor that could be the first of a layer on [`PART`], except that its directory is
/// missing.
fn anchor() -> FtlAnchor {
    FtlAnchor {
        uuid: UUID,
        mounts: 1,
        checkpoint: 5,
        next_seq: 9,
        page_bytes: 512,
        pages_per_block: 8,
        blocks: 64,
        logical_pages: 200,
        directories: vec![PageNo(100)],
        ..FtlAnchor::default()
    }
}

/// Makes a part whose only anchor is this one. The two functions change the page's bytes before and
/// after its checksum is made.
fn with_anchor(
    anchor: &FtlAnchor,
    before: impl Fn(&mut [u8]),
    after: impl Fn(&mut [u8]),
) -> Arc<NandSim> {
    with_anchor_in(0, anchor, before, after)
}

/// Makes such a part with the anchor in a given block.
fn with_anchor_in(
    block: u32,
    anchor: &FtlAnchor,
    before: impl Fn(&mut [u8]),
    after: impl Fn(&mut [u8]),
) -> Arc<NandSim> {
    let page = PART.geometry.page_at(BlockAddr(block), 0);
    let nand = untaped(PART);
    let (mut data, mut spare) = ([0; PAGE], [0xff; 16]);
    anchor.encode(&mut data);
    before(&mut data);
    let record = FtlSpare {
        kind: PageKind::Anchor,
        index: 0,
        seq: 8,
    };
    let codec = SpareCodec::new(&UUID, PART.geometry.bad_mark);
    codec.encode(&record, page, &data, &mut spare);
    after(&mut data);
    nand.program(page, &data, &spare, TAG).expect("a page");
    Arc::new(nand)
}

fn refusal_of(change: impl Fn(&mut FtlAnchor)) -> FtlError {
    let mut anchor = anchor();
    change(&mut anchor);
    refusal(with_anchor(&anchor, |_| {}, |_| {}))
}

#[test]
fn parts_that_cannot_have_a_layer() {
    let create = |part: NandPart, percent| {
        let options = FtlOptions {
            over_provisioning_percent: percent,
            ..FtlOptions::default()
        };
        let nand = Arc::new(untaped(part));
        Ftl::create(nand, UUID, &options, MountOptions::default()).err()
    };
    let mut narrow = PART;
    narrow.geometry.spare_bytes = 15;
    let needed = 16;
    assert_eq!(
        create(narrow, 7),
        Some(FtlError::SpareTooSmall { found: 15, needed })
    );
    assert!(matches!(
        create(PART.with_blocks(20), 7),
        Some(FtlError::TooSmall { good: 12, .. })
    ));
    assert!(matches!(
        create(small(1 << 21, 32), 7),
        Some(FtlError::TooLarge { .. })
    ));
    for percent in [0, 91] {
        assert_eq!(
            create(PART, percent),
            Some(FtlError::OverProvisioning(percent))
        );
    }
}

#[test]
fn no_layer_or_another() {
    let empty = Arc::new(untaped(PART));
    assert_eq!(refusal(empty.clone()), FtlError::NotFormatted);
    empty
        .program(PageNo(0), &[7; PAGE], &[0xff; 16], TAG)
        .expect("a page");
    assert_eq!(refusal(empty), FtlError::NotFormatted);
    let version = with_anchor(&anchor(), |data| data[8] = 2, |_| {});
    assert_eq!(refusal(version), FtlError::NoAnchor(FtlCorrupt::Version(2)));
    // Anchors are in two slots, one in the even blocks and one in the odd ones; either may have
    // none.
    for block in 0..2 {
        let damaged = with_anchor_in(block, &anchor(), |_| {}, |data| data[0x30] ^= 1);
        let refused = refusal(damaged);
        let FtlError::NoAnchor(FtlCorrupt::PageChecksum { page, .. }) = refused else {
            panic!("block {block}: {refused}");
        };
        assert_eq!(page, PART.geometry.page_at(BlockAddr(block), 0));
    }
    let long = with_anchor(&anchor(), |data| data[0x69] = 1, |_| {});
    assert!(matches!(
        refusal(long),
        FtlError::NoAnchor(FtlCorrupt::Count { .. })
    ));
    assert!(matches!(
        refusal_of(|a| a.blocks = 65),
        FtlError::OtherPart { .. }
    ));
    let is_impossible = |e: FtlError, expected: &str| match e {
        FtlError::Impossible { what, .. } => assert_eq!(what, expected),
        other => panic!("{other}, not {expected}"),
    };
    is_impossible(
        refusal_of(|a| a.logical_pages = 0),
        "number of logical pages",
    );
    is_impossible(
        refusal_of(|a| a.logical_pages = 513),
        "number of logical pages",
    );
    is_impossible(
        refusal_of(|a| a.directories.clear()),
        "number of directory pages",
    );
    is_impossible(refusal_of(|a| a.directories[0].0 = 512), "directory page");
    is_impossible(refusal_of(|a| a.next_seq = 1 << 48), "sequence number");
    is_impossible(refusal_of(|a| a.host_pages = u64::MAX), "counter");
    let block = stetfs_media::nand::BlockAddr(64);
    is_impossible(refusal_of(|a| a.pool.push(block)), "block");
    is_impossible(refusal_of(|a| a.open.push(block)), "block");
    assert_eq!(
        refusal_of(|_| {}),
        FtlError::MapPage {
            page: PageNo(100),
            kind: PageKind::Directory,
            index: 0
        }
    );
}

/// Returns the pages of a layer in use, which can be programmed into another part.
fn pages_of_a_layer() -> Vec<Option<(Vec<u8>, Vec<u8>)>> {
    let nand = Arc::new(untaped(PART));
    let ftl = create(&nand, 0);
    let mut chance = Chance(4);
    for number in 0..300 {
        carry_out(&ftl, &any_step(&mut chance, &ftl, number)).expect("a step");
    }
    let pages = (0..PART.geometry.pages()).map(PageNo);
    let page = |page| {
        let (mut data, mut spare) = (vec![0; PAGE], vec![0; 16]);
        let read = nand.read(page, &mut data, &mut spare, TAG);
        let is_there = read.is_ok() && spare.iter().any(|byte| *byte != 0xff);
        is_there.then_some((data, spare))
    };
    pages.map(page).collect()
}

/// Numbers in the layer's own pages are changed, with a matching checksum: a mount may succeed or
/// fail, but must return.
#[test]
fn damage_behind_a_good_checksum() {
    let pages = pages_of_a_layer();
    let codec = SpareCodec::new(&UUID, PART.geometry.bad_mark);
    let record_of = |page: PageNo| {
        let (data, spare) = pages[page.0 as usize].as_ref()?;
        let record = codec.decode(page, data, spare).ok().flatten()?;
        (!matches!(record.kind, PageKind::Data)).then_some(record)
    };
    let mut own: Vec<PageNo> = (0..PART.geometry.pages())
        .map(PageNo)
        .filter(|page| record_of(*page).is_some())
        .collect();
    // The newest pages, which count.
    own.sort_by_key(|page| std::cmp::Reverse(record_of(*page).map(|record| record.seq)));
    own.truncate(24);
    let (mut refused, mut mounted) = (0, 0);
    for seed in 0..120 {
        let mut chance = Chance(seed);
        let mut pages = pages.clone();
        for _ in 0..1 + chance.below(4) {
            let page = own[chance.below(own.len() as u64) as usize];
            let record = record_of(page).expect("it has one");
            let (data, spare) = pages[page.0 as usize].as_mut().expect("it is there");
            let at = 4 * match record.kind {
                PageKind::Anchor => chance.below(0x80 / 4),
                _ => chance.below(24),
            } as usize;
            let value = match chance.below(4) {
                0 => u32::MAX,
                1 => chance.next() as u32,
                2 => chance.below(600) as u32,
                _ => {
                    u32::from_le_bytes(data[at..at + 4].try_into().expect("4 bytes"))
                        ^ 1 << chance.below(10)
                }
            };
            data[at..at + 4].copy_from_slice(&value.to_le_bytes());
            codec.encode(&record, page, data, spare);
        }
        let nand = untaped(PART);
        for (page, content) in (0..).map(PageNo).zip(&pages) {
            if let Some((data, spare)) = content {
                nand.program(page, data, spare, TAG).expect("a page");
            }
        }
        let Ok(ftl) = Ftl::mount(Arc::new(nand), MountOptions::default()) else {
            refused += 1;
            continue;
        };
        mounted += 1;
        // Its content may be anything.
        let _ = read_all(&ftl);
        for number in 0..60 {
            let _ = carry_out(&ftl, &any_step(&mut chance, &ftl, number));
        }
    }
    println!("{refused} refused, {mounted} mounted");
    assert!(refused > 10 && mounted > 10);
}
