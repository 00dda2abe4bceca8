//! Files survive whatever a process can do to them, and each kind of damage has its own error.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use stetfs_format::bytes::write_u32le;
use stetfs_format::checksum::crc32c;
use tempfile::TempDir;

use super::*;
use crate::Errno;
use crate::error::{MediaError, Op};
use crate::image::Image;
use crate::nand::cells::{Cells, EraseEnd, ProgramEnd};

const UUID: [u8; 16] = *b"the UUID of this";

fn part_path() -> (TempDir, PathBuf) {
    let dir = directory();
    let path = dir.path().join("part");
    (dir, path)
}

fn create(path: &Path, part: NandPart) -> NandFile {
    let made = NandFile::options().create(path, part, UUID);
    made.expect("a file")
}

fn open(path: &Path) -> Result<NandFile, NandError> {
    NandFile::options().open(path)
}

fn refused(path: &Path) -> NandError {
    open(path).err().expect("it is refused")
}

#[test]
fn a_new_part_takes_no_space_and_comes_back() {
    let (_dir, path) = part_path();
    let nand = create(&path, parts::MLC);
    assert_eq!(nand.uuid(), UUID);
    let name = format!("{}, NAND, 8192 MiB", path.display());
    assert_eq!(nand.describe(), name);
    let good = (0..10)
        .map(BlockAddr)
        .find(|b| nand.is_bad(*b) == Ok(false));
    let page = parts::MLC.geometry.page_at(good.expect("one"), 0);
    program(&nand, &parts::MLC, page.0, 5).expect("a program");
    let bad: Vec<_> = (0..4096).map(|b| nand.is_bad(BlockAddr(b))).collect();
    drop(nand);
    let meta = std::fs::metadata(&path).expect("the file");
    assert_eq!(meta.len(), parts::MLC.geometry.file_bytes());
    let taken = meta.blocks() * 512;
    assert!(taken < 3 << 20, "{taken} bytes");

    let nand = open(&path).expect("the file");
    assert_eq!(nand.part(), &parts::MLC);
    assert!(read(&nand, page.0).is(&content(&parts::MLC, 5)));
    let again: Vec<_> = (0..4096).map(|b| nand.is_bad(BlockAddr(b))).collect();
    assert_eq!(again, bad);
}

#[test]
fn one_at_a_time() {
    let (dir, path) = part_path();
    let nand = create(&path, SMALL);
    let busy = refused(&path);
    assert!(matches!(busy, NandError::File(MediaError::Busy { .. })));
    drop(nand);
    open(&path).expect("it is free");
    let exists = NandFile::options().create(&path, SMALL, UUID).err();
    let source = Errno::EXIST;
    let expected = MediaError::Open {
        path: path.clone(),
        source,
    };
    assert_eq!(exists, Some(NandError::File(expected)));
    let not_storage = refused(dir.path());
    assert!(matches!(
        not_storage,
        NandError::File(MediaError::NotStorage { .. })
    ));
    let missing = dir.path().join("none");
    let expected = MediaError::Open {
        path: missing.clone(),
        source: Errno::NOENT,
    };
    assert_eq!(refused(&missing), NandError::File(expected));
}

/// Changes `N` bytes of a file; returns the old ones.
fn edit<const N: usize>(path: &Path, at: u64, change: impl Fn(&mut [u8; N])) -> [u8; N] {
    let file = File::options().read(true).write(true).open(path);
    let file = file.expect("the file");
    let mut bytes = [0; N];
    file.read_exact_at(&mut bytes, at).expect("the bytes");
    let before = bytes;
    change(&mut bytes);
    file.write_all_at(&bytes, at).expect("the bytes");
    before
}

#[test]
fn damaged_files_are_refused_by_name() {
    let (_dir, path) = part_path();
    let mut part = SMALL;
    // Enough records that they are read in two pieces.
    part.geometry.blocks = 10_000;
    drop(create(&path, part));
    let corrupt = || match refused(&path) {
        NandError::Corrupt(corrupt) => corrupt,
        other => panic!("{other}"),
    };
    let after_flip = |at: u64| {
        edit(&path, at, |[byte]| *byte ^= 1);
        let corrupt = corrupt();
        edit(&path, at, |[byte]| *byte ^= 1);
        corrupt
    };
    assert_eq!(after_flip(0), NandCorrupt::Magic(*b"rtetNAND"));
    let checksum = after_flip(0x44);
    assert!(matches!(checksum, NandCorrupt::HeaderChecksum { .. }));
    for n in [0, 4, 9999] {
        let at = part.geometry.record_offset(BlockAddr(n));
        let is_this =
            |corrupt| matches!(corrupt, NandCorrupt::BlockChecksum { block, .. } if block.0 == n);
        assert!(is_this(after_flip(at + 9)));
        let record = edit(&path, at, |record: &mut [u8; 32]| record.fill(0));
        assert!(is_this(corrupt()));
        edit(&path, at, |bytes| *bytes = record);
    }
    drop(open(&path).expect("sound again"));
    let record = "NAND file";
    let too_short = |needed, found| NandCorrupt::TooShort {
        record,
        needed,
        found,
    };
    let needed = part.geometry.file_bytes();
    let file = File::options().write(true).open(&path).expect("the file");
    for (len, expected) in [
        (needed - 4096, too_short(needed, needed - 4096)),
        (0, too_short(256, 0)),
    ] {
        file.set_len(len).expect("a shorter file");
        assert_eq!(corrupt(), expected);
    }
}

#[test]
fn damage_is_found_while_a_file_is_open() {
    let (_dir, path) = part_path();
    let nand = create(&path, SMALL);
    edit(&path, 4096, |[byte]| *byte ^= 1);
    let corrupt = |result: Result<(), NandError>| {
        let of = BlockAddr(0);
        let error = result.expect_err("damage");
        let NandError::Corrupt(NandCorrupt::BlockChecksum { block, .. }) = error else {
            panic!("{error}");
        };
        assert_eq!(block, of);
    };
    corrupt(program(&nand, &SMALL, 0, 1));
    corrupt(read(&nand, 0).result.map(drop));
    corrupt(nand.erase(BlockAddr(0), Cause::Gc));
    corrupt(nand.mark_bad(BlockAddr(0), Cause::Gc));
    corrupt(nand.is_bad(BlockAddr(0)).map(drop));
    assert_eq!(nand.changes(), 0);
}

/// Makes a file look as if it was never closed, under this boot.
fn left_open(path: &Path, boot: [u8; 16]) {
    edit(path, 0, |header: &mut [u8; NandHeader::SIZE]| {
        header[0x20..0x30].copy_from_slice(&boot);
        write_u32le(header, 0x0c, 0);
        let checksum = crc32c(!0, &header[..]);
        write_u32le(header, 0x0c, checksum);
    });
}

fn boot_of(path: &Path) -> [u8; 16] {
    let bytes = std::fs::read(path).expect("the file");
    NandHeader::decode(&bytes).expect("a header").boot
}

#[test]
fn a_file_in_use_when_the_host_went_down_is_refused() {
    let (_dir, path) = part_path();
    let nand = create(&path, SMALL);
    let now = boot_of(&path);
    assert_ne!(now, [0; 16]);
    nand.sync().expect("a disk");
    drop(nand);
    assert_eq!(boot_of(&path), [0; 16]);

    left_open(&path, now);
    drop(open(&path).expect("only the process has died"));
    left_open(&path, [1; 16]);
    assert_eq!(
        refused(&path),
        NandError::HostCrashed { path: path.clone() }
    );
    let accepting = NandFile::options().after_host_crash(true);
    drop(accepting.open(&path).expect("at the caller's risk"));
    drop(open(&path).expect("closed since"));

    left_open(&path, now);
    let synchronous = NandFile::options().synchronous(true);
    let nand = synchronous.open(&path).expect("a file");
    assert_eq!(boot_of(&path), [0; 16], "it has nothing to lose");
    program(&nand, &SMALL, 0, 1).expect("a program");
    drop(nand);
    assert!(read(&open(&path).expect("a file"), 0).is(&content(&SMALL, 1)));
}

/// The memory of a process that dies after `writes_left` more writes.
struct Dying {
    content: Image,
    writes_left: u32,
}

impl Store for Dying {
    fn size(&self) -> u64 {
        self.content.size()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), MediaError> {
        self.content.read(offset, out);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MediaError> {
        let Some(left) = self.writes_left.checked_sub(1) else {
            return Err(MediaError::WritesLost);
        };
        self.writes_left = left;
        self.content.write(offset, bytes);
        Ok(())
    }
}

/// A process that dies before any write of any request leaves one of the outcomes of a power cut.
#[test]
fn a_death_at_any_write_is_an_outcome() {
    let sim = NandSim::new(SMALL);
    for (n, page) in (1..).zip([0, 1, 4]) {
        program(&sim, &SMALL, page, n).expect("a program");
    }
    let (data, spare) = content(&SMALL, 9);
    let page = PageNo(2);
    let (block, cause) = (BlockAddr(0), Cause::Gc);
    let changes = [
        NandEntry::Program {
            page,
            data: data.into(),
            spare: spare.into(),
            tag: TAG,
            failed: false,
        },
        NandEntry::Erase {
            block,
            cause,
            failed: false,
        },
        NandEntry::MarkBad { block, cause },
    ];
    let expected: [&[Outcome]; 3] = [
        &[
            Outcome::NotStarted,
            Outcome::Torn,
            Outcome::Torn,
            Outcome::Torn,
            Outcome::Complete,
        ],
        &[Outcome::NotStarted, Outcome::HalfTorn, Outcome::Complete],
        &[Outcome::NotStarted, Outcome::Complete],
    ];
    for (change, expected) in changes.iter().zip(expected) {
        for (writes, outcome) in (0..).zip(expected) {
            let store = Dying {
                content: sim.image(),
                writes_left: writes,
            };
            let mut dying = Cells::open(store).expect("a part");
            let done = dying.carry_out(change);
            assert_eq!(done.is_ok(), *outcome == Outcome::Complete, "{change}");
            let left = Cells::open(dying.store.content).expect("a part");
            let mut cut = Cells::open(sim.image()).expect("a part");
            cut.cut_short(change, *outcome).expect("memory");
            for block in (0..6).map(BlockAddr) {
                assert_eq!(left.block(block), cut.block(block), "{change} {writes}");
            }
        }
    }
}

const KILLED: &str = "STETFS_TEST_NAND_KILLED";

/// The work of the killed process: it prints each request before and after carrying it out, one
/// line each.
fn work_until_killed(path: &Path) {
    let nand = open(path).expect("the file");
    let mut out = std::io::stdout().lock();
    let geometry = SMALL.geometry;
    for n in 1_u64.. {
        let lot = crate::sim::scramble(n);
        let block = BlockAddr(lot as u32 % geometry.blocks);
        let next = nand.block(block).expect("the file").next_page;
        if next == geometry.pages_per_block {
            writeln!(out, "erase {block}").expect("a pipe");
            nand.erase(block, Cause::Gc).expect("an erase");
        } else {
            let page = geometry.page_at(block, next);
            writeln!(out, "program {page} {n}").expect("a pipe");
            program(&nand, &SMALL, page.0, n).expect("a program");
        }
        writeln!(out, "done").expect("a pipe");
        out.flush().expect("a pipe");
    }
}

/// A process is killed while it works. Every request that it reported as done is there; the one
/// under way is done, not done, or torn.
#[test]
fn files_survive_kills() {
    if let Ok(path) = std::env::var(KILLED) {
        return work_until_killed(Path::new(&path));
    }
    let (_dir, path) = part_path();
    drop(create(&path, SMALL));
    // The content of each page: nothing, or the number of its content.
    let mut pages = [None; 24];
    for round in 0..6 {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args([
                "--exact",
                "nand::tests::file::files_survive_kills",
                "--nocapture",
            ])
            .env(KILLED, &path)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut in_flight = None;
        let mut seen = 0;
        for line in lines {
            let line = line.expect("a line");
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["program" | "erase", ..] => in_flight = Some(line),
                ["done"] => {
                    apply(&mut pages, in_flight.take().expect("a request").as_str());
                    seen += 1;
                    if seen == 20 + 13 * round {
                        child.kill().expect("it lives");
                    }
                }
                _ => {}
            }
        }
        child.wait().expect("it is dead");
        assert!(seen >= 20 + 13 * round);
        let nand = open(&path).expect("a sound file");
        pages = check_after_kill(&nand, pages, in_flight.as_deref());
        // Clears torn pages and half erased blocks away, as at power-up.
        for block in (0..6).map(BlockAddr) {
            let state = nand.block(block).expect("the file");
            let torn = state.pages.contains(&PageState::Torn);
            if torn || state.condition == BlockCondition::HalfErased {
                nand.erase(block, Cause::Recovery).expect("an erase");
                pages[block.0 as usize * 4..][..4].fill(None);
            }
        }
    }
}

/// Applies a request to the pages.
fn apply(pages: &mut [Option<u64>; 24], request: &str) {
    let words: Vec<&str> = request.split(' ').collect();
    let number = |n: usize| words[n].parse::<u64>().expect("a number");
    match words[0] {
        "erase" => pages[number(1) as usize * 4..][..4].fill(None),
        _ => pages[number(1) as usize] = Some(number(2)),
    }
}

/// Compares a file with what is known; returns what is there.
fn check_after_kill(
    nand: &NandFile,
    before: [Option<u64>; 24],
    in_flight: Option<&str>,
) -> [Option<u64>; 24] {
    let mut after = before;
    if let Some(request) = in_flight {
        apply(&mut after, request);
    }
    let mut found = before;
    for page in 0..24 {
        let got = read(nand, page as u32);
        let is = |n: Option<u64>| match n {
            None => got.is_erased(),
            Some(n) => got.result.is_ok() && got.is(&content(&SMALL, n)),
        };
        let (old, new) = (before[page], after[page]);
        let lost = matches!(got.result, Err(NandError::Uncorrectable { .. }));
        if is(new) {
            found[page] = new;
        } else {
            assert!(is(old) || lost && old != new, "page {page}, {in_flight:?}");
        }
    }
    found
}

/// If the host's disk is full or fails, the request reports it, and the page is torn at worst.
#[test]
fn failing_files_are_told() {
    let sim = NandSim::new(SMALL);
    let store = Dying {
        content: sim.image(),
        writes_left: 1,
    };
    let mut cells = Cells::open(store).expect("a part");
    let (data, spare) = content(&SMALL, 1);
    let end = ProgramEnd::Left(PageState::Programmed);
    let failed = cells.program(PageNo(0), &data, &spare, end);
    assert_eq!(failed, Err(NandError::File(MediaError::WritesLost)));
    let failed = cells.erase(BlockAddr(0), EraseEnd::Done);
    assert_eq!(failed, Err(NandError::File(MediaError::WritesLost)));
}

/// The same content works in memory and in a file.
#[test]
fn images_are_files() {
    let (_dir, path) = part_path();
    let sim = NandSim::new(SMALL);
    program(&sim, &SMALL, 0, 1).expect("a program");
    sim.rig().power.cut_at(1);
    program(&sim, &SMALL, 1, 2).expect_err("the power goes off");
    let left = sim.crash_point().crash(Outcome::Torn);
    left.image().to_file(&path).expect("a file");
    let file = open(&path).expect("a part");
    assert!(read(&file, 0).is(&content(&SMALL, 1)));
    assert!(read(&file, 1).result.is_err());
    file.rig().power.cut();
    assert_eq!(
        program(&file, &SMALL, 2, 3),
        Err(NandError::PowerLost { op: Op::Write })
    );
}
